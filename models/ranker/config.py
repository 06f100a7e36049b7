"""Settings: `prototrain run models.ranker -s model.margin=0.1`."""

from __future__ import annotations

from prototrain.config import Config
from prototrain.errors import ConfigError

config = Config(
    {
        # Where the run is kept (experiments/ranker), and how often something happens, in steps.
        "trainer.experiment_name": "ranker",
        "trainer.print_interval": 100,
        "trainer.summary_save_interval": 50,
        "trainer.validation_step_interval": 100,
        "trainer.validation_batches": 0,  # the whole set
        "trainer.checkpoint_save_interval": 500,
        "trainer.random_seed": 1337,
        # Which pictures: "sample" (rendered when it is first needed) or "stanford_online_products", and the directory
        # that holds its list files.
        "data.layout": "sample",
        "data.directory": None,
        # The share of the training products that is kept out of training, for validation.
        "data.validation_share": 0.1,
        # "refuse" or "skip" pictures that are missing or cannot be decoded: every picture is decoded once at the start.
        "data.on_faulty_picture": "refuse",
        # How long to train, and on how many pairs of pictures at a time.
        "model.num_steps": 2000,
        "model.batch_size": 32,
        # How often all products of a batch are taken from one class, where the negatives are harder.
        "model.random_within_class": 0.25,
        # Height and width that pictures are resized to; None: [48, 48] for the sample catalogue, else [224, 224].
        "model.picture_size": None,
        # The network: "convnet" or any of keras.applications; None: "convnet" for the sample, else "ResNet50V2".
        "model.backbone.name": None,
        "model.backbone.filters": [32, 64, 128, 128, 128],  # of the stages of "convnet", each at half the resolution
        "model.backbone.weights": None,  # of keras.applications: "imagenet", the path of a weights file, or None
        "model.backbone.fixed_statistics": False,  # normalize batches with the statistics that came with the weights
        "model.embedding_units": None,  # of a linear layer on top; None: none
        # The loss: a query's hardest negative is to be less similar than its positive by this margin.
        "model.margin": 0.5,
        "model.mining": "global",  # negatives from the whole batch; "tower": from the tower's own part of it
        # What training pictures go through. None of it is done to other pictures.
        "model.augment.crop": 0.85,  # the smallest share of the picture's area that is kept
        "model.augment.resize_methods": ["bilinear", "bicubic", "area", "nearest"],  # one is drawn for each picture
        "model.augment.flip": True,
        "model.augment.noise": 8.0,  # the largest standard deviation, in grey levels of 0..255
        "model.optimizer.method": "adam",
        "model.lr_schedule.method": "exp",
        "model.lr_schedule.exp.value": 0.002,
        "model.lr_schedule.exp.decay_rate": 0.1,
        "model.lr_schedule.exp.decay_steps": 2000,
        # What `prototrain action models.ranker models.ranker.actions.evaluate` does.
        "evaluate.batch_size": 128,  # pictures that are embedded at a time
        "evaluate.block": 512,  # queries whose similarities to all pictures are in memory at a time
        "evaluate.retrieved": 10,  # pictures per query in top_retrieved.json
        "evaluate.shown": 60,  # queries on the HTML page
        # What `prototrain action models.ranker export` writes.
        "actions.export.inputs": ["query"],
        "actions.export.outputs": ["query_embeddings"],
    }
)


def is_sample() -> bool:
    """Return whether the sample catalogue is used, for which some defaults are smaller."""
    return bool(config["data.layout"] == "sample")


def picture_size() -> tuple[int, int]:
    """Return the height and width of the network's input.

    Raises:
        ConfigError: the value is not two whole numbers.
    """
    size = config["model.picture_size"]
    if size is None:
        size = [48, 48] if is_sample() else [224, 224]
    if not (isinstance(size, list | tuple) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)):
        raise ConfigError(f"model.picture_size: expected [height, width] in pixels, or null, got {size!r}")
    return size[0], size[1]


def positive(key: str) -> int:
    """Return the value of a key that must be a positive whole number.

    Raises:
        ConfigError: it is not.
    """
    value = config[key]
    if type(value) is not int or value < 1:
        raise ConfigError(f"{key}: expected a whole number from 1, got {value!r}")
    return value


def backbone_name() -> str:
    """The network's name."""
    return config["model.backbone.name"] or ("convnet" if is_sample() else "ResNet50V2")
