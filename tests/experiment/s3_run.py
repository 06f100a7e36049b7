"""A run of a tiny model at a URL, in a process of its own: ``python s3_run.py URL STEPS N``.

The process is killed right ahead of making the N-th checkpoint whole, when all its other files are there.
"""

from __future__ import annotations

import os
import signal
import sys

from prototrain.experiment import uploads
from prototrain.system.storage import Storage
from tests.experiment.test_s3 import train


def main() -> None:
    url, steps, deadly = sys.argv[1:]
    write, whole = Storage.write, []

    def write_or_die(self: Storage, name: str, content: bytes) -> None:
        if name.endswith("/meta.json"):
            whole.append(name)
            if len(whole) == int(deadly):
                os.kill(os.getpid(), signal.SIGKILL)
        write(self, name, content)

    Storage.write = write_or_die  # type: ignore[method-assign]
    uploads.UPLOAD_SECONDS = 0.1
    train(url, int(steps))


if __name__ == "__main__":
    main()
