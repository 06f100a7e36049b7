"""Towers: their devices, the tower that is being built, and variables with a copy per tower."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from typing import Any

import tensorflow as tf

from prototrain.errors import ConfigError, ModelError

_LOGICAL_CPUS = re.compile(r"cpu:([1-9]\d*)", re.IGNORECASE)
_DEVICE = re.compile(r"(?:/?device:)?([CG]PU):(\d+)", re.IGNORECASE)
_GPU_FILES = "/dev/nvidia[0-9]*"  # one for each GPU with a driver
_GOLDEN = 0x9E3779B9  # odd, so that its multiples with tower indices all differ modulo 2**31


@dataclass(frozen=True)
class Tower:
    """One replica of the model.

    Attributes:
        index: the index of the tower, from 0.
        count: the number of towers, on all machines.
        training: whether the tower is built for training.
        read_step: returns the number of completed steps.
    """

    index: int
    count: int
    training: bool
    read_step: Callable[[], Any] = field(default=lambda: 0, repr=False, compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this is the first tower, for work that only one tower must do."""
        return self.index == 0

    @property
    def global_step(self) -> tf.Tensor:
        """The number of completed steps, an int64 scalar. In a training step, the current step does not count."""
        return tf.convert_to_tensor(self.read_step(), tf.int64)


_building = threading.local()  # each tower is traced in its own thread


def current_tower() -> Tower:
    """Return the tower that is being built.

    Raises:
        ModelError: the function is not called inside a model's `build`.
    """
    tower: Tower | None = getattr(_building, "tower", None)
    if tower is None:
        raise ModelError("current_tower() is only known inside a model's build()")
    return tower


def tower_or_default() -> Tower:
    """Return the tower that is being built; outside of `build`, a single tower."""
    tower: Tower | None = getattr(_building, "tower", None)
    return Tower(0, 1, False) if tower is None else tower


def tower_index() -> int:
    """Return the index of the tower that is being built, or of the replica that TensorFlow is tracing, else 0."""
    tower: Tower | None = getattr(_building, "tower", None)
    if tower is not None:
        return tower.index
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return 0
    # While a tower is traced, its replica ID is a constant of the graph.
    return int(tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group)))


@contextmanager
def building(
    count: int, training: bool, index: int | None = None, step: Callable[[], Any] = lambda: 0
) -> Iterator[None]:
    """Context manager around the call of `build` for a tower, in which `current_tower` returns this tower.

    The default index is TensorFlow's replica ID. `step` returns the number of completed steps.
    """
    outer = getattr(_building, "tower", None)
    _building.tower = Tower(tower_index() if index is None else index, count, training, step)
    try:
        yield
    finally:
        _building.tower = outer


def choose_devices(towers: int | str | Sequence[str] | None) -> list[str]:
    """Choose the devices of the towers.

    Args:
        towers: the number of GPUs (without GPUs, the number of existing logical CPU devices); ``cpu:4`` for four
            logical CPU devices, which are created if TensorFlow has not started; device names such as ``GPU:0,GPU:1``,
            as one string or a list; or None for all GPUs, or the CPU if there are none.

    Returns:
        device names such as ``GPU:0``.

    Raises:
        ConfigError: a device name is wrong or repeated, or there are not enough devices.
    """
    if cpus := prepare_devices(towers):
        return [f"CPU:{index}" for index in range(cpus)]
    there = _names("GPU") or _names("CPU")
    if towers is None:
        return there if there[0].startswith("GPU") else ["CPU:0"]
    if isinstance(towers, str):
        towers = int(towers) if towers.strip().isdigit() else towers.split(",")
    if not isinstance(towers, int):
        return _named_devices(towers)
    if not 1 <= towers <= len(there):
        kind = there[0].partition(":")[0]
        more = f"; cpu:{towers} makes so many logical CPU devices" if kind == "CPU" and towers > 0 else ""
        raise ConfigError(f"towers: {towers} is not between 1 and the {len(there)} {kind} device(s) here{more}")
    return there[:towers]


