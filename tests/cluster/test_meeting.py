"""Workers as threads of one process: how they meet, exchange something, and hear what becomes of one of them."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from prototrain.cluster.hub import Limits
from prototrain.cluster.joining import meet
from prototrain.cluster.link import Left, Link
from prototrain.cluster.meeting import Meeting
from prototrain.errors import ClusterError


def addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What each of them returns or raises, all at once."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (ClusterError, Left) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


@pytest.fixture
def links() -> Iterator[list[Link]]:
    where = addresses(3)
    found = together(*[lambda i=i: meet(where, i, Limits(20.0)) for i in (2, 0, 1)])
    links = sorted(found, key=lambda link: link._index)
    yield links
    for link in reversed(links):
        end(link)


def end(link: Link) -> None:
    """What becomes of a connection when its process is killed."""
    line, link._line = link._line, None
    if line is not None:
        line.shutdown(socket.SHUT_RDWR)
        line.close()


def test_exchanges(links: list[Link]) -> None:
    for number in range(50):
        mine = [[index, number] for index in range(3)]
        told = together(
            *[lambda i=i, link=link: link.exchange("numbers", i) for i, link in zip(mine, links, strict=True)]
        )
        assert told == [mine] * 3


def test_one_that_leaves(links: list[Link]) -> None:
    told = together(
        lambda: links[0].exchange("a step", 1),
        lambda: links[1].leave(why="RuntimeError: a callback failed"),
        lambda: links[2].exchange("a step", 1),
    )
    assert told[1] is None
    for left in (told[0], told[2]):
        assert isinstance(left, Left) and left.who == 1 and left.why == "RuntimeError: a callback failed"
    assert together(*[lambda link=link: link.exchange("the end", 0) for link in links]) == [[0, 0, 0]] * 3


def test_a_signal_while_waiting_ends_it_at_that_exchange(links: list[Link]) -> None:
    told = together(
        lambda: links[1].exchange("a step", 1, wanted=lambda: 15),
        lambda: links[2].exchange("a step", 1),
        lambda: (time.sleep(1.5), links[0].exchange("a step", 1)),
    )
    assert all(isinstance(left, Left) and left.signum == 15 and left.who == 1 for left in told)


@pytest.mark.parametrize("victim", [0, 2])
def test_one_that_is_gone(victim: int, links: list[Link]) -> None:
    heard: list[str] = []
    links[1].on_break = heard.append
    rest = [link for link in links if link is not links[victim]]
    told = together(*[lambda link=link: link.exchange("a step", 1) for link in rest], lambda: end(links[victim]))[:2]
    for error in told:
        assert isinstance(error, ClusterError)
        assert f"worker {victim} (127.0.0.1" in str(error) and "gone without a word" in str(error)
    assert heard == [str(told[0])]
    assert [link.broken["signum"] for link in rest if link.broken is not None] == [None, None]


def test_a_forked_child_does_not_keep_the_line_of_its_parent(tmp_path: Path) -> None:
    where = addresses(2)
    worker = os.fork()
    if worker == 0:
        meet(where, 1, Limits(20.0)).exchange("forks", None)
        if (child := os.fork()) == 0:
            signal.pause()
        (tmp_path / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    link = meet(where, 0, Limits(20.0))
    link.exchange("forks", None)
    assert link.hear(10.0) and "gone without a word" in link.verdict
    os.waitpid(worker, 0)
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    end(link)


def test_one_that_fails_reaches_the_others_in_its_own_words(links: list[Link]) -> None:
    links[1].fail("FileNotFoundError: train.csv")
    assert all(link.hear(20.0) for link in links)
    for link in links:
        assert "(127.0.0.1" in link.verdict and link.verdict.startswith("worker 1 ")
        assert link.verdict.endswith(" failed: FileNotFoundError: train.csv")
        with pytest.raises(ClusterError, match=r"train\.csv"):
            link.exchange("a step", 1)


def test_a_wait_says_for_whom(links: list[Link]) -> None:
    said: list[str] = []
    links[0].announce = said.append
    links[2].be("making its datasets")
    together(
        lambda: links[0].exchange("data", 1),
        lambda: links[1].exchange("data", 1),
        lambda: (time.sleep(3.0), links[2].exchange("data", 1)),
    )
    assert said == [f"waiting for {links[0].names[2]}, which is making its datasets"]


@pytest.mark.parametrize(("present", "missing"), [(0, "worker 1"), (1, "the chief at 127.0.0.1")])
def test_one_that_does_not_come(present: int, missing: str) -> None:
    said: list[str] = []
    begin = time.monotonic()
    with pytest.raises(ClusterError, match=rf"{missing}.* has not come within 2\.5 seconds \(trainer\.cluster_timeout"):
        meet(addresses(2), present, Limits(2.5), announce=said.append)
    assert time.monotonic() - begin < 10
    assert len(said) == 1 and said[0].startswith(f"waiting for {missing}")


def test_all_who_are_there_hear_who_is_missing() -> None:
    where = addresses(3)
    found = together(*[lambda i=i: meet(where, i, Limits(4.0), announce=lambda text: None) for i in (0, 1)])
    for error in found:
        assert isinstance(error, ClusterError) and f"worker 2 ({where[2]}) has not come within 4 seconds" in str(error)


def test_strangers_and_doubles_are_refused() -> None:
    where = addresses(3)
    meeting = Meeting(where, ["zero", "one", "two"], Limits(5.0))
    host, port = where[0].split(":")
    for rubbish in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"worker": "x"}\n', b"\xff\n"):
        with socket.create_connection((host, int(port))) as line:
            line.sendall(rubbish)
            assert line.recv(10) == b""
    with pytest.raises(ClusterError, match="another list of addresses"):
        meet([where[0], where[2], where[1]], 1, Limits(5.0))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(meet, where, 1, Limits(5.0))
        while meeting.missing != [2]:
            time.sleep(0.01)
        with pytest.raises(ClusterError, match="a worker of its number already"):
            meet(where, 1, Limits(5.0))
        other = meet(where, 2, Limits(5.0))
        one = first.result()
    assert meeting.wait(5.0)
    for link in (one, other):
        end(link)


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=rf"cannot listen at 127\.0\.0\.1:{port}"):
            meet([f"127.0.0.1:{port}", "127.0.0.1:1"], 0, Limits(5.0))
