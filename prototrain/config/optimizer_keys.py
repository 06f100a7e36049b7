"""The arguments of Keras optimizers as config keys. Arguments that are not listed keep the defaults of Keras."""

from __future__ import annotations

from typing import Any, Final

_BETAS: Final = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}

KERAS_OPTIMIZERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "adadelta": ("Adadelta", {"rho": 0.95, "epsilon": 1e-7, "weight_decay": None}),
    "adafactor": (
        "Adafactor",
        {
            "beta_2_decay": -0.8,
            "epsilon_1": 1e-30,
            "epsilon_2": 1e-3,
            "clip_threshold": 1.0,
            "relative_step": True,
            "weight_decay": None,
        },
    ),
    "adagrad": ("Adagrad", {"initial_accumulator_value": 0.1, "epsilon": 1e-7, "weight_decay": None}),
    "adamax": ("Adamax", {**_BETAS, "weight_decay": None}),
    "adamw": ("AdamW", {"weight_decay": 0.004, **_BETAS, "amsgrad": False}),
    "ftrl": (
        "Ftrl",
        {
            "learning_rate_power": -0.5,
            "initial_accumulator_value": 0.1,
            "l1_regularization_strength": 0.0,
            "l2_regularization_strength": 0.0,
            "l2_shrinkage_regularization_strength": 0.0,
            "beta": 0.0,
            "weight_decay": None,
        },
    ),
    "lamb": ("Lamb", {**_BETAS, "weight_decay": None}),
    "lion": ("Lion", {"beta_1": 0.9, "beta_2": 0.99, "weight_decay": None}),
    "nadam": ("Nadam", {**_BETAS, "weight_decay": None}),
}
"""By method: the class in `keras.optimizers`, and its arguments with the defaults of Keras."""
