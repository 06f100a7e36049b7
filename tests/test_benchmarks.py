"""The benchmarks run; their times are not tested."""

from __future__ import annotations

import pytest

from benchmarks.workloads import WORKLOADS, Workload


@pytest.mark.parametrize("workload", WORKLOADS.values())
def test_workloads(workload: Workload) -> None:
    batch = next(iter(workload.batches(lambda x, y: (x, y))))
    assert batch[0].shape == (workload.batch, *workload.shape)
    assert batch[0].dtype == workload.dtype
