"""What earlier attempts at a run have left behind beside checkpoints."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prototrain.errors import ExperimentError
from prototrain.experiment.record import read_attempts
from prototrain.experiment.rows import rows_of


@dataclass(frozen=True, kw_only=True)
class Past:
    """The attempts at a run since it was last begun at step 0.

    Attributes:
        steps: how far they came, as far as is known; one that was killed tells no more than its metrics.
        has_saved: whether there has been a checkpoint of theirs.
    """

    steps: int
    has_saved: bool


def read_past(record: Path, metrics: Path) -> Past | None:
    """Find out whether there were steps before.

    Args:
        record: the run.json.
        metrics: the metrics.jsonl.

    Returns:
        None if no step is known of, and no attempt was killed.

    Raises:
        ExperimentError: a file cannot be read.
    """
    try:
        made = max((row["step"] for row in rows_of(metrics)), default=0)
    except OSError as error:
        raise ExperimentError(f"cannot read {metrics}: {error.strerror}") from error
    attempts = []
    with suppress(ExperimentError):  # one that is damaged says as little as one that is not there
        attempts = [attempt for attempt in read_attempts(record) if attempt.first_step is not None]
    if not attempts:
        # Every run writes a record before its first step, so something was deleted here.
        return Past(steps=made, has_saved=True) if made else None
    first = max((number for number, attempt in enumerate(attempts) if attempt.first_step == 0), default=0)
    latest = attempts[first:]
    steps = max([made, *(attempt.step or attempt.first_step or 0 for attempt in latest)])
    has_saved = any(attempt.has_saved or (attempt.start or "").startswith("resumed") for attempt in latest)
    was_killed = latest[-1].state == "running"
    return Past(steps=steps, has_saved=has_saved) if steps or has_saved or was_killed else None
