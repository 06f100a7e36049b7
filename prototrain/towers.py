"""Towers: their devices, the tower that is being built, and variables with a copy on each."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import ConfigError, ModelError

OF_TOWER = "@tower-"
"""Separates a variable's name and a tower's index where each tower has its own value."""

MOST_CPU_DEVICES = 256
_LOGICAL_CPUS = re.compile(r"cpu:([1-9]\d*)", re.IGNORECASE)
_DEVICE = re.compile(r"(?:/?device:)?([CG]PU):(\d+)", re.IGNORECASE)
_GOLDEN = 0x9E3779B9  # odd, so that its multiples by the towers' indices all differ modulo 2**32


@dataclass(frozen=True)
class Tower:
    """One replica of the model.

    Attributes:
        index: its number among all towers, from 0.
        count: how many towers there are, on all machines.
        training: whether it is built for training.
        read_step: returns the number of completed steps.
    """

    index: int
    count: int
    training: bool
    read_step: Callable[[], Any] = field(default=lambda: 0, repr=False, compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this is the tower that speaks for all where one has to."""
        return self.index == 0

    @property
    def global_step(self) -> tf.Tensor:
        """The number of completed steps, an int64 scalar: in a step that is trained, of those before it."""
        return tf.convert_to_tensor(self.read_step(), tf.int64)


_building = threading.local()  # each tower is traced in its own thread


def current_tower() -> Tower:
    """The tower that is being built.

    Raises:
        ModelError: called from outside of a model's `build`.
    """
    tower: Tower | None = getattr(_building, "tower", None)
    if tower is None:
        raise ModelError("current_tower() is only known inside a model's build()")
    return tower


def tower_index() -> int:
    """The index of the tower that is being built; 0 outside of `build`."""
    return getattr(getattr(_building, "tower", None), "index", 0)


def tower_count() -> int:
    """How many towers there are, on all machines, where one is being built; 1 outside of `build`."""
    return getattr(getattr(_building, "tower", None), "count", 1)


@contextmanager
def building(
    count: int, training: bool, index: int | None = None, step: Callable[[], Any] = lambda: 0
) -> Iterator[None]:
    """Let `current_tower` answer for the tower whose `build` is about to be called.

    Args:
        count: how many towers there are.
        training: whether it is built for training.
        index: the tower's, if TensorFlow does not know it.
        step: returns the number of completed steps.
    """
    context = tf.distribute.get_replica_context()
    inside = context is not None and context.num_replicas_in_sync > 1
    outer = getattr(_building, "tower", None)
    # In a traced tower its number is a constant of the graph.
    if index is None:
        index = int(tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group))) if inside else 0
    _building.tower = Tower(index, count, training, step)
    try:
        yield
    finally:
        _building.tower = outer


# -- devices ----------------------------------------------------------------------------------------------------------


def choose_devices(towers: int | str | Sequence[str] | None) -> list[str]:
    """Find the devices that towers are to run on.

    Args:
        towers: how many GPUs (without GPUs: how many of the logical CPU devices that exist); ``cpu:4`` for four logical
            CPU devices, made if TensorFlow has not started; device names such as ``GPU:0,GPU:1``, as one text or as a
            list; None for all GPUs, or the CPU if there are none.

    Returns:
        names such as ``GPU:0``.

    Raises:
        ConfigError: a name is wrong, or there are not so many devices.
    """
    cpus = prepare_devices(towers)
    if cpus:
        return [f"CPU:{index}" for index in range(cpus)]
    if isinstance(towers, str):
        towers = int(towers) if towers.strip().isdigit() else towers.split(",")
    if towers is None:
        return _names("GPU") or ["CPU:0"]
    return _first_devices(towers) if isinstance(towers, int) else _named_devices(towers)


def prepare_devices(towers: int | str | Sequence[str] | None) -> int:
    """Make the logical CPU devices that ``cpu:4`` asks for, without starting TensorFlow.

    Returns:
        how many; 0 if something else is asked for.
    """
    match = _LOGICAL_CPUS.fullmatch(towers.strip()) if isinstance(towers, str) else None
    if match is None:
        return 0
    make_cpu_devices(int(match[1]))
    return int(match[1])


