"""Experiments in a bucket, with s3fs and moto's server."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prototrain import SimpleTrainer, readers
from prototrain.actions.restore import restore
from prototrain.callbacks import JSONWriter, MinSaver, ModelSaver, SaveOnExit, Summaries, Validation
from prototrain.cli import main
from prototrain.errors import StorageError
from prototrain.experiment import lock, remote
from prototrain.experiment.rows import rows_of
from prototrain.system.storage import Storage
from tests.conftest import ROOT
from tests.preloaded import Program
from tests.tiny import CountingTrainer, tiny_model, values

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def train(where: str | Path, steps: int) -> SimpleTrainer:
    trainer = SimpleTrainer(tiny_model(), experiment=where)
    callbacks = [
        Validation().every(steps=3),
        Summaries().every(steps=1),
        JSONWriter(),
        MinSaver("vld/loss").every(steps=3),
        ModelSaver(max_to_keep=2, asynchronous=True).every(steps=5),
        SaveOnExit(),
    ]
    trainer.train(callbacks, max_steps=steps)
    return trainer


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket on a server on this machine; its URL."""
    import s3fs
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for key in KEYS:
            patch.setenv(key, "testing")
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("prototrain-tests")
        yield "s3://prototrain-tests"
    server.stop()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import s3fs

    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lock, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(lock, "LOOK_SECONDS", 0.1)
    s3fs.S3FileSystem.clear_instance_cache()  # the keys and addresses of other tests
    yield
    s3fs.S3FileSystem.clear_instance_cache()


def test_run_killed_during_an_upload_continues_elsewhere(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{bucket}/runs/tiny"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code, said = Program(["-m", "tests.experiment.test_s3", url], cwd=ROOT).finish()
    assert code == -signal.SIGKILL, said
    names = [name.split("/") for name in Storage(url).listing()]
    begun = {name[1] for name in names if name[-1] == "model.index"}
    (whole,) = (name[1] for name in names if name[-1] == "meta.json")
    assert len(begun - {whole}) == 1  # the last complete checkpoint is kept until another one is complete
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "new"))
    trainer = train(url, 24)
    names = [name.split("/") for name in Storage(url).listing()]  # the parts of the incomplete one are deleted
    assert {name[1] for name in names if len(name) == 3 and name[0] == "checkpoints"} == {
        name[1] for name in names if name[-1] == "meta.json"
    }
    assert trainer.run.start_row().startswith(f"resumed at step {int(whole[5:])}")
    straight = train(tmp_path / "straight", 24)
    assert values(trainer) == values(straight)
    assert trainer.experiment is not None and straight.experiment is not None
    for one, other in zip(rows_of(trainer.experiment.metrics), rows_of(straight.experiment.metrics), strict=True):
        assert {**one, "time": 0} == {**other, "time": 0}
    # Commands that read, with an empty cache.
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "third"))
    assert main(["runs", bucket]) == 0 and "finished  24" in capsys.readouterr().out
    found = restore(tiny_model(), url)
    assert found.checkpoint.step == 24 and str(found.experiment) == url
    assert restore(tiny_model(), f"{url}/checkpoints/step-0000000024").checkpoint.step == 24


def test_missing_bucket_is_one_line(bucket: str) -> None:
    with pytest.raises(StorageError, match=r"cannot .* s3://no-such-bucket/x: .*bucket"):
        CountingTrainer(experiment="s3://no-such-bucket/x").train([SaveOnExit()], max_steps=1)


def test_readers_of_a_bucket(bucket: str) -> None:
    Storage(f"{bucket}/data").write("a.csv", b"y\n1\n2\n")
    dataset = readers.csv(f"{bucket}/data/a.csv", features={"y": ("int64", [])}, shuffle="index")
    assert sorted(int(item["y"]) for item in dataset) == [1, 2]
    for url in (f"{bucket}/data/b.csv", "s3://no-such-bucket/b.csv"):
        with pytest.raises(StorageError, match=rf"^there is no file {url}$"):
            readers.csv(url, features={"y": ("int64", [])})


def train_and_die(url: str) -> None:
    """Train, but kill the process right ahead of making the second checkpoint whole, when its other files are there."""
    upload, whole = Storage.upload, []

    def upload_or_die(self: Storage, paths: dict[str, Path]) -> None:
        if any(name.endswith("/meta.json") for name in paths):
            whole.append(paths)
            if len(whole) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        upload(self, paths)

    Storage.upload = upload_or_die  # type: ignore[method-assign,assignment]
    remote.UPLOAD_SECONDS = 0.1
    train(url, 24)


if __name__ == "__main__":
    train_and_die(sys.argv[1])
