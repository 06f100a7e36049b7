"""What a process computes with: what makes other bits is recorded."""

from __future__ import annotations

import os

import pytest

from prototrain.trainers.versions import versions


def test_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions()
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=2")
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    after = versions()
    assert {key for key in before if before[key] != after[key]} == {"flags", "processors"}
    assert after["processors"] == 3
    assert after["flags"] == before["flags"] | {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2", "TF_NUM_INTRAOP_THREADS": "1"}
