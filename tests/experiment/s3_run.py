"""A run of a tiny model at a URL, in a separate process: ``python s3_run.py URL STEPS N``.

The process is killed right ahead of making the N-th checkpoint whole, when all its other files are there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from prototrain.experiment import remote
from prototrain.system.storage import Storage
from tests.experiment.test_s3 import train


def main() -> None:
    url, steps, deadly = sys.argv[1:]
    upload, whole = Storage.upload, []

    def upload_or_die(self: Storage, paths: dict[str, Path]) -> None:
        if any(name.endswith("/meta.json") for name in paths):
            whole.append(paths)
            if len(whole) == int(deadly):
                os.kill(os.getpid(), signal.SIGKILL)
        upload(self, paths)

    Storage.upload = upload_or_die  # type: ignore[method-assign,assignment]
    remote.UPLOAD_SECONDS = 0.1
    train(url, int(steps))


if __name__ == "__main__":
    main()
