"""The settings of the model. `prototrain run prototrain.template -s model.batch_size=64` changes one for a run."""

from __future__ import annotations

from prototrain import Config

config = Config(
    {
        # The name of the experiment, and intervals in steps.
        "trainer.experiment_name": "template",
        "trainer.print_interval": 100,
        "trainer.summary_save_interval": 50,
        "trainer.validation_step_interval": 100,
        "trainer.validation_batches": 0,  # 0 validates on the whole set
        "trainer.checkpoint_save_interval": 500,
        # The length of training, the batch size and the optimizer.
        "model.num_steps": 1000,
        "model.batch_size": 32,
        "model.optimizer.method": "adam",
        "model.lr_schedule.method": "constant",
        "model.lr_schedule.constant.value": 0.003,
        # A key of this model. You may use any name that prototrain does not define.
        "model.hidden_units": [64, 64],
        # The inputs and outputs for `prototrain action prototrain.template export`, by their names in `build`.
        "actions.export.inputs": ["points"],
        "actions.export.outputs": ["probabilities"],
    }
)
