"""Catalogues on disk, in the official layouts of Stanford Online Products and of DeepFashion's In-shop benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from prototrain.errors import ConfigError, DataError

from .config import config, is_sample
from .sample import render

SAMPLE = Path(__file__).parent / "data" / "catalogue"


class Picture(NamedTuple):
    """One picture of a product.

    Attributes:
        path: below the shop's directory.
        product: what has to be found again, by its id in the list file.
        category: the class of products it belongs to.
        box: what of the picture shows the product, as left, top, right, bottom in pixels; None: all of it.
    """

    path: str
    product: str
    category: str
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class Shop:
    """The pictures of a data set.

    Attributes:
        directory: what paths are relative to.
        class_folders: the directories that the layout has for each class, by the class's name.
        trn: pictures to train with; their products are none of the others.
        catalogue: pictures to search in.
        queries: pictures to search with; the same list as `catalogue` where each is to find the others.
    """

    directory: Path
    class_folders: dict[str, Path]
    trn: list[Picture]
    catalogue: list[Picture]
    queries: list[Picture]


def read_shop() -> Shop:
    """The data set that the config names; the sample catalogue is rendered if it is not there yet.

    Raises:
        ConfigError: there is no such layout, or no directory is given.
        DataError: a list file is missing or has a line that is not as it should be, or the sample cannot be written.
    """
    layout, directory = config["data.layout"], config["data.directory"]
    if layout not in LAYOUTS:
        raise ConfigError(f"data.layout: {layout!r} is none of {', '.join(LAYOUTS)}")
    if directory is None and not is_sample():
        raise ConfigError(f"data.layout {layout!r} needs data.directory: where its list files are")
    if directory is None and not SAMPLE.is_dir():
        print(f"rendering the sample catalogue into {SAMPLE}, once")
        try:
            render(SAMPLE)
        except OSError as error:
            raise DataError(f"cannot render the sample catalogue into {SAMPLE}: {error.strerror}") from error
    return LAYOUTS[layout](SAMPLE if directory is None else Path(directory).expanduser())


def stanford_online_products(directory: Path) -> Shop:
    """`Ebay_train.txt` and `Ebay_test.txt` beside the folders of pictures, one for each class.

    Each of the test pictures is a query, to which the others are the catalogue.
    https://cvgl.stanford.edu/projects/lifted_struct/

    Raises:
        DataError: see `read_shop`.
    """

    def pictures(name: str) -> list[Picture]:
        found = []
        for _, product, _, path in _rows(directory / name, header_lines=1, columns=4):
            found.append(Picture(path, product, _stanford_class(Path(path).parent.name)))
        return found

    folders = {_stanford_class(path.name): path for path in _folders(directory, "*")}
    test = pictures("Ebay_test.txt")
    return Shop(directory, folders, pictures("Ebay_train.txt"), test, test)


def deepfashion_inshop(directory: Path) -> Shop:
    """`list_eval_partition.txt` and `list_bbox_inshop.txt`, as they come (in `Eval` and `Anno`) or beside `img`.

    https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html

    Raises:
        DataError: see `read_shop`.
    """
    partition = _either(directory / "Eval", directory, "list_eval_partition.txt")
    boxes = {}
    for path, _, _, *corners in _rows(
        _either(directory / "Anno", directory, "list_bbox_inshop.txt"), header_lines=2, columns=7
    ):
        boxes[path] = _box(corners, path)
    parts: dict[str, list[Picture]] = {"train": [], "query": [], "gallery": []}
    for path, product, part in _rows(partition, header_lines=2, columns=3):
        if part not in parts:
            raise DataError(f"{partition}: {path} is of {part!r}, which is none of {', '.join(parts)}")
        category = "/".join(Path(path).parts[1:-2])  # img/WOMEN/Dresses/id_00000002/02_1_front.jpg
        parts[part].append(Picture(path, product, category, boxes.get(path)))
    root = directory / "Img" if (directory / "Img").is_dir() else directory
    folders = {str(path.relative_to(root / "img")): path for path in _folders(root / "img", "*/*")}
    return Shop(root, folders, parts["train"], parts["gallery"], parts["query"])


LAYOUTS = {
    "sample": stanford_online_products,
    "stanford_online_products": stanford_online_products,
    "deepfashion_inshop": deepfashion_inshop,
}


def _rows(path: Path, *, header_lines: int, columns: int) -> Iterator[list[str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(f"data.directory: {path} cannot be read: {why}") from error
    for number, line in enumerate(lines[header_lines:], header_lines + 1):
        row = line.split()
        if row and len(row) != columns:
            raise DataError(f"{path}:{number}: expected {columns} columns, got {len(row)}: {line[:80]!r}")
        if row:
            yield row


def _box(corners: list[str], path: str) -> tuple[int, int, int, int]:
    try:
        left, top, right, bottom = map(int, corners)
    except ValueError:
        raise DataError(f"list_bbox_inshop.txt: the box of {path} is not four whole numbers: {corners}") from None
    if not (0 <= left < right and 0 <= top < bottom):
        raise DataError(f"list_bbox_inshop.txt: the box of {path} has no area: {' '.join(corners)}")
    return left, top, right, bottom


def _either(first: Path, second: Path, name: str) -> Path:
    return first / name if (first / name).is_file() else second / name


def _folders(directory: Path, pattern: str) -> list[Path]:
    return sorted(path for path in directory.glob(pattern) if path.is_dir() and not path.name.startswith("."))


def _stanford_class(folder: str) -> str:
    return folder.removesuffix("_final")
