"""Many small requests from many threads, answered in few calls of the model."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from prototrain.errors import ModelError


class _Request(NamedTuple):
    inputs: tuple[np.ndarray[Any, Any], ...]
    future: Future[list[Any]]

    @property
    def form(self) -> tuple[Any, ...]:
        """Shapes and types; requests of one form fit into one batch."""
        return tuple((value.shape, value.dtype) for value in self.inputs)


class AsyncPredictor:
    """Batches single examples from many threads for one predictor.

        with AsyncPredictor(trainer.get_predictor(["state"], ["policy"]), batch_size=16) as predict:
            future = predict.submit(state)  # without a batch dimension, and so are the outputs
            (policy,) = future.result()

    A batch holds the requests that are waiting when the model is free, so a single request does not wait for others.

    Args:
        predictor: takes and returns batches; a `Predictor` or a function of arrays.
        batch_size: the most requests in one call.
        threads: the number of calls at the same time.
    """

    def __init__(self, predictor: Callable[..., list[Any]], *, batch_size: int = 16, threads: int = 1) -> None:
        if batch_size < 1 or threads < 1:
            raise ModelError(f"batch_size and threads must be at least 1, got {batch_size} and {threads}")
        self._predictor = predictor
        self._batch_size = batch_size
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()
        # A thread that is inside TensorFlow when the interpreter ends could crash it.
        atexit.register(self.close, cancel=True)
        self._threads = [
            threading.Thread(target=self._serve, name="AsyncPredictor", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, *inputs: Any) -> Future[list[Any]]:
        """Request one example's outputs; from any thread.

        Args:
            inputs: arrays or numbers without a batch dimension, in the predictor's order.

        Returns:
            a future of the arrays in the predictor's order, without a batch dimension. An exception of the call becomes
            the future's.

        Raises:
            ModelError: it is closed, or this is a forked child, which has no threads.
        """
        if os.getpid() != self._process:
            raise ModelError("an AsyncPredictor has no threads in a forked child; make one there")
        request = _Request(tuple(map(np.asarray, inputs)), Future())
        with self._lock:
            if self._is_closed:
                raise ModelError("the AsyncPredictor is closed")
            self._requests.put(request)
        return request.future

    def __call__(self, *inputs: Any) -> list[Any]:
        """Request one example's outputs, and wait for them; see `submit`."""
        return self.submit(*inputs).result()

    def close(self, *, cancel: bool = False) -> None:
        """Answer the waiting requests, and end the threads. Further requests are refused.

        Args:
            cancel: cancel the waiting requests instead.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            self._is_closed = True
            if cancel:
                for request in self._waiting():
                    request.future.cancel()
            for _ in self._threads:
                self._requests.put(None)
        atexit.unregister(self.close)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> AsyncPredictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=error is not None)

    def _waiting(self, most: float = float("inf")) -> list[_Request]:
        """Take requests from the queue without waiting, up to the one that ends a thread."""
        found: list[_Request] = []
        with suppress(queue.Empty):
            while len(found) < most:
                request = self._requests.get_nowait()
                if request is None:
                    self._requests.put(None)
                    break
                found.append(request)
        return found

    def _serve(self) -> None:
        while (first := self._requests.get()) is not None:
            batch = [first, *self._waiting(self._batch_size - 1)]
            batch = [request for request in batch if request.future.set_running_or_notify_cancel()]
            for form in dict.fromkeys(request.form for request in batch):
                self._answer([request for request in batch if request.form == form])

    def _answer(self, requests: list[_Request]) -> None:
        try:
            columns = zip(*(request.inputs for request in requests), strict=True)
            outputs = self._predictor(*map(np.stack, columns))
            rows = [_row(outputs, index, len(requests)) for index in range(len(requests))]
        except BaseException as error:  # no caller may wait forever
            for request in requests:
                request.future.set_exception(error)
            return
        for request, row in zip(requests, rows, strict=True):
            request.future.set_result(list(row))


def _row(outputs: Any, index: int, count: int) -> Any:
    def of(output: Any) -> Any:
        shape = tuple(getattr(output, "shape", ()))
        if not shape or shape[0] != count:
            raise ModelError(f"an output for {count} requests has shape {shape}; it must have a row for each of them")
        return output[index]

    return tf.nest.map_structure(of, outputs)
