"""Script that `export` runs in a new process: load an export with TensorFlow only, and run its signatures.

    python -I reload_export.py SAVED_MODEL INPUTS OUTPUTS

INPUTS and OUTPUTS are prefixes of TensorFlow bundles with tensors named ``<case>/<input>`` and
``<case>/<signature>:<output>``.
"""

from __future__ import annotations

import sys
from typing import Any


def main(saved_model: str, inputs: str, outputs: str) -> None:
    """Run all signatures on each case and write their outputs."""
    import tensorflow as tf

    signatures = tf.saved_model.load(saved_model).signatures
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


def write(prefix: str, tensors: dict[str, Any]) -> None:
    """Write a bundle of tensors."""
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(tensors), shape_and_slices=[""] * len(tensors), tensors=list(tensors.values())
    )


if __name__ == "__main__":
    sys.modules["prototrain"] = None  # type: ignore[assignment]  # makes imports of prototrain fail
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
