"""What workers make sure of before the first step: that all of them are about to do the same."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

import prototrain
from prototrain.cluster.link import Left, Link
from prototrain.data.batches import digest_of
from prototrain.data.pipeline import first_difference
from prototrain.errors import ClusterError, ConfigError
from prototrain.experiment import source_of
from prototrain.experiment.facts import differences, file_digests
from prototrain.system.signals import LeavingAtOnce
from prototrain.system.tracebacks import in_one_line

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol
    from prototrain.model.built import BuiltModel

WORD_SECONDS = 3.0  # for which to wait for what a worker says of itself, when TensorFlow has noticed first


class LeavingTogether(LeavingAtOnce):
    """Ends the process at the first signal, while there is nothing to be saved, and says so to the other workers.

    Args:
        link: the line to them.
    """

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def _on_signal(self, signum: int) -> None:
        self._link.fail(f"it was stopped by {signal.Signals(signum).name}")
        super()._on_signal(signum)


class Agreement:
    """Compares the workers.

    Args:
        link: the line to the others.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._agrees = True

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Let what is done inside fail on all workers if it fails on one, with the words of that one."""
        try:
            yield
        except Left as left:
            raise ClusterError(f"{self._link.names[left.who]} failed: {left.why or left.reason}") from None
        except Exception as error:
            if "ollective" in str(error):
                self._link.hear(WORD_SECONDS)
            broken = self._link.broken
            if broken is not None and ("ollective" in str(error) or self._link.verdict in str(error)):
                raise self._link.error() from error
            if self._agrees:
                self._link.fail(in_one_line(error))
            raise
        except BaseException as error:  # such as Ctrl-C in a notebook
            self._link.fail(type(error).__name__)
            raise

    def require_same_settings(self, model: ModelProtocol, trainer: object) -> None:
        """Compare versions, config and code; see `require_same`."""
        source = model.source if hasattr(model, "source") else source_of(model)
        own = type(trainer).__module__
        code = {
            "model": file_digests([source]),
            "trainer": own if own.startswith("prototrain.") else file_digests([source_of(trainer)]),
        }
        versions = {"prototrain": prototrain.__version__, "tensorflow": tf.__version__, "keras": keras.__version__}
        self.require_same("the config", model.config.facts())
        self.require_same("the code", {"code of the": code, "version of": versions})

    def require_same_data(self, built: BuiltModel) -> str | None:
        """Compare the training data; see `require_same`.

        Returns:
            what differs although the data is described in the same way, in words.
        """
        fingerprint, files = built.data.fingerprint, built.data_files()
        if built.data.share.is_own:  # of which nobody but its owner knows how much there is
            fingerprint |= {"stages": [], "batches per pass": None, "batch size": None}
            fingerprint |= dict.fromkeys(("directory", "file names", "file sizes"), "")
            files = files if built.data.share.sharding == "files" else {}
        mine = {**fingerprint, "files": files, "first batch": digest_of(built.data.first_batch)}
        told = self._exchange("the training data", mine)
        chief = told[0]
        lines = []
        for index, other in enumerate(told):
            here = dict(other)
            stages = first_difference(chief["stages"], here.pop("stages"))
            common = {name: entry for name, entry in here.pop("files").items() if name in chief["files"]}
            here.pop("first batch")
            found = differences({key: chief[key] for key in here}, here)
            found += [] if stages is None else [stages]
            found += differences({"file": {name: chief["files"][name] for name in common}}, {"file": common})
            if found:
                lines.append(f"worker {index} has other data than the chief ({'; '.join(found)})")
        self._refuse("the training data", lines)
        if built.data.share.is_own:
            return None if built.data.is_made_up else _same_shares([other["first batch"] for other in told])
        others = [f"worker {index}" for index, other in enumerate(told) if other["first batch"] != chief["first batch"]]
        if not others:
            return None
        return (
            f"the first batch of {', '.join(others)} is not that of the chief, although the data is described in the "
            "same way: each worker takes its part of another batch"
        )

    def require_same(self, what: str, mine: dict[str, Any]) -> None:
        """Compare something, which JSON can hold.

        Raises:
            ConfigError: the workers do not have the same, on all of them.
        """
        told = self._exchange(what, mine)
        lines = []
        for index, other in enumerate(told):
            different = differences(told[0], other)
            if different:
                lines.append(f"worker {index} was started with another one than the chief ({'; '.join(different)})")
        self._refuse(what, lines)

    def _exchange(self, what: str, mine: dict[str, Any]) -> list[dict[str, Any]]:
        return self._link.exchange(what, json.loads(json.dumps(mine)))

    def _refuse(self, what: str, lines: list[str]) -> None:
        if lines:
            self._agrees = False  # which all of them find out, before one of them ends
            with suppress(ClusterError, Left):
                self._link.exchange("what they disagree on", None)
            raise ConfigError(
                f"the workers disagree on {what}: {'; '.join(lines)}; start all of them with the same command, code "
                "and data"
            )


def _same_shares(first_batches: list[str]) -> str | None:
    """Which workers seem to read the same although each should have data of its own, in words."""
    same = [index for index, digest in enumerate(first_batches) if first_batches.count(digest) > 1]
    if not same:
        return None
    return f"workers {', '.join(map(str, same))} begin with the same batch, although each should have data of its own"
