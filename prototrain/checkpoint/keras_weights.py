"""Reads the weights files of Keras's `save_weights`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def read_h5(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of a ``.weights.h5`` by name.

    The file does not name the weights of a layer, so they are numbered: ``layer/0``, ``layer/1`` and so on.

    Raises:
        ValueError: the file refers to another file, or has no layer names.
        OSError: the file is damaged.
    """
    datasets: dict[str, Any] = {}
    layers: dict[str, str] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Group):
            if "name" in item.attrs:
                layers[f"/{name}".removesuffix("/vars")] = str(item.attrs["name"])
        elif item.external or item.is_virtual:
            raise ValueError(f"{name} is stored in another file")
        else:
            datasets[f"/{name}"] = item

    with h5py.File(path, "r") as file:
        file.visititems(note)
        if not layers:
            raise ValueError("it has no names of layers, which Keras 3.6 and later write")
        return {_by_layer(name, layers): np.asarray(dataset) for name, dataset in datasets.items()}


def _by_layer(name: str, layers: Mapping[str, str]) -> str:
    """Return the name of a dataset by layer names, such as ``net/fc0/1`` for ``/layers/dense/vars/1``."""
    home, _, index = name.rpartition("/vars/")
    parts = home.split("/")
    names = [layers.get("/".join(parts[: end + 1]), "") for end in range(len(parts))]
    return "/".join([*filter(None, names), index])


def by_variable(saved: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the arrays of `read_h5` to the names of a model's variables.

    Numbered arrays are matched by their order within the layer, with trainable variables first, as in Keras. The name
    of the network before the layer names may differ.
    """
    numbered: dict[str, str] = {}
    count: Counter[str] = Counter()
    for name in sorted(variables, key=lambda name: not variables[name].trainable):
        layer = name.rpartition("/")[0]
        numbered[f"{layer}/{count[layer]}"] = name
        count[layer] += 1
    tails = Counter(key.partition("/")[2] for key in numbered)
    known = {tail: name for key, name in numbered.items() if tails[tail := key.partition("/")[2]] == 1} | numbered
    return {known.get(name, known.get(name.partition("/")[2], name)): value for name, value in saved.items()}
