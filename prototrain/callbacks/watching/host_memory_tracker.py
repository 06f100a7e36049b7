"""How much memory the process takes."""

from __future__ import annotations

from prototrain.callbacks.base import Callback

_GIB = 2**30


class HostMemoryTracker(Callback):
    """Records the memory of this process and its children, and what is free on the host, in GiB.

    The names are ``perf/host_memory_gib`` and ``perf/host_memory_available_gib``. A process that ends while it is
    looked at counts as nothing.
    """

    def setup(self) -> None:
        import psutil  # needed by this callback alone

        self._psutil = psutil
        self._process = psutil.Process()

    def trigger(self) -> None:
        used = 0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                used += process.memory_info().rss
            except self._psutil.NoSuchProcess:
                continue
        self.trainer.monitors.put_scalar("perf/host_memory_gib", used / _GIB)
        self.trainer.monitors.put_scalar(
            "perf/host_memory_available_gib", self._psutil.virtual_memory().available / _GIB
        )
