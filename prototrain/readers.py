"""Small `tf.data` readers: JSON lines, a folder of images per class, TFRecord files, a DataFlow.

Each returns a dataset of dictionaries of *unbatched* tensors, to be shuffled, batched and mapped by the model. All but
`dataflow` are made of operations whose position `tf.data` can save, so a run that is stopped in the middle of an epoch
goes on at the very next batch: everything that needs Python happens once, up front, and nothing of it stays in the
pipeline.
"""

from __future__ import annotations

import glob
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.system.waiting import announcing

PathLike: TypeAlias = str | os.PathLike[str]
Features: TypeAlias = Mapping[str, tuple[Any, Sequence[int]]]  # dtype (or its name) and shape of each
Checker: TypeAlias = Callable[[Any], str | None]
Specs: TypeAlias = Mapping[str, tuple[Checker, tuple[int, ...]]]

IMAGE_EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")

_LIVE = "is_live_for_prototrain"  # on the Python object of a dataset

# Parallel, and still the same order in every run.
_PARALLEL: Any = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}


def json_lines(paths: PathLike | Iterable[PathLike], *, features: Features) -> tf.data.Dataset:
    """Reads files that hold one JSON object per line.

    The files are parsed and checked whole, now, and kept in memory. Empty lines are skipped, and so are members of an
    object that `features` does not name.

    Args:
        paths: one file or several, read in the order given.
        features: name -> (dtype, shape) of every feature, e.g. `{"example": ("uint8", [64]), "label": ("int32", [])}`.
            The dtype is an integer, a floating, `bool` or `string`; the shape is fixed, `[]` is a scalar.

    Returns:
        A dataset of dictionaries name -> tensor of that dtype and shape, one per line, in the order of the files.

    Raises:
        DataError: a file cannot be read or has no examples, or a line is not an object with these features: one is
            missing, has another shape or type, is not finite, or does not fit into its dtype.
    """
    specs = {name: (_checker(name, tf.as_dtype(dtype)), tuple(shape)) for name, (dtype, shape) in features.items()}
    columns: dict[str, list[list[Any]]] = {name: [] for name in specs}
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        _read_json_lines(path, specs, columns)
    arrays = {}
    for name, rows in columns.items():
        dtype = tf.as_dtype(features[name][0])
        # Strings have to stay objects: a NumPy string drops the zero bytes at its end.
        array = np.array(rows, dtype=object if dtype == tf.string else dtype.as_numpy_dtype)
        arrays[name] = array.reshape((len(rows), *features[name][1]))
    with tf.device("/cpu:0"):  # or the data would go to the GPU now and come back for every batch
        return tf.data.Dataset.from_tensor_slices(arrays)


def class_names(path: PathLike) -> list[str]:
    """The classes of an image folder: its directories' names, sorted. A label of `image_folder` is an index into it."""
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{_shown(path)}: cannot be read as a directory of images ({error.strerror})") from error
    if not names:
        raise DataError(f"{_shown(path)}: holds no directories; an image folder has one for each class")
    return names


def image_files(path: PathLike, *, extensions: Sequence[str] = IMAGE_EXTENSIONS) -> list[str]:
    """The paths of the images in one directory, sorted: the files with one of these endings, in any case."""
    endings = tuple(ending.lower() for ending in extensions)
    found = Path(path).iterdir()
    return sorted(str(file) for file in found if file.name.lower().endswith(endings) and file.is_file())


def image_folder(
    path: PathLike,
    *,
    size: tuple[int, int],
    channels: int = 3,
    extensions: Sequence[str] = IMAGE_EXTENSIONS,
    shuffle: bool = False,
) -> tf.data.Dataset:
    """Reads a directory that holds one directory of images for each class.

    Only the names are read now. Of an animated image, the first frame is taken.

    Args:
        path: the directory.
        size: (height, width) that every image is resized to, whatever its proportions.
        channels: 1 for grey, 3 for colour, 4 for colour and opacity.
        extensions: endings of the files to take, in any case; other files are passed over.
        shuffle: False gives class after class, sorted by name. True gives another order in every epoch; it shuffles
            names, where `Dataset.shuffle` on the result would hold, and save in every checkpoint, decoded images.

    Returns:
        A dataset of `{"image": float32 [height, width, channels] in 0..1, "label": int32 []}`.

    Raises:
        DataError: the directory is missing, or it or one of the classes is empty.
    """
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(class_names(path)):
        folder = Path(path, name)
        found = image_files(folder, extensions=extensions)
        if not found:
            endings = " ".join(extensions).lower()
            raise DataError(f"{_shown(folder)}: holds no images ({endings}); add some or remove it")
        files += found
        labels += [label] * len(found)

    def decode(file: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"image": decode_image(tf.io.read_file(file), size=size, channels=channels), "label": label}

    listed = tf.data.Dataset.from_tensor_slices((files, labels))
    if shuffle:
        listed = listed.shuffle(len(files))
    return listed.map(decode, **_PARALLEL)


