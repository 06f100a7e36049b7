"""Settings, including the network."""

from __future__ import annotations

from prototrain.config import Config

config = Config(
    {
        # Each start is another run, experiments/convnet-20260131-120000, so that variants stay apart. To go on
        # with one, name it: `-s trainer.experiment_name=convnet-20260131-120000`.
        "trainer.experiment_name": "convnet-{timestamp}",
        "trainer.print_interval": 100,
        "trainer.summary_save_interval": 50,
        "trainer.validation_step_interval": 100,
        "trainer.validation_batches": 0,
        "trainer.checkpoint_save_interval": 500,
        "model.num_steps": 1000,
        "model.batch_size": 32,
        # The network: a list of layers (layers.py has the table of what they may be), or "alexnet" (presets.py). The
        # last one gives the logits; "classes" stands for model.num_classes.
        "model.layers": [
            {"type": "conv", "filters": 32, "kernel_size": 3, "use_bias": False},
            {"type": "batch_norm", "activation": "relu"},
            {"type": "conv", "filters": 32, "kernel_size": 3, "use_bias": False},
            {"type": "batch_norm", "activation": "relu"},
            {"type": "pool", "size": 2},
            {"type": "conv", "filters": 64, "kernel_size": 3, "use_bias": False},
            {"type": "batch_norm", "activation": "relu"},
            {"type": "pool", "size": 2},
            {"type": "fc", "units": 64, "activation": "relu"},
            {"type": "dropout", "rate": 0.5},
            {"type": "fc", "units": "classes"},
        ],
        "model.num_classes": 10,
        "model.picture_size": [8, 8],  # height and width that every picture is resized to
        "model.channels": 1,  # 1: grey, 3: color
        # The pictures: "digits" (those of models.simple), "folders" (<data.directory>/trn/<class>/*.png, and likewise
        # vld and tst) or "tfrecords" (a directory that `models.convnet.actions.make_tfrecords` has written).
        "data.format": "digits",
        "data.directory": None,
        # Whether every picture in folders is decoded once at the start, to find the broken ones. Where it is False, a
        # broken one ends the run when it is met.
        "data.check_pictures": True,
        # What to do about faults in folders, "refuse" or "skip": both name what was found.
        "data.on_broken_picture": "refuse",
        "data.on_empty_class": "refuse",  # a class has no picture
        "data.on_unknown_class": "refuse",  # vld or tst has a class that trn does not have
        # How many TFRecord shards are read in turn, and how many of their pictures, still encoded, are shuffled.
        "data.parallel_shards": 4,
        "data.shuffle_buffer": 2000,
        "model.optimizer.method": "adam",
        "model.lr_schedule.method": "exp",
        "model.lr_schedule.exp.value": 0.002,
        "model.lr_schedule.exp.decay_rate": 0.8,
        "model.lr_schedule.exp.decay_steps": 100,
        "model.weight_decay.value": 1e-4,
        "model.weight_decay.filter_regex": ".*kernel",
        "actions.export.inputs": ["images"],
        "actions.export.outputs": ["probabilities", "predictions"],
    }
)
