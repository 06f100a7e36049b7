"""The program of a worker that a supervisor has started: ``python -m prototrain.cluster.work DESCRIPTOR``."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing import spawn
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from prototrain.cluster.supervision import Group, supervise
from prototrain.errors import ConfigError
from prototrain.system.tracebacks import for_terminal


def pack(function: Callable[[], object]) -> dict[str, Any]:
    """What another process needs to call a function, as `multiprocessing` does it.

    Raises:
        ConfigError: the function cannot be found by its name there.
    """
    try:
        packed = bytes(ForkingPickler.dumps(function))
        pickle.loads(packed)
    except (pickle.PicklingError, AttributeError, TypeError, ImportError) as error:
        raise ConfigError(
            f"{function!r} cannot be called in other processes: it must be a function of a module or a script, or a "
            f"functools.partial of one ({error})"
        ) from error
    preparation = spawn.get_preparation_data("worker")
    if b"__main__" not in packed:
        preparation = {name: value for name, value in preparation.items() if not name.startswith("init_main")}
    if "init_main_from_path" not in preparation and "init_main_from_name" not in preparation and b"__main__" in packed:
        raise ConfigError(f"{function!r} is of no file that other processes could run; write it into a module")
    preparation.pop("authkey", None)
    return {"preparation": preparation, "function": packed}


def main(descriptor: int) -> int:
    """Do what the supervisor wants.

    Returns:
        the exit code.
    """
    # Ray holds this back in all that it starts.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection = Connection(descriptor)
    order = pickle.loads(connection.recv_bytes())
    supervision = supervise(connection, Group(**order["group"]))
    try:
        _prepare(order["preparation"])
        pickle.loads(order["function"])()
    except Exception as error:
        supervision.fail(error)
        sys.stderr.write(for_terminal(error))
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    return 0


def _prepare(preparation: dict[str, Any]) -> None:
    """Be what the supervisor's process is: its arguments, path and directory, as far as these are here, too."""
    there = preparation.pop("dir", None)
    if there is not None and os.path.isdir(there):
        os.chdir(there)
    preparation.pop("orig_dir", None)
    spawn.prepare(preparation)


def program() -> NoReturn:
    """Be a worker: the first argument is the descriptor of the line to its host."""
    _end(main(int(sys.argv[1])))


def _end(code: int) -> NoReturn:
    """End the process; after a failure without Python's own end, where TensorFlow waits for workers that are gone."""
    if code == 0:
        sys.exit()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # The module itself, so that there is one of each thing in it.
    from prototrain.cluster import work

    work.program()
