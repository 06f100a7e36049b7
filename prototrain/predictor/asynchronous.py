"""Many small requests from many threads, answered in few calls of the model."""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from prototrain.errors import ModelError
from prototrain.system.forks import tell_of_forks

Function = Callable[..., list[Any]]
"""From batches to a list of batches, such as a `Predictor`."""


class _Request(NamedTuple):
    inputs: tuple[np.ndarray[Any, Any], ...]
    future: Future[list[Any]]

    @property
    def form(self) -> tuple[Any, ...]:
        """What requests must have in common to be put into one batch."""
        return tuple((value.shape, value.dtype) for value in self.inputs)


_Requests = queue.SimpleQueue[_Request | None]
_open: weakref.WeakSet[AsyncPredictor] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End the threads while Python still can: one that is in TensorFlow when the interpreter ends could crash it."""
    for predictor in list(_open):
        predictor.close(cancel=True)


class AsyncPredictor:
    """Puts what many threads ask for, an example each, into batches for one predictor.

        with AsyncPredictor(trainer.get_predictor(["state"], ["policy"]), batch_size=16) as predict:
            future = predict.submit(state)  # without a batch dimension, and so are the outputs
            (policy,) = future.result()

    A batch is what is waiting when the model is free, so a request that is alone does not wait for others.

    Args:
        predictor: takes and returns batches; a `Predictor`, or any other function of arrays that does.
        batch_size: the most requests in one call.
        threads: how many calls are made at the same time.
    """

    def __init__(self, predictor: Function, *, batch_size: int = 16, threads: int = 1) -> None:
        if batch_size < 1 or threads < 1:
            raise ModelError(f"batch_size and threads must be at least 1, got {batch_size} and {threads}")
        self._requests: _Requests = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_forked = False
        # The threads do not hold this object, so that they end when nobody else does.
        self._threads = [
            threading.Thread(
                target=_serve, args=(predictor, self._requests, batch_size), name="AsyncPredictor", daemon=True
            )
            for _ in range(threads)
        ]
        self._finalizer = weakref.finalize(self, _end, self._requests, threads)
        self._finalizer.atexit = False
        for thread in self._threads:
            thread.start()
        _open.add(self)
        tell_of_forks(self)

    def submit(self, *inputs: Any) -> Future[list[Any]]:
        """Ask for one example's outputs; from any thread.

        Args:
            inputs: arrays or numbers without a batch dimension, in the order in which the predictor takes them.

        Returns:
            a future of the arrays in the order in which the predictor returns them, without a batch dimension; what
            the call fails with is its exception.

        Raises:
            ModelError: it is closed, or this is a forked child.
        """
        request = _Request(tuple(map(np.asarray, inputs)), Future())
        if self._is_forked:
            raise ModelError("an AsyncPredictor has no threads in a forked child; make one there")
        with self._lock:
            if self._is_closed:
                raise ModelError("the AsyncPredictor is closed")
            self._requests.put(request)
        return request.future

    def __call__(self, *inputs: Any) -> list[Any]:
        """Ask for one example's outputs, and wait for them; see `submit`."""
        return self.submit(*inputs).result()

    def close(self, *, cancel: bool = False) -> None:
        """Take no more requests, answer those that wait, and end the threads. What is closed already stays so.

        Args:
            cancel: cancel the requests that wait.
        """
        with self._lock:
            self._is_closed = True
            if cancel:
                _cancel(self._requests)
            self._finalizer()  # behind the last request
        for thread in self._threads:
            if thread is not threading.current_thread() and not self._is_forked:
                thread.join()

    def after_fork(self) -> None:
        """Let go in a forked child, where there are no threads to answer."""
        self._is_forked = True
        self._finalizer.detach()

    def __enter__(self) -> AsyncPredictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=error is not None)


def _end(requests: _Requests, threads: int) -> None:
    for _ in range(threads):
        requests.put(None)


def _cancel(requests: _Requests) -> None:
    with suppress(queue.Empty):
        while (request := requests.get_nowait()) is not None:
            request.future.cancel()
        requests.put(None)


def _serve(predictor: Function, requests: _Requests, batch_size: int) -> None:
    """Answer requests until None comes."""
    goes_on = True
    while goes_on:
        batch = [requests.get()]
        with suppress(queue.Empty):
            while batch[-1] is not None and len(batch) < batch_size:
                batch.append(requests.get_nowait())
        goes_on = batch[-1] is not None
        waiting = [
            request for request in batch if request is not None and request.future.set_running_or_notify_cancel()
        ]
        del batch
        for form in dict.fromkeys(request.form for request in waiting):
            _answer(predictor, [request for request in waiting if request.form == form])


def _answer(predictor: Function, requests: list[_Request]) -> None:
    try:
        columns = zip(*(request.inputs for request in requests), strict=True)
        outputs = predictor(*map(np.stack, columns))
        rows = [[_row(output, index, len(requests)) for output in outputs] for index in range(len(requests))]
    except BaseException as error:  # whoever waits is told, and the others shall not wait for ever
        for request in requests:
            request.future.set_exception(error)
        return
    for request, row in zip(requests, rows, strict=True):
        request.future.set_result(row)


def _row(output: Any, index: int, count: int) -> Any:
    if isinstance(output, dict):
        return {name: _row(value, index, count) for name, value in output.items()}
    if isinstance(output, tuple | list):
        return type(output)(_row(value, index, count) for value in output)
    shape: Any = getattr(output, "shape", ())
    if not len(shape) or shape[0] != count:
        raise ModelError(
            f"for {count} requests in one batch there is an output of shape {tuple(shape)}; it must have a row for each"
        )
    return output[index]
