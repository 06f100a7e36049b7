"""Settings: `prototrain run models.simple -s model.batch_size=64`."""

from __future__ import annotations

from prototrain.config import Config

config = Config(
    {
        # The name of the experiment's directory (experiments/simple), and intervals in steps.
        "trainer.experiment_name": "simple",
        "trainer.print_interval": 100,
        "trainer.summary_save_interval": 50,
        "trainer.validation_step_interval": 100,
        "trainer.validation_batches": 0,  # the whole set: it is small
        "trainer.checkpoint_save_interval": 500,
        "trainer.random_seed": 1337,
        # How long to train, and on how many examples at a time.
        "model.num_steps": 1000,
        "model.batch_size": 32,
        # A key of this model, which `build` reads. Keys outside of prototrain's namespaces belong to the model.
        "model.hidden_units": [128, 64],
        # The learning rate falls smoothly: 0.003 * 0.8 ** (step / 100).
        "model.optimizer.method": "adam",
        "model.lr_schedule.method": "exp",
        "model.lr_schedule.exp.value": 0.003,
        "model.lr_schedule.exp.decay_rate": 0.8,
        "model.lr_schedule.exp.decay_steps": 100,
        # Weight decay for kernels only. The variables of a layer are "fc0/kernel" and "fc0/bias".
        "model.weight_decay.value": 1e-4,
        "model.weight_decay.filter_regex": ".*kernel",
        # What `prototrain action models.simple export` writes: names that `build` uses.
        "actions.export.inputs": ["examples"],
        "actions.export.outputs": ["probabilities", "predictions"],
    }
)
