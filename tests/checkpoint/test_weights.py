"""Loading weights from other checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.callbacks import SaveOnExit
from prototrain.checkpoint.weights import dump_weights, load_report_table, load_weights
from prototrain.errors import CheckpointError
from tests.tiny import tiny_trainer


def variables(**shapes: list[int]) -> dict[str, tf.Variable]:
    """Variables of ones by name, with ``__`` for a slash."""
    return {name.replace("__", "/"): tf.Variable(tf.ones(shape)) for name, shape in shapes.items()}


NET = {"fc0__kernel": [4, 6], "fc0__bias": [6], "logits__kernel": [6, 2]}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment directory of a run of three steps."""
    directory = tmp_path_factory.mktemp("source") / "run"
    tiny_trainer(directory).train([SaveOnExit()], max_steps=3)
    return directory


STEP = "checkpoints/step-0000000003"


@pytest.mark.parametrize("place", [".", "checkpoints", STEP, f"{STEP}/model"])
def test_weights_of_a_run(source: Path, place: str) -> None:
    trainer = tiny_trainer()
    report = load_weights(trainer.variables, source / place)
    assert report["loaded"] == list(trainer.variables)
    assert all(name.startswith("optimizer/") for name in report["excluded"]) and report["excluded"]
    assert not (report["not in the model"] or report["not in the checkpoint"] or report["shape differs"])
    saved = tf.train.load_checkpoint(str(source / STEP / "model"))
    for name, variable in trainer.variables.items():
        assert np.array_equal(variable.numpy(), saved.get_tensor(name))


def test_report_lists_every_outcome(source: Path) -> None:
    mine = variables(fc0__kernel=[4, 6], fc0__bias=[7], logits__kernel=[6, 2], head__kernel=[2, 2])
    report = load_weights(mine, source, ignore=["logits/.*"])
    assert report["loaded"] == ["fc0/kernel"]
    assert report["excluded"][0] == "logits/kernel"
    assert report["not in the checkpoint"] == ["head/kernel"]
    assert {"bn0/gamma", "logits/bias"} <= set(report["not in the model"])
    assert report["shape differs"] == ["fc0/bias: float32[6], here float32[7]"]
    changed = {name for name, variable in mine.items() if not np.all(variable.numpy() == 1.0)}
    assert changed == {"fc0/kernel"}
    table = load_report_table(report)
    assert all(kind in table for kind, names in report.items() if names) and max(map(len, table.splitlines())) <= 120


def test_weights_of_an_object_based_checkpoint(tmp_path: Path) -> None:
    layer = keras.layers.Dense(6, name="fc0")
    layer.build((None, 4))
    layer.bias.assign(np.arange(6))
    prefix = tf.train.Checkpoint(layers=[layer], steps=tf.Variable(3, name="steps")).write(str(tmp_path / "weights"))
    mine = variables(**NET)
    report = load_weights(mine, prefix)
    assert report["loaded"] == ["fc0/kernel", "fc0/bias"]
    assert report["not in the model"] == ["steps"]
    assert mine["fc0/bias"].numpy().tolist() == [0, 1, 2, 3, 4, 5]


def save_by_name(place: Path, **tensors: Any) -> Path:
    names = [name.replace("__", "/") for name in tensors]
    slices = [""] * len(names)
    tf.raw_ops.SaveV2(prefix=str(place), tensor_names=names, shape_and_slices=slices, tensors=[*tensors.values()])
    return place


def test_weights_of_a_name_based_checkpoint(tmp_path: Path) -> None:
    save_by_name(tmp_path / "old", fc0__kernel=tf.zeros([4, 6]), fc0__bias=tf.zeros([6], tf.float64))
    report = load_weights(variables(**NET), tmp_path / "old")
    assert report["loaded"] == ["fc0/kernel", "fc0/bias"]
    assert report["type converted"] == ["fc0/bias: float64[6], here float32[6]"]
    for place in ("old.index", "."):
        with pytest.raises(CheckpointError, match=r"no checkpoint at .*the prefix of a TensorFlow"):
            load_weights(variables(**NET), tmp_path / place)


KERNEL, BIAS = np.full([4, 6], 3.0), np.arange(6, dtype=np.float32)


def from_dict(place: Path) -> Any:
    return {"fc0/kernel:0": tf.Variable(KERNEL), "fc0/bias": BIAS.tolist(), "Adam/step": 3}


def from_npz(place: Path) -> Any:
    dump_weights({"fc0/kernel": KERNEL, "fc0/bias": tf.Variable(BIAS)}, place / "deep" / "x.npz")
    return str(place / "deep" / "x.npz")


def from_keras(place: Path) -> Any:
    layers = [keras.Input([4]), keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(6, name="fc0")]
    net = keras.Sequential([*layers, keras.layers.BatchNormalization(name="bn")], name="net")
    net.get_layer("fc0").set_weights([KERNEL, BIAS])
    net.save_weights(place / "x.weights.h5")
    return place / "x.weights.h5"


@pytest.mark.parametrize("make", [from_dict, from_npz, from_keras])
def test_supported_files(make: Any, tmp_path: Path) -> None:
    mine = variables(**NET, bn__gamma=[6], bn__moving_mean=[6])
    report = load_weights(mine, make(tmp_path))
    assert report["loaded"][:2] == ["fc0/kernel", "fc0/bias"]
    assert np.array_equal(mine["fc0/kernel"], KERNEL) and np.array_equal(mine["fc0/bias"], BIAS)
    assert ("bn/gamma" in report["loaded"]) == ("keras" in make.__name__)