def make_cpu_devices(count: int) -> None:
    """Divide the CPU into logical devices, to try several towers without GPUs.

    Raises:
        ConfigError: there are more than any machine is divided into, or TensorFlow has started with fewer of them.
    """
    if count > MOST_CPU_DEVICES:  # TensorFlow would take hours to make them and their threads
        raise ConfigError(f"towers: cpu:{count} is too many; at most {MOST_CPU_DEVICES} logical CPU devices are made")
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        there = len(_names("CPU"))
        if there < count:
            raise ConfigError(
                f"towers: TensorFlow has started with {there} CPU device{'s'[: there > 1]}, so there cannot be {count} "
                f"any more; call prototrain.towers.make_cpu_devices({count}) before anything else uses TensorFlow"
            ) from error


def _names(kind: str) -> list[str]:
    return [":".join(device.name.split(":")[-2:]) for device in tf.config.list_logical_devices(kind)]


def _first_devices(count: int) -> list[str]:
    there = _names("GPU") or _names("CPU")
    if count < 1:
        raise ConfigError(f"towers: there must be at least 1, got {count}")
    if count > len(there):
        kind = there[0].partition(":")[0]
        cure = f"ask for at most {len(there)}" if kind == "GPU" else f"cpu:{count} makes so many logical CPU devices"
        raise ConfigError(f"towers: {count} are more than the {len(there)} {kind} device(s) here; {cure}")
    return there[:count]


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


# -- values -----------------------------------------------------------------------------------------------------------


def components(variable: Any) -> list[tf.Variable]:
    """The towers' own copies of a variable in this process; a variable that is not replicated is its only copy."""
    value = variable if isinstance(variable, tf.Variable) else variable.value  # a keras.Variable holds one
    return list(value.values) if isinstance(value, tf.distribute.DistributedValues) else [value]


def is_local(variable: tf.Variable) -> bool:
    """Whether each tower assigns its own copy of this variable: batch statistics, seeds, a user's counters."""
    return not variable.trainable and variable.aggregation == tf.VariableAggregation.NONE


def is_seed(name: str, variable: Any) -> bool:
    """Whether this is the state of a Keras `SeedGenerator`: [seed, counter]."""
    return name.rpartition("/")[2].startswith("seed_generator_state") and list(variable.shape) == [2]


def seed_of_tower(state: Any, index: int) -> Any:
    """The seed state of a tower at the position of the first tower's.

    Args:
        state: the first tower's [seed, counter], of uint32.
        index: the tower's.
    """
    derived = np.array(state)
    derived[0] = (int(state[0]) + index * _GOLDEN) % 2**32
    return derived


def in_words(devices: Sequence[str]) -> str:
    """The names of devices, GPUs with their models."""
    physical = tf.config.list_physical_devices("GPU")
    found = []
    for name in devices:
        match = _DEVICE.fullmatch(name)
        number = int(match[2]) if match and match[1].upper() == "GPU" else len(physical)
        kind = None
        if number < len(physical):
            kind = tf.config.experimental.get_device_details(physical[number]).get("device_name")
        found.append(f"{name} ({kind})" if kind else name)
    return ", ".join(found)


def why_no_gpu() -> str | None:
    """A warning if there is a GPU in the machine that TensorFlow cannot use, with the cure; else None."""
    if tf.config.list_physical_devices("GPU") or not (found := gpus_in_machine()):
        return None
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    reason = (
        "it does not find the CUDA libraries of its version, or the driver is too old for them"
        if tf.test.is_built_with_cuda()
        else "it was built without CUDA"
    )
    return (
        f"WARNING: there is a GPU ({found[0]}{more}), and TensorFlow {tf.__version__} cannot use it: {reason}; the CPU "
        "does the work. Try: pip install 'tensorflow[and-cuda]'"
    )


def gpus_in_machine() -> list[str]:
    """The names of NVIDIA's GPUs that nvidia-smi lists, unless CUDA_VISIBLE_DEVICES hides all of them."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return []
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU \d+: (.+?)(?: \(UUID.*)?$", done.stdout, re.MULTILINE) if done.returncode == 0 else []
