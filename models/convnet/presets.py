"""Named networks for `model.layers`."""

from __future__ import annotations

from typing import Any

# The eight layers of "ImageNet Classification with Deep Convolutional Neural Networks" (Krizhevsky et al., 2012), not
# divided into groups, and with batch normalization where the paper has local response normalization. Made for images of
# 227 x 227; 67 x 67 are the smallest that pass.
ALEXNET: list[dict[str, Any]] = [
    {"type": "conv", "filters": 96, "kernel_size": 11, "strides": 4, "padding": "valid", "activation": "relu"},
    {"type": "batch_norm"},
    {"type": "pool", "size": 3, "strides": 2},
    {"type": "conv", "filters": 256, "kernel_size": 5, "activation": "relu"},
    {"type": "batch_norm"},
    {"type": "pool", "size": 3, "strides": 2},
    {"type": "conv", "filters": 384, "kernel_size": 3, "activation": "relu"},
    {"type": "conv", "filters": 384, "kernel_size": 3, "activation": "relu"},
    {"type": "conv", "filters": 256, "kernel_size": 3, "activation": "relu"},
    {"type": "pool", "size": 3, "strides": 2},
    {"type": "fc", "units": 4096, "activation": "relu"},
    {"type": "dropout", "rate": 0.5},
    {"type": "fc", "units": 4096, "activation": "relu"},
    {"type": "dropout", "rate": 0.5},
    {"type": "fc", "units": "classes"},
]

PRESETS = {"alexnet": ALEXNET}
