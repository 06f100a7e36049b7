"""Imports TensorFlow without its start-up messages."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_chosen_by_user = os.environ.get(_LEVEL, "3") != "3"  # a process that this one starts inherits the setting
os.environ.setdefault(_LEVEL, "3")


def import_tensorflow() -> None:
    """Import TensorFlow without its start-up messages, unless the user has set ``TF_CPP_MIN_LOG_LEVEL``.

    Some messages are written by C++ code directly to the error stream of the process before any log level is read, so
    the stream is redirected during the import. The messages are shown if the import fails. Ctrl-C ends the process at
    once and without a message, since there is nothing to save yet.
    """
    if "tensorflow" in sys.modules or _chosen_by_user:
        return
    sys.stderr.flush()
    kept = os.dup(2)
    is_main = threading.current_thread() is threading.main_thread()
    is_usual = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        except BaseException:
            said.seek(0)
            os.write(kept, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            if is_usual:
                signal.signal(signal.SIGINT, signal.default_int_handler)
