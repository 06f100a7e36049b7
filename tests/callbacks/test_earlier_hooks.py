"""Hooks under tensorpack's names are refused in one line, methods of the user's own are not."""

from __future__ import annotations

from typing import Any

import pytest

from prototrain.callbacks import Callback, Monitor, ProxyCallback
from prototrain.callbacks.listing import checked
from prototrain.errors import CallbackError


class Old(Callback):
    def _trigger_epoch(self) -> None:
        self._before_train()

    def _before_train(self) -> None:
        pass


class Reads(Callback):
    def _before_run(self, context: Any) -> None:
        pass


class Base(Callback):
    def _setup_graph(self) -> None:
        pass


class Inherits(Base):
    pass


class OldMonitor(Monitor):
    def process_scalar(self, name: str, value: float) -> None:
        pass


class OnAll(Callback):
    _chief_only = False


class Helper(Callback):
    """Has methods of these names for itself."""

    def trigger(self) -> None:
        self._trigger_epoch()

    def _trigger_epoch(self) -> None:
        pass

    def _trigger(self) -> None:
        pass


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Old(), r"Old defines _(\w+), which nobody asks for here; call it \1\(\)"),
        (Reads(), r"Reads defines _before_run, .* call it before_run\(\), which may use .* name them in watches\(\)"),
        (Inherits(), r"Base defines _setup_graph, .* call it setup\(\)"),
        (ProxyCallback(Base()), r"Base defines _setup_graph"),
        (OldMonitor(), r"OldMonitor defines process_scalar, .* call it put_scalar\(name, value, step\)"),
        (OnAll(), "OnAll sets _chief_only, .* call it chief_only"),
        (Helper(), None),
    ],
    ids=repr,
)
def test_hooks_of_tensorpack(callback: Callback, message: str | None) -> None:
    if message is None:
        assert checked([callback]) == [callback]
        return
    with pytest.raises(CallbackError, match=message):
        checked([callback])
    with pytest.raises(CallbackError, match=message):
        callback.every(steps=1)
