"""A compact export gives what the model gives, from one file and without prototrain, or is not there."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.actions import export, load_compact, restore
from prototrain.errors import ExperimentError, ModelError
from prototrain.trainers.tower import SimpleTrainer
from tests.actions.conftest import model_in
from tests.actions.test_export import build_with_classes
from tests.tiny import tiny_arrays, tiny_build


def build(inputs: Any, train_phase: bool) -> Any:
    """The tiny model with an output of another dtype, and one that a condition and a loop make."""
    net = tiny_build(inputs, train_phase)
    net.best = tf.argmax(net.logits, 1)
    net.looped = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 0.5 + 1.0), [0, net.logits])[1]
    return net


def run(base: Path, outputs: list[str], build: Any = build, inputs: tuple[str, ...] = ("x", "y")) -> None:
    model = model_in(base, build=build, actions__export__inputs=list(inputs), actions__export__outputs=outputs)
    export.run(model, Namespace(checkpoint=None, format="compact"))


@pytest.mark.usefixtures("forked_exports")
def test_a_compact_export(trained: SimpleTrainer, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = base / "tiny/exported/20.pb"
    run(base, ["logits", "best", "looped"])
    assert f"exported to {path}" in capsys.readouterr().out
    assert sorted(found.name for found in path.parent.glob("*pb*")) == ["20.pb"]
    serve, x = load_compact(path), tiny_arrays(13)["x"]
    found = serve(x=x, y=np.zeros(13, np.int32))  # y is there, though nothing needs it
    restored = restore(model_in(base, build=build))
    for name, value in zip(found, restored.built.get_predictor(["x"], list(found))(x), strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-6)
    definition = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    kinds = {node.op for node in definition.node}
    assert not kinds & {"VarHandleOp", "ReadVariableOp", "PartitionedCall", "RestoreV2"}
    assert not [node for node in definition.node if "x" in node.name.split("/") and node.op == "Identity"]
    with pytest.raises(ExperimentError, match="exists; delete it"):
        run(base, ["logits"])
    with pytest.raises(TypeError, match="the export takes x, y by name, not y"):
        serve(y=x)
    path.unlink()

    with pytest.raises(ModelError, match="such as a lookup table; export a SavedModel"):
        run(base, ["classes"], build_with_classes)
    assert not path.exists() and not list(path.parent.glob(".tmp-*"))


def test_what_is_no_compact_export(tmp_path: Path) -> None:
    (tmp_path / "a.pb").write_bytes(tf.Graph().as_graph_def().SerializeToString())
    (tmp_path / "b.pb").write_bytes(b"nothing of the kind")
    for name, words in (("a.pb", "it is not one"), ("b.pb", "cannot load"), ("c.pb", "No such file")):
        with pytest.raises(ExperimentError, match=words):
            load_compact(tmp_path / name)


class Served:
    """What `write_export` knows of a model."""

    def save(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "saved_model.pb").write_bytes(b"graph")
        (directory / "variables").mkdir()


def test_an_export_is_complete_whenever_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / ".tmp-20"
    left.mkdir()
    (left / "half").write_bytes(b"of an export that was killed")
    served: Any = Served()
    seen = []

    def look(_: Any, directory: Path) -> str:
        seen.append(sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")))
        return "equal"

    monkeypatch.setattr(export, "compare", look)
    monkeypatch.setattr(export, "freeze", lambda served: tf.compat.v1.GraphDef())
    assert export.write_export(served, tmp_path / "20") == "equal"
    assert export.write_compact(served, tmp_path / "21.pb").startswith("equal")
    assert seen == [[], ["20"]]  # before the comparison is over there is nothing under the name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["20", "21.pb"]
    assert sorted(path.name for path in (tmp_path / "20").iterdir()) == ["saved_model.pb", "variables"]
