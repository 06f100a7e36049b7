"""Run by `export` in a fresh process: load an export with nothing but TensorFlow and run its signatures.

    python -I reload_export.py SAVED_MODEL INPUTS OUTPUTS

SAVED_MODEL is a directory, or the file of a compact export. INPUTS and OUTPUTS are prefixes of TensorFlow bundles with
tensors called ``<case>/<input>`` and ``<case>/<signature>:<output>``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

INPUTS, OUTPUTS = "inputs/", "outputs/"
"""Prefixes of the names of inputs and outputs in a compact export's graph."""


def main(saved_model: str, inputs: str, outputs: str) -> None:
    """Write the outputs of the signatures for each case."""
    import tensorflow as tf

    if Path(saved_model).is_dir():
        signatures = tf.saved_model.load(saved_model).signatures
    else:
        signatures = {"serving_default": load_compact(saved_model)}
    reader = tf.train.load_checkpoint(inputs)
    cases: dict[str, dict[str, tf.Tensor]] = {}
    for key in reader.get_variable_to_shape_map():
        case, _, name = key.partition("/")
        cases.setdefault(case, {})[name] = tf.convert_to_tensor(reader.get_tensor(key))
    found = {}
    for case, given in cases.items():
        for signature in signatures:
            of_one = signatures[signature](**given)
            found.update({f"{case}/{signature}:{name}": value for name, value in of_one.items()})
    write(outputs, found)


def load_compact(path: str) -> Any:
    """A function from the inputs of a compact export, by name, to its outputs by name.

    Raises:
        ValueError: it is not a compact export.
        OSError: it cannot be read.
    """
    import tensorflow as tf

    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(Path(path).read_bytes())
    nodes = [node.name for node in definition.node]
    inputs = [name.removeprefix(INPUTS) for name in nodes if name.startswith(INPUTS)]
    outputs = [name.removeprefix(OUTPUTS) for name in nodes if name.startswith(OUTPUTS)]
    if not inputs or not outputs:
        raise ValueError("it is not one: there are no inputs or no outputs in it")
    wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(definition, name=""), [])
    graph = wrapped.graph
    feeds = [graph.get_tensor_by_name(f"{INPUTS}{name}:0") for name in inputs]
    pruned = wrapped.prune(feeds, {name: graph.get_tensor_by_name(f"{OUTPUTS}{name}:0") for name in outputs})

    def call(**given: Any) -> dict[str, Any]:
        if sorted(given) != sorted(inputs):
            raise TypeError(f"the export takes {', '.join(sorted(inputs))} by name, not {', '.join(sorted(given))}")
        tensors = [tf.convert_to_tensor(given[name], feed.dtype) for name, feed in zip(inputs, feeds, strict=True)]
        return dict(pruned(*tensors))

    call.inputs, call.outputs = inputs, outputs  # type: ignore[attr-defined]
    return call


def write(prefix: str, tensors: dict[str, Any]) -> None:
    """Write a bundle of tensors."""
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(tensors), shape_and_slices=[""] * len(tensors), tensors=list(tensors.values())
    )


if __name__ == "__main__":
    sys.modules["prototrain"] = None  # type: ignore[assignment]  # whoever imports it fails
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