def prepare_devices(towers: int | str | Sequence[str] | None) -> int:
    """Create the logical CPU devices for a value such as ``cpu:4`` without starting TensorFlow; return their number."""
    match = _LOGICAL_CPUS.fullmatch(towers.strip()) if isinstance(towers, str) else None
    if match is None:
        return 0
    make_cpu_devices(int(match[1]))
    return int(match[1])


def make_cpu_devices(count: int) -> None:
    """Divide the CPU into logical devices, to try several towers without GPUs.

    Raises:
        ConfigError: TensorFlow has already started with fewer devices.
    """
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        there = len(_names("CPU"))
        if there < count:
            cure = f"call prototrain.towers.make_cpu_devices({count}) before anything else uses TensorFlow"
            raise ConfigError(f"towers: TensorFlow has started with {there} CPU device(s); {cure}") from error


def _names(kind: str) -> list[str]:
    return [":".join(device.name.split(":")[-2:]) for device in tf.config.list_logical_devices(kind)]


def _named_devices(names: Sequence[str]) -> list[str]:
    there = _names("GPU") + _names("CPU")
    found = []
    for name in names:
        match = _DEVICE.fullmatch(name.strip())
        if match is None:
            raise ConfigError(f"towers: {name!r} is not a device; write 2, cpu:4, or names such as GPU:0,GPU:1")
        found.append(f"{match[1].upper()}:{int(match[2])}")
        if found[-1] not in there:
            raise ConfigError(f"towers: there is no device {found[-1]}; there are {', '.join(there)}")
    repeated = [name for name in found if found.count(name) > 1]
    if repeated:
        raise ConfigError(f"towers: {repeated[0]} is named twice; a device holds one tower")
    return found


def components(variable: Any) -> list[tf.Variable]:
    """Return the copies of a variable on the towers of this process, or the variable if it is not replicated."""
    value = variable if isinstance(variable, tf.Variable) else variable.value  # unwraps a keras.Variable
    return list(value.values) if isinstance(value, tf.distribute.DistributedValues) else [value]


def is_local(variable: tf.Variable) -> bool:
    """Return whether each tower assigns its own copy of a variable, such as batch statistics, seeds and counters."""
    return not variable.trainable and variable.aggregation == tf.VariableAggregation.NONE


def is_seed(name: str, variable: Any) -> bool:
    """Return whether a variable is the state of a Keras `SeedGenerator`, [seed, counter]."""
    return name.rpartition("/")[2].startswith("seed_generator_state") and list(variable.shape) == [2]


def seed_of_tower(seed: tf.Tensor, index: int) -> tf.Tensor:
    """Return a tower's own [seed, counter], from one that all towers have drawn; traced."""
    return seed + tf.constant([index * _GOLDEN % 2**31, 0], seed.dtype) if index else seed


def used_devices(variables: Iterable[Any]) -> list[str]:
    """Return the names of the devices that hold variables."""
    copies = {copy.device for variable in variables for copy in components(variable)}
    return sorted(":".join(device.split(":")[-2:]) for device in copies)


def describe_devices(devices: Sequence[str]) -> str:
    """Return the names of devices, with the models of GPUs."""
    gpus = enumerate(tf.config.list_physical_devices("GPU"))
    models = {f"GPU:{i}": tf.config.experimental.get_device_details(gpu).get("device_name") for i, gpu in gpus}
    return ", ".join(f"{name} ({models[name]})" if models.get(name) else name for name in devices)


def why_no_gpu() -> str | None:
    """Return a warning if the machine has a GPU that TensorFlow cannot use, else None."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    if is_hidden or tf.config.list_physical_devices("GPU") or not glob(_GPU_FILES):
        return None
    reason = (
        "it does not find the CUDA libraries of its version, or the driver is too old for them"
        if tf.test.is_built_with_cuda()
        else "it was built without CUDA"
    )
    return (
        f"WARNING: there is a GPU, and TensorFlow {tf.__version__} cannot use it: {reason}; the CPU does the work. "
        "Try: pip install 'tensorflow[and-cuda]'"
    )
