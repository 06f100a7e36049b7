"""Reinforcement learning: a deep Q network learns to catch a ball, from games that it plays during training.

    python examples/dqn.py [--steps 3000] [--experiment experiments/dqn]

The run generates its own data: `ExperienceReplay` is both a dataset and a callback. A thread plays with the current
weights through a predictor, and training batches are drawn from its moves. `RunOp` copies the weights to the target
network, and `Evaluator` plays several games at a time without exploration.

Stop this script with Ctrl-C at any time and start it again to continue. The checkpoint contains the weights, the
optimizer, the target network, the memory and the exploration rate; the game in progress is lost. Runs are not
reproducible, since the weights of each move depend on the speed of the threads; the row "data position" of a run is
therefore "restart".

The method is that of Mnih et al. (2015), Human-level control through deep reinforcement learning.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain import Callback, Config, ModelDict, SimpleTrainer
from prototrain.callbacks import *
from prototrain.predictor import AsyncPredictor
from prototrain.readers import dataflow

ROWS, COLUMNS, ACTIONS = 7, 5, 3  # of the field; left, stay, right
GAMMA = 0.95
BATCH_SIZE = 32
MOVES_PER_BATCH = 4
AHEAD = 8  # batches that training may be ahead of the player, or behind

Array = np.ndarray[Any, Any]


class Catch:
    """A ball falls, and a paddle has to be where it lands. A game is one ball: reward 1 if caught, else -1."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def reset(self) -> Array:
        """Begin a game; returns the field, float32 [ROWS, COLUMNS]."""
        self._row, self._ball, self._paddle = 0, *self._random.integers(COLUMNS, size=2)
        return self._field()

    def step(self, action: int) -> tuple[Array, float, bool]:
        """Move the paddle and let the ball fall; returns the field, the reward, and whether the game is over."""
        self._paddle = min(max(self._paddle + action - 1, 0), COLUMNS - 1)
        self._row += 1
        over = self._row == ROWS - 1
        return self._field(), (1.0 if self._ball == self._paddle else -1.0) * over, over

    def _field(self) -> Array:
        field = np.zeros([ROWS, COLUMNS], np.float32)
        field[-1, self._paddle] = 0.5
        field[self._row, self._ball] += 1.0
        return field


SPEC = {
    "state": tf.TensorSpec([None, ROWS, COLUMNS], tf.float32),
    "action": tf.TensorSpec([None], tf.int32),
    "reward": tf.TensorSpec([None], tf.float32),
    "over": tf.TensorSpec([None], tf.bool),
    "next_state": tf.TensorSpec([None, ROWS, COLUMNS], tf.float32),
}


