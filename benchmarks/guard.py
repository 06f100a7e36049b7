"""Compares the speed of two commits, in turns, by a few ratios.

    python -m benchmarks.guard main            # the files as they are here, against the commit `main`
    python -m benchmarks.guard main HEAD       # two commits
    python -m benchmarks.guard main --rounds 12

Each round starts one process per commit, in alternating order. A process measures each figure next to a reference that
does not use prototrain and reports the ratio of the two, so the load of the machine cancels out. A change counts if it
is larger than the noise, which is estimated from the differences between rounds. The exit code is 1 if a figure has
become slower.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from prototrain.system.terminal import Table

HERE = Path(__file__).resolve().parents[1]
FIGURES = {
    "steps": "a step of a small network with the usual callbacks / one in a loop of TensorFlow's own",
    "callback": "a step with a callback for each / a call of a compiled step by hand",
    "towers": "a step on two towers / one by hand under MirroredStrategy",
    "start": "building and the first step / importing TensorFlow, in processor time",
    "save": "saving 40 MB / writing and syncing them by hand",
}
LEAST = 0.03  # smaller changes are ignored


class Verdict(NamedTuple):
    """The result of the rounds for one figure.

    Attributes:
        change: the relative change in time; 0.1 means 10% slower.
        noise: the smallest change that counts.
    """

    change: float
    noise: float

    @property
    def word(self) -> str:
        """`same`, `faster` or `SLOWER`."""
        return "same" if abs(self.change) <= self.noise else "SLOWER" if self.change > 0 else "faster"


def judge(before: list[float], after: list[float]) -> Verdict:
    """Compare the ratios of two commits, one per round; the order of the commits alternates.

    The noise is four standard errors of the mean over pairs of rounds. A pair has both orders, so the order cancels
    out. Four errors instead of two, because a few pairs may agree by chance.
    """
    rounds = [math.log(now / then) for then, now in zip(before, after, strict=True)]
    logs = [(one + other) / 2 for one, other in zip(rounds[::2], rounds[1::2], strict=True)]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return Verdict(math.expm1(statistics.median(logs)), max(LEAST, math.expm1(4 * error)))


def main(arguments: list[str] | None = None) -> int:
    """Measure both commits and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.guard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?", default="HEAD", help="a commit")
    parser.add_argument("after", nargs="?", help="another commit (default: the working tree)")
    parser.add_argument("--rounds", type=int, default=8, help="an even number (default: %(default)s)")
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rounds < 4 or options.rounds % 2:
        parser.error("--rounds must be even and at least 4: in every second one the commits come the other way around")
    if options.child:
        print(json.dumps({name: MEASURES[name]() for name in options.figures}))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        trees = [_tree(commit, Path(directory) / side) for side, commit in vars(options).items() if side in _SIDES]
        found: list[list[dict[str, float]]] = [[], []]
        for number in range(options.rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                found[side].append(_measure(trees[side], options.figures))
            print(f"round {number + 1} of {options.rounds}", flush=True)
        for tree in trees:
            if tree != HERE:
                _git("worktree", "remove", "--force", str(tree))
    verdicts = {name: judge(*([one[name] for one in side] for side in found)) for name in options.figures}
    rows = [
        (FIGURES[name], *(statistics.median(one[name] for one in side) for side in found), *_in_percent(verdict))
        for name, verdict in verdicts.items()
    ]
    print(Table(rows, ["ratio", "before", "after", "change", "noise", ""], number_format=".3g"))
    return int(any(verdict.word == "SLOWER" for verdict in verdicts.values()))


_SIDES = ("before", "after")


def _in_percent(verdict: Verdict) -> tuple[str, str, str]:
    return f"{verdict.change:+.1%}", f"{verdict.noise:.1%}", verdict.word


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=HERE, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _tree(commit: str | None, place: Path) -> Path:
    if commit is None:
        return HERE
    try:
        _git("worktree", "add", "--detach", str(place), commit)
    except subprocess.CalledProcessError:
        raise SystemExit(f"{commit} is no commit of {HERE}") from None
    return place


def _measure(tree: Path, figures: list[str]) -> dict[str, float]:
    """Run one process with the prototrain of a directory. The measuring code is always that of this file."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", "--figures", *figures]
    environment = {**os.environ, "PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}:\n{done.stderr[-3000:]}")
    figures_of: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures_of


WIDTH, BATCH, STEPS, TURNS = 64, 32, 1000, 9
_IMPORTED: dict[str, float] = {}


def _tensorflow() -> None:
    begin = time.process_time()
    import keras  # noqa: F401
    import tensorflow as tf

    _IMPORTED.setdefault("seconds", time.process_time() - begin)
    if len(tf.config.list_physical_devices("CPU")) == 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def _data() -> Any:
    import numpy as np
    import tensorflow as tf

    x = np.random.default_rng(1).normal(size=(BATCH * 8, WIDTH)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices({"x": x, "y": x[:, :1]}).batch(BATCH, drop_remainder=True).cache()


def _model(width: int = WIDTH) -> Any:
    import keras
    import tensorflow as tf

    from prototrain import Config

    class Model:
        config = Config(
            {
                "trainer.experiment_name": "guard",
                "model.batch_size": BATCH,
                "model.num_steps": STEPS,
                "model.optimizer.method": "sgd",
                "model.lr_schedule.method": "constant",
                "model.lr_schedule.constant.value": 0.01,
            }
        )

        def datasets(self) -> dict[str, Any]:
            return {"trn": _data(), "vld": _data()}

        def build(self, inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
            hidden = keras.layers.Dense(width, activation="relu", name="hidden")(inputs["x"])
            guess = keras.layers.Dense(1, name="guess")(hidden)
            return {"guess": guess, "loss": tf.reduce_mean((guess - inputs["y"]) ** 2)}

    return Model()


def _by_hand(step_of: Callable[[Callable[..., object]], Callable[..., object]] = lambda step: step) -> Any:
    """Return the same step in plain TensorFlow, as a function of a batch.

    Args:
        step_of: wraps the step.
    """
    import keras
    import tensorflow as tf

    layers = [keras.layers.Dense(WIDTH, activation="relu"), keras.layers.Dense(1)]
    layers[1](layers[0](tf.zeros([1, WIDTH])))
    variables = [variable for layer in layers for variable in layer.trainable_variables]
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(variables)

    def step(batch: dict[str, Any]) -> None:
        with tf.GradientTape() as tape:
            guess = layers[1](layers[0](batch["x"]))
            loss = tf.reduce_mean((guess - batch["y"]) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return step_of(step)


def _in_one_loop(step: Callable[..., object], iterator: Any) -> Callable[[int], None]:
    import tensorflow as tf

    @tf.function(autograph=False)
    def loop(n: Any) -> None:
        def body(k: Any) -> tuple[Any]:
            step(next(iterator))
            return (k + 1,)

        tf.while_loop(lambda k: k < n, body, [tf.constant(0)])

    return lambda n: loop(tf.constant(n))


def _in_turns(trainer: Any, callbacks: list[Any], reference: Callable[[int], object], steps: int) -> float:
    """Return the median ratio of prototrain's time to the reference's, without the first two turns, which trace."""
    from prototrain.callbacks import Callback

    ratios: list[float] = []

    class Turns(Callback):
        since = 0.0

        def next_step(self, step: int) -> int:
            return (step // steps + 1) * steps

        def trigger_step(self) -> None:
            ours, begin = time.perf_counter() - self.since, time.perf_counter()
            reference(steps)
            ratios.append(ours / (time.perf_counter() - begin))
            self.since = time.perf_counter()

    trainer.log = lambda text: None
    trainer.train([*callbacks, Turns()], max_steps=TURNS * steps)
    return statistics.median(ratios[2:])


def steps() -> float:
    """See `FIGURES`."""
    _tensorflow()
    from prototrain import SimpleTrainer
    from prototrain.callbacks import JSONWriter, Summaries

    trainer = SimpleTrainer(_model(), experiment=tempfile.mkdtemp())
    reference = _in_one_loop(_by_hand(), iter(_data().repeat()))
    return _in_turns(trainer, [Summaries().every(steps=50), JSONWriter()], reference, STEPS)


def callback() -> float:
    """See `FIGURES`."""
    _tensorflow()
    import tensorflow as tf

    from prototrain import SimpleTrainer
    from prototrain.callbacks import Callback

    class Each(Callback):
        def trigger_step(self) -> None:
            pass

    step, iterator = tf.function(_by_hand(), autograph=False), iter(_data().repeat())

    def reference(n: int) -> None:
        for _ in range(n):
            step(next(iterator))

    return _in_turns(SimpleTrainer(_model()), [Each()], reference, STEPS // 4)


def towers() -> float:
    """See `FIGURES`."""
    _tensorflow()
    import tensorflow as tf

    from prototrain import SyncReplicatedTrainer

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        step = _by_hand()
    data = iter(strategy.experimental_distribute_dataset(_data().repeat()))
    reference = _in_one_loop(lambda batch: strategy.run(step, args=(batch,)), data)
    return _in_turns(SyncReplicatedTrainer(_model(), ["CPU:0", "CPU:1"]), [], reference, STEPS // 4)


def start() -> float:
    """See `FIGURES`. Processor time, because an import happens once and may wait for the disk."""
    _tensorflow()
    begin = time.process_time()
    from prototrain import SimpleTrainer

    trainer = SimpleTrainer(_model())
    trainer.log = lambda text: None  # type: ignore[method-assign]
    trainer.train([], max_steps=1)
    return (time.process_time() - begin) / _IMPORTED["seconds"]


def save() -> float:
    """See `FIGURES`."""
    _tensorflow()
    from prototrain import SimpleTrainer

    trainer = SimpleTrainer(_model(width=40 * 2**20 // 4 // (WIDTH + 2)), experiment=tempfile.mkdtemp())
    content = {name: variable.numpy().tobytes() for name, variable in trainer.model_variables.items()}
    ratios = []

    def by_hand() -> None:
        with open(Path(tempfile.mkdtemp()) / "weights", "wb") as file:
            for part in content.values():
                file.write(part)
            file.flush()
            os.fsync(file.fileno())

    from prototrain.callbacks import Callback

    class Saves(Callback):
        def trigger(self) -> None:
            begin = time.perf_counter()
            self.trainer.save()
            ours, begin = time.perf_counter() - begin, time.perf_counter()
            by_hand()
            ratios.append(ours / (time.perf_counter() - begin))

    trainer.log = lambda text: None  # type: ignore[method-assign]
    trainer.train([Saves().every(steps=1)], max_steps=8)
    return statistics.median(ratios[1:])


MEASURES = {"steps": steps, "callback": callback, "towers": towers, "start": start, "save": save}


if __name__ == "__main__":
    sys.exit(main())
