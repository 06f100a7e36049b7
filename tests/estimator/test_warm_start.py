"""A new run takes over variables by names and by words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.checkpoint.weights import load_weights
from prototrain.errors import CheckpointError, ConfigError, ModelError, PrototrainError
from prototrain.estimator import VocabInfo, WarmStartSettings
from prototrain.estimator.warm_start import warm_start

THERE = {
    "table": np.arange(8.0).reshape(4, 2).astype(np.float32),  # a b c, and a bucket
    "logits/kernel": np.array([[1.0, 2.0, 3.0]], np.float32),
    "logits/bias": np.array([10.0, 20.0, 30.0], np.float32),
    "head": np.ones(1, np.float32),
}


class Built:
    """What `warm_start` knows of a model."""

    def __init__(self, **shapes: Any) -> None:
        self.variables = {name: tf.Variable(tf.fill(shape, -1.0)) for name, shape in shapes.items()}

    def load_weights(self, source: Any, **options: Any) -> Any:
        return load_weights(self.variables, source, **options)


def started(here: dict[str, Any], **settings: Any) -> dict[str, list[Any]]:
    built: Any = Built(**here)
    start = WarmStartSettings("there", **settings)
    object.__setattr__(start, "ckpt_to_initialize_from", THERE)  # arrays, in place of a path
    warm_start(built, start)
    return {name: variable.numpy().tolist() for name, variable in built.variables.items()}


def test_by_words(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("a\nb\nc\n")
    (tmp_path / "new").write_text("c\nx\na\nunused\n")
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    classes: Any = ["c", "d", "a"]
    found = started(
        {"table": [5, 2], "logits/kernel": [1, 3], "logits/bias": [3], "head": [1]},
        vars_to_warm_start=["table", "logits"],
        var_name_to_vocab_info={
            "table": VocabInfo(new, 3, 2, old, backup_initializer=tf.ones_initializer()),
            "logits/kernel": VocabInfo(classes, 3, 0, list("abc"), axis=1),
            "logits/bias": tf.compat.v1.train.VocabInfo(classes, 3, 0, list("abc")),
        },
    )
    assert found["table"] == [[4, 5], [1, 1], [0, 1], [1, 1], [1, 1]]  # the buckets, too, are new, as in tf.estimator
    assert found["logits/kernel"] == [[3, 0, 1]] and found["logits/bias"] == [30, 0, 10]
    assert found["head"] == [-1]
    assert started({"table": [1, 2]}, var_name_to_vocab_info={"table": VocabInfo(["b"], 1, 0, old, 1)}) == {
        "table": [[0, 0]]  # b is not among the first word there
    }


def test_several_from_one() -> None:
    names = {"left": "head", "right": "head"}
    assert started({"left": [1], "right": [1], "head": [1]}, var_name_to_prev_var_name=names) == {
        "left": [1],
        "right": [1],
        "head": [1],
    }
    assert started({"left": [1], "head": [1]}, vars_to_warm_start="(?!left)") == {"left": [-1], "head": [1]}
    assert started({"head": [1]}, vars_to_warm_start=None) == {"head": [1]}


@pytest.mark.parametrize(
    ("kind", "message", "settings"),
    [
        (ModelError, "model_fn has no variable 'x'; it has head", {"var_name_to_prev_var_name": {"x": "head"}}),
        (CheckpointError, "there is no variable 'x' in", {"var_name_to_prev_var_name": {"head": "x"}}),
        (
            ConfigError,
            "2 words and 0 buckets here, 1 words there do not fit head",
            {"head": VocabInfo(["a", "b"], 2, 0, ["a"])},
        ),
        (ConfigError, "cannot read the vocabulary /nowhere", {"head": VocabInfo("/nowhere", 1, 0, ["a"])}),
        (ConfigError, "has 1 words, not 2", {"head": VocabInfo(["a"], 2, 0, ["a"])}),
        (ConfigError, "takes a prototrain.estimator.VocabInfo, not int", {"head": 1}),
    ],
)
def test_messages(kind: type[PrototrainError], message: str, settings: dict[str, Any]) -> None:
    if "head" in settings:
        settings = {"var_name_to_vocab_info": settings}
    with pytest.raises(kind, match=message):
        started({"head": [1]}, **settings)
