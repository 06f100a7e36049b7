from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from prototrain.cluster.shared_directory import require_shared
from prototrain.errors import ExperimentError
from prototrain.experiment import Experiment
from prototrain.experiment.remote import Remote
from prototrain.system.storage import Storage


class Lines:
    """The lines of workers that are threads of this process."""

    names = ("worker 0 (a:1, the chief)", "worker 1 (b:1)")

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=10)
        self._given: dict[str, dict[int, Any]] = {}
        self._local = threading.local()

    def exchange(self, subject: str, value: Any) -> list[Any]:
        self._given.setdefault(subject, {})[self._local.index] = value
        self._barrier.wait()
        return [self._given[subject][index] for index in range(2)]

    def check(self, index: int, directory: Path | Experiment | None, errors: list[str]) -> None:
        self._local.index = index
        time = iter(range(1000))
        experiment = Experiment(directory) if isinstance(directory, Path) else directory
        line: Any = self
        try:
            require_shared(line, experiment, is_chief=index == 0, clock=lambda: next(time), sleep=lambda seconds: None)
        except ExperimentError as error:
            errors.append(str(error))


@pytest.mark.parametrize(
    ("directories", "wrong"),
    [
        (("run", "run"), None),
        (("run", "other/run"), "worker 1 (b:1) has {}/other/run on"),
        (("run", None), "worker 1 (b:1) has no directory on"),
        ((None, None), None),
    ],
)
def test_a_token_shows_what_is_shared(
    directories: tuple[str | None, str | None], wrong: str | None, tmp_path: Path
) -> None:
    lines, errors = Lines(), list[str]()
    paths = [None if name is None else tmp_path / name for name in directories]
    threads = [threading.Thread(target=lines.check, args=(index, path, errors)) for index, path in enumerate(paths)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == (0 if wrong is None else 2)
    for error in errors:
        assert wrong is not None and wrong.format(tmp_path) in error
        assert f"the chief writes to {tmp_path / 'run'} on" in error
    assert not list(tmp_path.rglob(".token*"))


def test_a_url_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine has a directory for it, and all go on from the same checkpoint."""
    url = f"memory://{uuid.uuid4().hex}"
    for name in ("meta.json", "model.index"):
        Storage(url).write(f"checkpoints/step-0000000007/{name}", b"{}")
    experiments = []
    for machine in ("a", "b"):
        monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / machine))
        experiments.append(Experiment(url))
    lines, errors = Lines(), list[str]()
    threads = [threading.Thread(target=lines.check, args=(index, one, errors)) for index, one in enumerate(experiments)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    experiments[0].unlock()
    assert not errors and ".token" not in Remote(url).top()
    for experiment in experiments:
        assert sorted(path.name for path in experiment.checkpoints.glob("*/*")) == ["meta.json", "model.index"]


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line: Any = None
    with pytest.raises(ExperimentError, match=r"cannot use the experiment directory .*file/run: Not a directory"):
        require_shared(line, Experiment(tmp_path / "file" / "run"), is_chief=True)
