"""Predictor that batches requests from several threads."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import ModelError

_Request = tuple[tuple[np.ndarray[Any, Any], ...], Future[list[Any]]]


class AsyncPredictor:
    """Batches single examples from many threads for one predictor.

        with AsyncPredictor(trainer.get_predictor(["state"], ["policy"]), batch_size=16) as predict:
            future = predict.submit(state)  # inputs and outputs have no batch dimension
            (policy,) = future.result()

    Each call of the model takes the requests that are waiting, so a single request does not wait for a full batch.

    Args:
        predictor: a `Predictor`, or another function from batches of arrays to batches of arrays.
        batch_size: the maximum number of requests per call.

    Raises:
        ModelError: `batch_size` is less than 1.
    """

    def __init__(self, predictor: Callable[..., list[Any]], *, batch_size: int = 16) -> None:
        if batch_size < 1:
            raise ModelError(f"batch_size must be at least 1, got {batch_size}")
        self._predictor = predictor
        self._batch_size = batch_size
        self._requests: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        # A thread that runs TensorFlow code could crash the interpreter at exit.
        atexit.register(self.close)
        self._thread = threading.Thread(target=self._serve, name="AsyncPredictor", daemon=True)
        self._thread.start()

    def submit(self, *inputs: Any) -> Future[list[Any]]:
        """Request the outputs for one example. Any thread may call this.

        Args:
            inputs: arrays or numbers without a batch dimension, in the predictor's order.

        Returns:
            A future of the output arrays without a batch dimension, or of the exception that the call raised.

        Raises:
            ModelError: the predictor is closed.
        """
        future: Future[list[Any]] = Future()
        with self._changed:
            if self._is_closed:
                raise ModelError("the AsyncPredictor is closed")
            self._requests.append((tuple(map(np.asarray, inputs)), future))
            self._changed.notify()
        return future

    def __call__(self, *inputs: Any) -> list[Any]:
        """Request the outputs for one example and wait for them; see `submit`."""
        return self.submit(*inputs).result()

    def close(self) -> None:
        """Answer the waiting requests and stop the thread. Later requests raise an error."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        atexit.unregister(self.close)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> AsyncPredictor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self) -> None:
        while requests := self._take():
            fitting: dict[Any, list[_Request]] = {}  # requests in a batch must have the same shapes and dtypes
            for inputs, future in requests:
                if future.set_running_or_notify_cancel():
                    form = tuple((value.shape, value.dtype) for value in inputs)
                    fitting.setdefault(form, []).append((inputs, future))
            for alike in fitting.values():
                self._answer(alike)

    def _take(self) -> list[_Request]:
        """Wait for requests; returns none if the predictor is closed and all are answered."""
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._is_closed)
            return [self._requests.popleft() for _ in range(min(self._batch_size, len(self._requests)))]

    def _answer(self, requests: list[_Request]) -> None:
        rows, futures = zip(*requests, strict=True)
        try:
            outputs = self._predictor(*map(np.stack, zip(*rows, strict=True)))
            for output in tf.nest.flatten(outputs):
                if (shape := np.shape(output))[:1] != (len(rows),):
                    raise ModelError(
                        f"an output for {len(rows)} requests has shape {shape}; it must have a row for each"
                    )
            for index, future in enumerate(futures):
                future.set_result(list(tf.nest.map_structure(lambda output, at=index: output[at], outputs)))
        except BaseException as error:  # no caller may wait forever
            for future in futures:
                if not future.done():
                    future.set_exception(error)