class ExperienceReplay(Callback):
    """Plays during the run, and yields batches of past moves.

    Args:
        size: the number of moves in the memory.
        first: the number of moves before training begins.
        seed: the seed of the games, the exploration and the batches.

    Attributes:
        exploration: the share of moves that are random; `ScheduledHyperParamSetter` sets it.
    """

    chief_only = False

    def __init__(self, *, size: int = 5000, first: int = 500, seed: int = 1) -> None:
        self.exploration = 1.0
        self._first = first
        self._memory = {n: np.zeros([size, *s.shape[1:]], s.dtype.as_numpy_dtype) for n, s in SPEC.items()}
        self._made = np.zeros([1], np.int64)  # moves in all; the next one goes to this place, modulo the size
        self._random = np.random.default_rng(seed)
        self._player = Catch(seed)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_playing = False
        self._given = self._played = 0  # batches and moves of this run
        self._scores: list[float] = []
        self._error: BaseException | None = None

    def dataset(self) -> tf.data.Dataset:
        """The batches. The data is live, so none is read before `before_train`."""
        return dataflow(self, spec=SPEC, live=True)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        random = np.random.default_rng(self._random.integers(2**32))
        while True:
            with self._changed:
                self._changed.wait_for(self._may_give)
                if self._error is not None:
                    raise self._error
                places = random.integers(min(int(self._made[0]), len(self._memory["over"])), size=BATCH_SIZE)
                batch = {name: array[places] for name, array in self._memory.items()}
                self._given += 1
                self._changed.notify_all()
            yield batch

    def _may_give(self) -> bool:
        behind = self._given * MOVES_PER_BATCH - self._played
        is_filled = self._made[0] >= self._first
        has_ended = self._thread is not None and not self._is_playing
        return self._error is not None or bool(is_filled and (has_ended or behind < AHEAD * MOVES_PER_BATCH))

    def setup(self) -> None:
        self._predict = self.trainer.get_predictor(["state"], ["q"])
        # What is in `state` is in every checkpoint, and these arrays are filled again when a run is resumed.
        for name, array in {**self._memory, "made": self._made}.items():
            self.trainer.state[f"callbacks/replay/{name}"] = array

    def before_train(self) -> None:
        self._is_playing, self._given, self._played, self._error = True, 0, 0, None
        self._thread = threading.Thread(target=self._play, name="player", daemon=True)
        self._thread.start()

    def after_train(self) -> None:
        if self._thread is not None:
            with self._changed:
                self._is_playing = False
                self._changed.notify_all()
            self._thread.join()

    def _play(self) -> None:
        try:
            state, score = self._player.reset(), 0.0
            while self._may_play():
                action = self._choose(state)
                next_state, reward, over = self._player.step(action)
                move = {"state": state, "action": action, "reward": reward, "over": over, "next_state": next_state}
                with self._changed:
                    place = self._made[0] % len(self._memory["over"])
                    for name, value in move.items():
                        self._memory[name][place] = value
                    self._made += 1
                    self._played += 1
                    self._changed.notify_all()
                state, score = next_state, score + reward
                if over:
                    self._scores.append(score)
                    state, score = self._player.reset(), 0.0
        except BaseException as error:  # the training waits for moves, so it has to hear of it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_play(self) -> bool:
        """Wait until training has used the previous moves; returns whether to continue."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_playing or self._is_wanted())
            return self._is_playing

    def _is_wanted(self) -> bool:
        return bool(self._made[0] < self._first) or self._played < (self._given + AHEAD) * MOVES_PER_BATCH

    def _choose(self, state: Array) -> int:
        if self._random.random() < self.exploration:
            return int(self._random.integers(ACTIONS))
        (q,) = self._predict(state[np.newaxis])  # with the weights as they are now
        return int(q[0].argmax())

    def trigger(self) -> None:
        scores, self._scores = self._scores, []
        if scores:
            self.trainer.monitors.put_scalar("replay/score", np.mean(scores))


class Evaluator(Callback):
    """Plays several games at a time without exploration; the predictor batches their moves.

    Args:
        games: the number of games.
        players: the number of simultaneous games, each in a thread.
    """

    priority = Priority.EVALUATE

    def __init__(self, games: int = 50, players: int = 8) -> None:
        self._games = games
        self._players = players

    def setup(self) -> None:
        self._predict = AsyncPredictor(self.trainer.get_predictor(["state"], ["q"]), batch_size=self._players)

    def trigger(self) -> None:
        with ThreadPoolExecutor(self._players, thread_name_prefix="evaluator") as pool:
            scores = list(pool.map(self._play, range(self._games)))
        self.trainer.monitors.put_scalar("score/mean", np.mean(scores))

    def _play(self, seed: int) -> float:
        game, score, over = Catch(1000 + seed), 0.0, False
        state = game.reset()
        while not over:
            (q,) = self._predict(state)  # of one state: it waits for the batch that it becomes a part of
            state, reward, over = game.step(int(q.argmax()))
            score += reward
        return score

    def after_train(self) -> None:
        self._predict.close()


class Model:
    """A Q network, and a target network that is updated at intervals."""

    def __init__(self, replay: ExperienceReplay) -> None:
        self._replay = replay
        self.config = Config(
            {
                "trainer.experiment_name": "dqn",
                "model.batch_size": BATCH_SIZE,
                "model.num_steps": 3000,
                "model.optimizer.method": "adam",
                "model.trainable_variables.filter_regex": "online/",
            }
        )

    def datasets(self) -> dict[str, tf.data.Dataset]:
        return {"trn": self._replay.dataset()}

    def build(self, inputs: dict[str, Any], train_phase: bool) -> ModelDict:
        net = ModelDict()
        net.q = _network("online", inputs["state"])
        if "next_state" not in inputs:  # a player's question
            return net
        best = tf.reduce_max(_network("target", inputs["next_state"]), 1)
        goal = inputs["reward"] + tf.where(inputs["over"], 0.0, GAMMA * best)
        chosen = tf.gather(net.q, inputs["action"], axis=1, batch_dims=1)
        net.loss = tf.reduce_mean(keras.losses.huber(tf.stop_gradient(goal)[:, None], chosen[:, None]))
        net.mean_q = tf.reduce_mean(tf.reduce_max(net.q, 1))
        return net


def _network(name: str, state: tf.Tensor) -> tf.Tensor:
    with tf.name_scope(name):
        hidden = keras.layers.Dense(64, activation="relu", name="fc0")(tf.reshape(state, [-1, ROWS * COLUMNS]))
        return keras.layers.Dense(ACTIONS, name="q")(hidden)


def updating_target(trainer: SimpleTrainer) -> Callable[[], None]:
    """Return a function for `RunOp` that copies the weights to the target network."""
    variables = trainer.variables
    pairs = [(v, variables[name.replace("target/", "online/")]) for name, v in variables.items() if "target/" in name]

    def update_target() -> None:
        for target, online in pairs:
            target.assign(online)

    return update_target


def make(experiment: str | Path | None) -> tuple[SimpleTrainer, list[Callback]]:
    """Return a trainer and its callbacks, without those that print."""
    replay = ExperienceReplay()
    trainer = SimpleTrainer(Model(replay), experiment=experiment)
    return trainer, [
        LearningRate(lambda step: 1e-3),
        replay.every(steps=250),
        ScheduledHyperParamSetter(HyperParam(replay, "exploration"), [(0, 1.0), (2, 0.1)]),
        RunOp(updating_target(trainer)).every(steps=100),
        Evaluator().every(steps=500),
        Summaries().every(steps=250),
        JSONWriter(),
        ModelSaver(max_to_keep=2).every(steps=500),
        SaveOnExit(),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a player by deep Q learning.")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--experiment", default="experiments/dqn", help="the directory of the run")
    arguments = parser.parse_args()

    trainer, callbacks = make(arguments.experiment)
    printing = [TensorBoardWriter(), ScalarPrinter().every(steps=500), ProgressBar(), StopOnNaN()]
    trainer.train([*callbacks, *printing], steps_per_epoch=250, max_steps=arguments.steps)


if __name__ == "__main__":
    main()
