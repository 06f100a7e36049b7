from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from prototrain.cluster.agreement import Agreement
from prototrain.data.shares import Share
from prototrain.data.stream import TrainingData
from prototrain.errors import ClusterError, ConfigError
from tests.tiny import tiny_arrays, tiny_model


class Table:
    """Stands in for the links of two workers: each in turn gives, and the second one gets what both have given."""

    names = ("worker 0 (a:1, the chief)", "worker 1 (b:1)")

    def __init__(self) -> None:
        self.given: dict[str, list[Any]] = {}
        self.failed: list[str] = []
        self.broken: dict[str, Any] | None = None
        self.verdict = "worker 1 (b:1) failed: it is gone"

    def exchange(self, subject: str, value: Any) -> list[Any]:
        self.given.setdefault(subject, []).append(value)
        return self.given[subject]

    def fail(self, why: str) -> None:
        self.failed.append(why)

    def hear(self, seconds: float) -> bool:
        return self.broken is not None

    def error(self) -> ClusterError:
        return ClusterError(self.verdict)

    @property
    def agreement(self) -> Agreement:
        return Agreement(self)  # type: ignore[arg-type]


def built(examples: int = 40, *, batch: int = 8, generator: bool = False, shift: float = 0.0) -> Any:
    arrays = tiny_arrays(examples)
    arrays["x"] = arrays["x"] + shift

    def datasets() -> dict[str, tf.data.Dataset]:
        whole = tf.data.Dataset.from_tensor_slices(arrays)
        if generator:
            rows = [{name: values[row] for name, values in arrays.items()} for row in range(examples)]
            whole = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=whole.element_spec)
        return {"trn": whole.batch(batch, drop_remainder=True)}

    data = TrainingData(datasets, seed=1, announce=lambda text: None)
    return SimpleNamespace(data=data, data_files=dict)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, None),
        ({"examples": 32}, "batches per pass 5 -> 4"),
        ({"batch": 4}, "elements"),
        ({"generator": True}, "mode iterator -> replay"),
    ],
)
def test_data_that_differs_is_named(other: dict[str, Any], said: str | None) -> None:
    table = Table()
    assert table.agreement.require_same_data(built()) is None
    if said is None:
        assert table.agreement.require_same_data(built(**other)) is None
        return
    with pytest.raises(ConfigError) as error:
        table.agreement.require_same_data(built(**other))
    assert "the workers disagree on the training data: worker 1 has other data than the chief" in str(error.value)
    assert said in str(error.value)


def test_examples_that_differ_under_the_same_description_are_warned_of() -> None:
    table = Table()
    table.agreement.require_same_data(built(generator=True))
    warning = table.agreement.require_same_data(built(generator=True, shift=1.0))
    assert warning is not None and "the first batch of worker 1 is not that of the chief" in warning


def test_files_that_differ() -> None:
    table = Table()
    one, other = built(), built()
    one.data_files = lambda: {"train.csv": {"bytes": 10}, "only-here": {"bytes": 1}}
    other.data_files = lambda: {"train.csv": {"bytes": 20}}
    table.agreement.require_same_data(one)
    with pytest.raises(ConfigError, match=r"file train\.csv bytes 10 -> 20"):
        table.agreement.require_same_data(other)


def test_files_of_the_same_names_in_another_directory(tmp_path: Path) -> None:
    table = Table()

    def of(name: str) -> Any:
        (tmp_path / name).mkdir()
        (tmp_path / name / "lines.txt").write_text("1\n2\n")

        def datasets() -> dict[str, tf.data.Dataset]:
            lines = tf.data.TextLineDataset(str(tmp_path / name / "lines.txt"))
            return {"trn": lines.map(lambda line: {"x": line}).batch(1)}

        data = TrainingData(datasets, seed=1, announce=lambda text: None)
        return SimpleNamespace(data=data, data_files=dict)

    table.agreement.require_same_data(of("one"))
    # A place that the chief saves may have the names of its files.
    with pytest.raises(ConfigError, match=r"has other data than the chief \(directory"):
        table.agreement.require_same_data(of("other"))


def test_configs_that_differ() -> None:
    table = Table()
    table.agreement.require_same_settings(tiny_model(), table)
    with pytest.raises(ConfigError, match=r"disagree on the config: worker 1 .*model\.batch_size 8 -> 4"):
        table.agreement.require_same_settings(tiny_model(model__batch_size=4), table)


def test_what_fails_here_is_told_in_its_own_words() -> None:
    table = Table()
    with pytest.raises(FileNotFoundError), table.agreement.failing_together():
        raise FileNotFoundError("train.csv")
    assert table.failed == ["FileNotFoundError: train.csv"]


def test_what_fails_because_of_another_says_that() -> None:
    table = Table()
    table.broken = {"who": 1, "signum": None}
    with pytest.raises(ClusterError, match="worker 1"), table.agreement.failing_together():
        raise tf.errors.InternalError(None, None, "CollectiveBcastSendV2: aborted")
    with pytest.raises(ValueError, match="own"), table.agreement.failing_together():
        raise ValueError("own")


def test_shares_may_differ_and_should() -> None:
    def of(index: int, sharding: str, examples: int, shift: float, count: int = 2) -> Any:
        one = built(examples, batch=8, shift=shift)
        one.data.share = Share(index, count, sharding)
        one.data_files = lambda: {"here.csv": {"bytes": examples}}
        return one

    table = Table()
    assert table.agreement.require_same_data(of(0, "none", 40, 0.0)) is None
    assert table.agreement.require_same_data(of(1, "none", 24, 1.0)) is None
    table = Table()
    table.agreement.require_same_data(of(0, "none", 40, 0.0))
    warning = table.agreement.require_same_data(of(1, "none", 24, 0.0))
    assert warning == "workers 0, 1 begin with the same batch, although each should have data of its own"
    table = Table()
    table.agreement.require_same_data(of(0, "files", 40, 0.0))
    with pytest.raises(ConfigError, match=r"file here\.csv bytes 40 -> 24"):
        table.agreement.require_same_data(of(1, "files", 24, 1.0))
