"""Hooks under tensorpack's names, which are never called, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from prototrain.callbacks import Callback, Monitor, ProxyCallback
from prototrain.errors import CallbackError


@pytest.mark.parametrize(
    ("base", "members", "message"),
    [
        (Callback, ["_trigger_epoch"], "Old has _trigger_epoch, .* call it trigger_epoch"),
        (ProxyCallback, ["_setup_graph"], "_setup_graph, .* call it setup"),
        (Monitor, ["process_scalar"], "process_scalar, .* call it put_scalar"),
        (Callback, ["_chief_only"], "_chief_only, .* call it chief_only"),
        (Callback, ["trigger_epoch", "_trigger_epoch"], None),
    ],
)
def test_names(base: type[Any], members: list[str], message: str | None) -> None:
    namespace = dict.fromkeys(members, lambda self: None)
    if message is None:
        type("Old", (base,), namespace)
        return
    with pytest.raises(CallbackError, match=message):
        type("Old", (base,), namespace)