def decode_image(data: tf.Tensor, *, size: tuple[int, int], channels: int = 3) -> tf.Tensor:
    """Decodes the content of a BMP, GIF, JPEG or PNG file and resizes it; traced or eager.

    Args:
        data: the bytes, a string scalar. Of an animated image, the first frame is taken.
        size: (height, width) of the result, whatever the image's proportions.
        channels: 1 for grey, 3 for colour, 4 for colour and opacity.

    Returns:
        float32 [height, width, channels] in 0..1.
    """
    image = tf.io.decode_image(data, channels=channels, expand_animations=False)
    image.set_shape([None, None, channels])
    return tf.clip_by_value(tf.image.resize(image, size, antialias=True) / 255.0, 0.0, 1.0)  # it can overshoot


def tfrecords(
    patterns: PathLike | Iterable[PathLike],
    *,
    features: Mapping[str, Any],
    compression: str | None = None,
    cycle_length: int = 4,
) -> tf.data.Dataset:
    """Reads TFRecord files of `tf.train.Example` messages, several files at a time, always in the same order.

    Args:
        patterns: one file or glob pattern, or several; what they match is sorted.
        features: name -> (dtype, shape) with dtype float32, int64 or string, or any feature of `tf.io`.
        compression: None, "GZIP" or "ZLIB".
        cycle_length: how many files are read in turn, one example of each.

    Returns:
        A dataset of dictionaries name -> tensor.

    Raises:
        DataError: a pattern matches no file, or a feature has a dtype that examples do not hold.
    """
    files: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str | os.PathLike) else patterns:
        found = [file for file in glob.glob(str(pattern), recursive=True) if os.path.isfile(file)]
        if not found:
            raise DataError(f"{_shown(pattern)}: matches no file; name a TFRecord file or a glob pattern of some")
        files += found
    parsed = {name: _record_feature(name, feature) for name, feature in features.items()}
    names = tf.data.Dataset.from_tensor_slices(sorted(set(files)))

    def read(file: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file, compression_type=compression)

    records = names.interleave(read, cycle_length=cycle_length, **_PARALLEL)
    return records.map(lambda record: tf.io.parse_single_example(record, parsed), **_PARALLEL)


def dataflow(
    flow: Iterable[Any],
    *,
    names: Sequence[str] | None = None,
    batched: bool = False,
    spec: Mapping[str, tf.TensorSpec] | None = None,
    live: bool = False,
) -> tf.data.Dataset:
    """Reads a DataFlow of tensorpack's, or whatever gives one data point after the other.

    Its `reset_state()` is called now, if it has one, and its first data point is read to see what it is like, unless
    `spec` says it. The flow stays Python code: a resumed run reads again from the start of the pass, so make it within
    `datasets()`, and from seeds.

    What a flow gives may also come from the run itself, such as from games that are played with the model as it is
    (``live=True``). Then nothing of it is read before it is trained on, so that it may wait for its callback's
    `before_train`, and a resumed run goes on with what it gives then.

    Args:
        flow: gives lists, tuples or dicts of arrays and numbers, anew each time it is iterated over.
        names: of the components of a list or tuple; of a dict, those that are taken, by default all.
        batched: whether a data point is a batch, whose first axis may have another length in another one.
        spec: what a data point looks like, by name; in place of looking at the first one.
        live: whether it gives something else each time; needs `spec`.

    Returns:
        A dataset of dictionaries name -> tensor, of the dtypes and shapes of the first data point. It has `len(flow)`
        elements, if the flow has a length.

    Raises:
        DataError: the flow is empty or can be read once only, the names do not fit its data points, or it is live and
            has no `spec`.
    """
    kind = type(flow).__name__
    if live and spec is None:
        raise DataError(
            f"{kind} is live, so it cannot be looked at: say what it gives with spec={{name: tf.TensorSpec}}"
        )
    if isinstance(flow, Iterator):
        raise DataError(f"a {kind} can be read once only: give what it was made of, or a DataFlow")
    names = list(spec) if names is None and spec is not None else names
    if hasattr(flow, "reset_state"):
        flow.reset_state()

    def points() -> Iterator[dict[str, Any]]:
        for point in flow:
            yield _named(point, names, kind)

    signature = dict(spec) if spec is not None else _look_at(flow, names, batched)
    dataset = tf.data.Dataset.from_generator(points, output_signature=signature)
    setattr(dataset, _LIVE, live)
    try:
        length = len(flow)  # type: ignore[arg-type]
    except (TypeError, ValueError, NotImplementedError):  # it has none, or no end
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(length))


def is_live(stage: Any) -> bool:
    """Whether a stage of a dataset is a `dataflow` that is live."""
    return getattr(stage, _LIVE, False) is True


