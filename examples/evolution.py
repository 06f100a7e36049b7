"""A trainer without gradients: an evolution strategy learns to classify handwritten digits.

    python examples/evolution.py [--steps 1000] [--experiment experiments/evolution]

To train anything that runs step by step, subclass `Trainer`, implement one iteration in `run_step`, and keep in
`self.state` what a resumed run needs. The callback list is the same as for any other trainer. Stop this script with
Ctrl-C at any time and start it again: it continues, and its results equal those of an uninterrupted run bit for bit.

The strategy (Salimans et al., 2017, arXiv:1703.03864) creates many slightly mutated copies of a small network in every
step, and moves the network towards the best of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from prototrain import Trainer
from prototrain.callbacks import *

DATA = Path(__file__).parent.parent / "models" / "simple" / "data"
LAYERS = [(64, 32), (32, 10)]  # inputs and outputs of each layer: 8x8 pixels in, 10 classes out

MUTATIONS = 50  # directions tried in each step, forwards and backwards
SIGMA = 0.05  # how far a mutated weight is from the original, as a standard deviation
BATCH_SIZE = 128
MOMENTUM = 0.9


class EvolutionTrainer(Trainer):
    """Trains the weights of a network, one long vector, by an evolution strategy.

    Args:
        seed: the seed of the initial weights and of all mutations.
        experiment: the directory of the run.
    """

    def __init__(self, *, seed: int = 1, experiment: str | Path | None = None) -> None:
        super().__init__(experiment=experiment)
        self.seed = seed
        self.datasets = {name: read_digits(name) for name in ("trn", "vld")}
        # What is in `state` is in every checkpoint, and is back in `state` when a run is resumed.
        self.state["weights"] = first_weights(seed)
        self.state["velocity"] = np.zeros_like(self.state["weights"])

    def run_step(self) -> dict[str, float]:
        """Run one generation. Callbacks receive the returned scalars as ``trn/loss`` etc."""
        # All randomness comes from the seed and the step, so a resumed run draws what an uninterrupted one would draw.
        random = np.random.default_rng([self.seed, self.global_step])
        all_examples, all_labels = self.datasets["trn"]
        batch = random.integers(len(all_labels), size=BATCH_SIZE)
        examples, labels = all_examples[batch], all_labels[batch]

        # Try every mutation in both directions: what chance does to both of them cancels out.
        weights, velocity = self.state["weights"], self.state["velocity"]
        mutations = random.standard_normal((MUTATIONS, weights.size), dtype=np.float32)
        population = np.concatenate([weights + SIGMA * mutations, weights - SIGMA * mutations])
        losses, _ = measure(population, examples, labels)

        # Only the order counts, from -0.5 for the best to 0.5 for the worst: one freak cannot dominate the others.
        ranks = losses.argsort().argsort().astype(np.float32) / (len(losses) - 1) - 0.5
        uphill = (ranks[:MUTATIONS] - ranks[MUTATIONS:]) @ mutations / len(losses)

        rate = 0.1 * 0.5 ** (self.global_step / 300)
        self.state["velocity"] = np.float32(MOMENTUM) * velocity + uphill
        self.state["weights"] = weights - np.float32(rate) * self.state["velocity"]
        (loss,), (accuracy,) = measure(weights[np.newaxis], examples, labels)
        return {"loss": loss, "accuracy": accuracy, "learning_rate": rate}

    def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float]:
        """Evaluate a dataset, for `Validation`. The datasets are small, so `batches` is ignored."""
        (loss,), (accuracy,) = measure(self.state["weights"][np.newaxis], *self.datasets[dataset])
        return {"loss": loss, "accuracy": accuracy}


def measure(population: np.ndarray, examples: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Evaluate many networks at once.

    Args:
        population: the weights of one network in each row, float32 [networks, weights].
        examples: float32 [examples, 64].
        labels: int [examples].

    Returns:
        the cross entropy and the accuracy of each network, [networks] both.
    """
    net, begin = examples, 0
    for number, (inputs, outputs) in enumerate(LAYERS):
        end = begin + inputs * outputs
        kernels = population[:, begin:end].reshape(-1, inputs, outputs)
        biases = population[:, end : end + outputs].reshape(-1, 1, outputs)
        net = (np.tanh(net) if number else net) @ kernels + biases
        begin = end + outputs
    logits = net - net.max(axis=-1, keepdims=True)  # [networks, examples, 10]
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    of_label = log_probabilities[:, np.arange(len(labels)), labels]
    return -of_label.mean(axis=-1), (logits.argmax(axis=-1) == labels).mean(axis=-1)


def first_weights(seed: int) -> np.ndarray:
    """Random kernels, and biases of zero, as one vector."""
    random = np.random.default_rng(seed)
    parts = []
    for inputs, outputs in LAYERS:
        parts += [random.normal(scale=inputs**-0.5, size=inputs * outputs), np.zeros(outputs)]
    return np.concatenate(parts).astype(np.float32)


def read_digits(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Examples, float32 [n, 64] in 0..1, and labels, int64 [n]."""
    rows = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    examples = np.array([row["example"] for row in rows], dtype=np.float32) / 16
    return examples, np.array([row["label"] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a digit reader by an evolution strategy.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--experiment", default="experiments/evolution", help="the directory of the run")
    arguments = parser.parse_args()

    trainer = EvolutionTrainer(experiment=arguments.experiment)
    trainer.train(
        [
            Validation().every(steps=100),
            Summaries().every(steps=50),
            TensorBoardWriter(),
            JSONWriter(),
            ScalarPrinter().every(steps=100),
            ProgressBar(),
            ModelSaver(max_to_keep=3).every(steps=200),
            SaveOnExit(),
        ],
        max_steps=arguments.steps,
    )


if __name__ == "__main__":
    main()
