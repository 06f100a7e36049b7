"""Whether what a checkpoint holds fits the variables."""

from __future__ import annotations

import numpy as np
import pytest

from prototrain.checkpoint.fit import check_fit
from prototrain.errors import CheckpointError


def test_the_numbers_of_layers_are_only_named_where_they_differ() -> None:
    one, other = {"dense_1/kernel": np.zeros([2])}, {"dense_1/kernel": np.zeros([3])}
    with pytest.raises(CheckpointError, match=r"float64\[3\] there and float64\[2\] here; do this$"):
        check_fit(one, other, "x", cure="do this")
    with pytest.raises(CheckpointError, match="Keras numbers unnamed layers by process"):
        check_fit(one, {"dense_2/kernel": np.zeros([2])}, "x")
