"""Hooks under tensorpack's names, which nothing would call, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from prototrain.callbacks import Callback, Monitor, ProxyCallback
from prototrain.callbacks.group import checked
from prototrain.errors import CallbackError


class Old(Callback):
    def _trigger_epoch(self) -> None:
        pass


class Base(Callback):
    def _setup_graph(self) -> None:
        pass


class Inherits(Base):
    pass


class OldMonitor(Monitor):
    def process_scalar(self, name: str, value: Any) -> None:
        pass


class OnAll(Callback):
    _chief_only = False


class Both(Callback):
    def trigger_epoch(self) -> None:
        self._trigger_epoch()

    def _trigger_epoch(self) -> None:
        pass


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Old(), "Old has _trigger_epoch, .* call it trigger_epoch"),
        (Inherits(), "_setup_graph, .* call it setup"),
        (ProxyCallback(Base()), "_setup_graph"),
        (OldMonitor(), "process_scalar, .* call it put_scalar"),
        (OnAll(), "_chief_only, .* call it chief_only"),
        (Both(), None),
    ],
    ids=repr,
)
def test_names(callback: Callback, message: str | None) -> None:
    if message is None:
        assert checked([callback]) == [callback]
        return
    with pytest.raises(CallbackError, match=message):
        checked([callback])