def _look_at(flow: Iterable[Any], names: Sequence[str] | None, batched: bool) -> dict[str, tf.TensorSpec]:
    """What the data points of a flow are like, from the first one."""
    kind = type(flow).__name__
    with announcing(f"waiting for the first data point of {kind} (with spec=... none is read here)"):
        first = next(iter(flow), None)
    if first is None:
        raise DataError(f"{kind} gave no data point")

    def spec(name: str, value: Any) -> tf.TensorSpec:
        array = np.asarray(value)
        if batched and not array.shape:
            raise DataError(f"{name!r} of {kind} is a number, and with batched=True it must have an axis")
        shape = [None, *array.shape[1:]] if batched else array.shape
        return tf.TensorSpec(shape, tf.string if array.dtype.kind in "OSU" else array.dtype)

    return {name: spec(name, value) for name, value in _named(first, names, kind).items()}


def _named(point: Any, names: Sequence[str] | None, flow: str) -> dict[str, Any]:
    if isinstance(point, Mapping):
        missing = [name for name in names or () if name not in point]
        if missing:
            raise DataError(f"{flow} has no {missing[0]!r}; a data point has: {', '.join(map(str, point))}")
        return {name: point[name] for name in names} if names is not None else dict(point)
    if not isinstance(point, list | tuple):
        raise DataError(f"{flow} must give lists, tuples or dicts; it gave a {type(point).__name__}")
    if names is None or len(names) != len(point):
        given = "no names" if names is None else f"{len(names)} names"
        raise DataError(f"{flow} gives data points of {len(point)} components, and there are {given}: give names=[...]")
    return dict(zip(names, point, strict=True))


def _read_json_lines(path: PathLike, specs: Specs, columns: dict[str, list[list[Any]]]) -> None:
    """Appends the leaves of every feature of every line to `columns`."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{_shown(path)}: cannot be read ({error.strerror})") from error
    filled = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    for number, line in filled:
        try:
            _read_json_line(line, specs, columns)
        except DataError as error:
            raise DataError(f"{_shown(path)}, line {number}: {error}") from None
    if not filled:
        raise DataError(f"{_shown(path)}: holds no examples; it must have one JSON object per line")


def _read_json_line(line: bytes, specs: Specs, columns: dict[str, list[list[Any]]]) -> None:
    try:
        item = json.loads(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits; brackets nested as deep
        raise DataError(f"not JSON ({error})") from None
    if not isinstance(item, dict):
        raise DataError(f"not a JSON object: {_short(item)}")
    for name, (check, shape) in specs.items():
        if name not in item:
            raise DataError(f"{name!r} is missing")
        leaves = _leaves(name, item[name], shape)
        for leaf in leaves:
            if problem := check(leaf):
                raise DataError(f"{name!r}: {_short(leaf)} {problem}")
        columns[name].append(leaves)


def _leaves(name: str, value: Any, shape: tuple[int, ...]) -> list[Any]:
    """The values in nested lists of exactly this shape, in row-major order."""
    if not shape:
        return [value]
    if not isinstance(value, list):
        raise DataError(f"{name!r}: {_short(value)} is not a list of {shape[0]} values")
    if len(value) != shape[0]:
        raise DataError(f"{name!r} has {len(value)} values where {shape[0]} are expected")
    if len(shape) == 1:
        return value
    return [leaf for row in value for leaf in _leaves(name, row, shape[1:])]


def _checker(name: str, dtype: tf.DType) -> Checker:
    """A function that says what is wrong with one JSON value of a feature, or None."""
    types = {tf.bool: (bool,), tf.string: (str,)}.get(dtype) or ((int,) if dtype.is_integer else (int, float))
    if types[0] is int and not (dtype.is_integer or dtype.is_floating):
        raise DataError(f"{name!r}: JSON holds no {dtype.name}; use an integer, a floating, bool or string")
    # Python's numbers compare with JSON integers of any size, NumPy's do not.
    low, high = map(types[-1], (dtype.min, dtype.max)) if types[0] is int else (0, 0)

    def check(value: Any) -> str | None:
        if type(value) not in types:  # exactly: a bool is an int to Python
            return f"is not of type {dtype.name}"
        if isinstance(value, str):  # JSON can write half of a surrogate pair, which UTF-8 cannot hold
            return None if value.isascii() or value == value.encode("utf-8", "ignore").decode() else "is not Unicode"
        if isinstance(value, bool) or low <= value <= high:
            return None
        return f"does not fit into {dtype.name}" if abs(value) < math.inf else "is not finite"

    return check


def _record_feature(name: str, feature: Any) -> Any:
    if type(feature) is not tuple:  # the `tf.io` features are named tuples, subclasses of it
        return feature
    dtype = tf.as_dtype(feature[0])
    if dtype not in (tf.float32, tf.int64, tf.string):
        raise DataError(f"{name!r}: TFRecords hold float32, int64 and string, not {dtype.name}; cast it afterwards")
    return tf.io.FixedLenFeature(feature[1], dtype)


def _shown(path: PathLike) -> str:
    """A path as the user would type it: relative when it is below the current directory."""
    absolute, here = Path(path).absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _short(value: Any) -> str:
    """A JSON value in one line of at most 40 characters."""
    text = "a nested list" if isinstance(value, list | dict) else json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
