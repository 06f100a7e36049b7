"""Writes trn.jsonl, vld.jsonl and tst.jsonl next to this file, from the digits that scikit-learn ships.

Run it with `python models/simple/data/make_digits.py`; it needs `pip install -e '.[test]'`. It creates
the same files again: 70% / 15% / 15% of the 1,797 digits, each part with the same share of every class.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from prototrain.system.files import write_atomic

SEED = 0
HELD_OUT = 270  # digits in each of vld and tst


def main() -> None:
    digits = load_digits()
    images, labels = digits.data.astype(int), digits.target
    rest, tst = train_test_split(np.arange(len(labels)), test_size=HELD_OUT, stratify=labels, random_state=SEED)
    trn, vld = train_test_split(rest, test_size=HELD_OUT, stratify=labels[rest], random_state=SEED)

    for name, indices in {"trn": trn, "vld": vld, "tst": tst}.items():
        lines = [json.dumps({"example": images[i].tolist(), "label": int(labels[i])}) for i in indices]
        path = Path(__file__).with_name(f"{name}.jsonl")
        write_atomic(path, "\n".join(lines) + "\n")
        print(f"{path.name}: {len(lines)} digits")


if __name__ == "__main__":
    main()
