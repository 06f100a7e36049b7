"""Every private name of TensorFlow and Keras that prototrain uses: one function for each need.

No other module touches one. `tests/test_private_api.py` has a test for each function, which fails if a new version of
TensorFlow or Keras has changed what the function relies on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TypeVar, cast

from prototrain.errors import PrototrainError

_F = TypeVar("_F", bound=Callable[..., Any])


def private(function: _F) -> _F:
    """Decorator that turns a missing private name into one clear line.

    Only an error of the function itself counts, not one of the code that it calls.

    Raises:
        PrototrainError: it names what this version of TensorFlow or Keras lacks.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (AttributeError, ImportError) as error:
            frame = error.__traceback__ and error.__traceback__.tb_next
            if frame is None or frame.tb_next is not None:
                raise
            versions = f"TensorFlow {version('tensorflow')} with Keras {version('keras')}"
            raise PrototrainError(
                f"{function.__name__}() of prototrain does not work with {versions}: {error}; "
                "install versions that docs/versions.md lists"
            ) from error

    return cast(_F, call)