def test_name_mapping() -> None:
    given = {"conv/W": KERNEL, "conv/b": BIAS, "other/W": KERNEL}
    ends = {"W": "kernel", "b": "bias"}

    def of_layers(name: str) -> str | None:
        layer, _, end = name.partition("/")
        return None if layer == "other" else f"fc0/{ends[end]}"

    mine = variables(net__fc0__kernel=[4, 6], net__fc0__bias=[6])
    report = load_weights(mine, given, names=of_layers, prefix="net")
    assert report["loaded"] == list(mine) and report["excluded"] == ["other/W"]
    mine = variables(**NET)
    report = load_weights(mine, given, names={"conv/W:0": "fc0/kernel"})
    assert report["loaded"] == ["fc0/kernel"] and report["not in the model"] == ["conv/b", "other/W"]


def without_index(place: Path) -> Path:
    place.with_name(place.name + ".index").write_text("no index")
    return place


def with_flipped_bit(place: Path) -> Path:
    path = Path(from_npz(place))
    content = bytearray(path.read_bytes())
    content[content.index(KERNEL.tobytes()[:64]) + 3] ^= 1
    path.write_bytes(content)
    return path


def with_kernel(value: float) -> Any:
    return lambda place: save_by_name(place, fc0__kernel=tf.fill([4, 6], value), fc0__bias=tf.zeros([6]))


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (
            {"W": KERNEL},
            {},
            "it has W, the model has fc0/kernel, fc0/bias, logits/kernel; map the names with load_weights",
        ),
        ({"fc0/kernel": BIAS}, {"mismatch": "error"}, r"shapes differ: fc0/kernel: float32\[6\], here float32\[4,6\]"),
        ({"fc0/bias": BIAS}, {"ignore": "("}, "is not a regular expression"),
        ({"fc0/bias": BIAS}, {"mismatch": "raise"}, "mismatch must be 'skip' or 'error'"),
        ({"fc0/bias": BIAS}, {"names": {"b": "fc0/bias"}}, "there is no b in the given arrays; it has fc0/bias"),
        ({"a": BIAS, "b": BIAS}, {"names": lambda name: "fc0/bias"}, "would be 'fc0/bias', 'b' is one of them"),
        ({"fc0/bias": {}}, {}, "'fc0/bias' must be an array of numbers, not dict"),
        ({"fc0/bias": BIAS}, {"ignore": ["fc"]}, "ignore='fc' matches none of"),
        ("no.npz", {}, "no weights file no.npz"),
        ("bad.npz", {}, "cannot read bad.npz"),
        ("pickle.npz", {}, "cannot read pickle.npz: Object arrays cannot be loaded"),
        ("bad.weights.h5", {}, "cannot read bad.weights.h5"),
        ("x.npy", {}, "not read from x.npy; write them to a .npz"),
        (lambda place: place, {}, "no weights to load: no checkpoint at .*place; give an experiment's directory"),
        (lambda place: place.mkdir() or place, {}, "no weights to load: no checkpoint at"),
        (lambda place: place.with_name("n" * 300), {}, "File name too long"),
        (lambda place: Path(f"{place}\0"), {}, "no checkpoint at .*place"),
        (lambda place: save_by_name(place, x=tf.zeros([3])), {}, "nothing in .*place matches a variable of the model"),
        (without_index, {}, "cannot read the checkpoint"),
        (with_flipped_bit, {}, "Bad CRC-32"),
        (with_kernel(np.nan), {}, "NaN values in fc0/kernel; take a checkpoint of an earlier step"),
    ],
)
def test_unusable_weights_change_nothing(given: Any, options: Any, message: str, scratch: Path) -> None:
    for name in ("bad.npz", "bad.weights.h5", "x.npy"):
        Path(name).write_text("no such file")
    np.savez("pickle.npz", **{"fc0/bias": np.array([None])})
    mine = variables(**NET)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_weights(mine, given(scratch / "place") if callable(given) else given, **options)
    assert "\n" not in str(caught.value)
    assert all(np.all(variable.numpy() == 1.0) for variable in mine.values())


def test_infinite_weights_are_loaded(tmp_path: Path) -> None:
    assert load_weights(variables(**NET), with_kernel(np.inf)(tmp_path / "x"))["loaded"] == ["fc0/kernel", "fc0/bias"]


def test_several_sources_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = tiny_trainer()
    trainer.dump_weights(tmp_path / "all.npz")
    trainer.load_weights(None)
    trainer.load_weights([{"fc0/kernel": KERNEL}, tmp_path / "all.npz", {"fc0/bias": BIAS}], ignore=["logits/.*"])
    assert np.array_equal(trainer.variables["fc0/bias"], BIAS)
    assert not np.array_equal(trainer.variables["fc0/kernel"], KERNEL)
    assert capsys.readouterr().out.count("weights from") == 3
    with pytest.raises(CheckpointError, match="must end with"):
        trainer.dump_weights(tmp_path / "all.txt")


@pytest.mark.parametrize("name", ["model.index", "model.data-00000-of-00001", "meta.json"])
def test_prefix_inside_a_checkpoint_is_verified(name: str, source: Path, tmp_path: Path) -> None:
    """TensorFlow's checksums do not cover some bytes of an index."""
    place = tmp_path / STEP
    shutil.copytree(source / STEP, place)
    content = bytearray((place / name).read_bytes())
    for position in range(0, len(content), max(1, len(content) // 20)):
        content[position] ^= 4
        (place / name).write_bytes(content)
        content[position] ^= 4
        with pytest.raises(CheckpointError, match="is damaged"):
            load_weights(variables(**NET), place / "model")
    (place / "meta.json").unlink()
    with pytest.raises(CheckpointError, match="is damaged: No such file"):
        load_weights(variables(**NET), place / "model")
