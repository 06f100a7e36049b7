"""Every setting, with its default. `prototrain run prototrain.template -s model.batch_size=64` changes one."""

from __future__ import annotations

from prototrain import Config

config = Config(
    {
        # Where the run is kept, and how often something happens, in steps.
        "trainer.experiment_name": "template",
        "trainer.print_interval": 100,
        "trainer.summary_save_interval": 50,
        "trainer.validation_step_interval": 100,
        "trainer.validation_batches": 0,  # the whole set: it is small
        "trainer.checkpoint_save_interval": 500,
        # How long to train, and on how many examples at a time.
        "model.num_steps": 1000,
        "model.batch_size": 32,
        "model.optimizer.method": "adam",
        "model.lr_schedule.method": "constant",
        "model.lr_schedule.constant.value": 0.003,
        # This model's own key: any name that prototrain does not know is yours.
        "model.hidden_units": [64, 64],
        # What `prototrain action prototrain.template export` writes: names that `build` uses.
        "actions.export.inputs": ["points"],
        "actions.export.outputs": ["probabilities"],
    }
)
