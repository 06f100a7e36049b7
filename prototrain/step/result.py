"""What a compiled call did: made steps, or failed in one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from prototrain.errors import PrototrainError

_NODE = re.compile(r"\[\[(?:\{\{function_node [^}]*\}\})?(?:\{\{node )?([^\]}]*)")

_EMPTY_ELEMENT = "components but got"
"""What a dataset's iterator says, whatever op it is read by, of an element that is not what its stage promises;
`snapshot` has been seen to give such ones."""


class Outcome(NamedTuple):
    """What a compiled call has returned.

    Attributes:
        done: completed steps, int.
        finite: whether none had to be left out, bool.
        ended: whether it met the end of the data, bool.
        waited: seconds spent on waiting for batches, float64.
        single: the last step's float32 scalars, see `Packing`.
        double: its other scalars, as float64.
    """

    done: int
    finite: bool
    ended: bool
    waited: float
    single: tf.Tensor
    double: tf.Tensor

    @classmethod
    def on_host(
        cls, *, done: Any, waited: Any, single: tf.Tensor, double: tf.Tensor, finite: Any = True, ended: Any = False
    ) -> Outcome:
        """That of tensors; the last two are left out where they cannot be another."""
        return cls(int(done), bool(finite), bool(ended), float(waited), single, double)


@dataclass(kw_only=True)
class StepResult:
    """What a call of many steps has done.

    Attributes:
        steps: how many it completed.
        outputs: the last step's scalars by name.
        data_ended: whether it met the end of the data.
        watched: tensors of the step by name, if it was a watched one.
        summary_events: TensorBoard events that `tf.summary` calls in it made, if it was a watched one.
        waiting: seconds spent on waiting for batches.
        tracing: seconds of a first call, most of which is tracing.
    """

    steps: int
    outputs: Mapping[str, float] = field(default_factory=dict)
    data_ended: bool = False
    watched: Mapping[str, Any] = field(default_factory=dict)
    summary_events: Sequence[Any] = ()
    waiting: float = 0.0
    tracing: float = 0.0


class StepFailure(Exception):
    """A call failed in one of its steps, for which it had read a batch already.

    Attributes:
        error: for the user.
        done: what the call had completed before.
        is_whole: whether the state is that of the last completed step.
    """

    def __init__(self, error: PrototrainError, done: StepResult, *, is_whole: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.done = done
        self.is_whole = is_whole


def stage(error: tf.errors.OpError) -> str:
    """The part of an iteration that a TensorFlow error comes from: "data" or "model".

    The message ends with the op that failed and, if it failed inside another one, with that one: a dataset's ops fail
    inside the op that reads the iterator.
    """
    text = str(error.message)
    if _EMPTY_ELEMENT in text:
        return "data"
    nodes = _NODE.findall(text)
    outermost = text.rpartition("[Op:")[2] if "[Op:Iterator" in text else nodes[-1] if nodes else ""
    return "data" if "IteratorGetNext" in outermost else "model"
