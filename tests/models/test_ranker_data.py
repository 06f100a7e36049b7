from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from models.ranker import layouts, sample
from models.ranker.datasets import all_pairs, datasets, draw_pairs, split
from models.ranker.layouts import Picture, read_shop
from models.ranker.pictures import augmented, plain
from prototrain import Config
from prototrain.errors import DataError
from tests.models.ranker_tree import PRODUCTS, VIEWS, config, stanford, write_stanford

__all__ = ["config", "stanford"]


def test_stanford_online_products(stanford: Path, config: Config) -> None:
    config["data.directory"] = str(stanford)
    shop = read_shop()
    assert len(shop.trn) == len(shop.catalogue) == 2 * PRODUCTS * VIEWS
    assert shop.trn[0] == Picture("mug_final/1_0.JPG", "1", "mug")
    assert not {p.product for p in shop.trn} & {p.product for p in shop.catalogue}


def test_sample_catalogue_is_rendered_once(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layouts, "SAMPLE", tmp_path / "catalogue")
    for name, number in {"TRAINING_PRODUCTS": 2, "TEST_PRODUCTS": 1, "VIEWS": 2}.items():
        monkeypatch.setattr(sample, name, number)
    config["data.layout"] = "sample"
    shop = read_shop()
    assert "rendering the sample catalogue" in capsys.readouterr().out
    assert len(shop.trn) == 8 * 2 * 2 and len(shop.catalogue) == 8 * 2
    assert read_shop() == shop and not capsys.readouterr().out
    sample.render(tmp_path / "again")
    files = [path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*") if path.is_file()]
    assert len(files) == 8 * 3 * 2 + 2
    for file in files:
        assert (tmp_path / "catalogue" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def test_faults_in_a_catalogue(tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    write_stanford(tmp_path)
    (tmp_path / "mug_final/2_1.JPG").unlink()
    (tmp_path / "mug_final/3_0.JPG").write_bytes((tmp_path / "mug_final/3_0.JPG").read_bytes()[:200])
    for view in (1, 2):
        (tmp_path / f"mug_final/4_{view}.JPG").unlink()  # which leaves a single picture of the product
    config.update({"data.directory": str(tmp_path), "data.validation_share": 0.0})
    words = "4 pictures are missing or cannot be decoded: mug_final/2_1.JPG, mug_final/3_0.JPG, mug_final/4_1"
    with pytest.raises(DataError, match=f"{words}.*; data.on_faulty_picture=skip leaves them out"):
        datasets()
    config.update({"data.on_faulty_picture": "skip", "data.validation_share": 0.5})
    found = datasets()
    assert words in capsys.readouterr().out
    assert sum(len(batch["product"]) for batch in found["vld"]) == pytest.approx(43 / 2, abs=2)
    assert next(iter(found["trn"]))["query"].shape == (8, 16, 16, 3)


PICTURES = [
    Picture(f"{category}/{product}_{view}", f"{category}{product}", category)
    for category, products in (("a", 6), ("b", 3), ("c", 1))
    for product in range(products)
    for view in range(2 + product % 3)
]


def _batches(within: float, count: int, *, size: int = 5, seed: int = 1) -> list[list[tuple[Picture, Picture]]]:
    pairs = draw_pairs(PICTURES, size, within_class=within, seed=seed).take(size * count).as_numpy_iterator()
    drawn = [(PICTURES[pair["query"]], PICTURES[pair["positive"]]) for pair in pairs]
    return [drawn[at : at + size] for at in range(0, len(drawn), size)]


def test_pairs_show_one_product() -> None:
    batches = _batches(0.0, 60)
    for batch in batches:
        assert all(query.product == positive.product and query != positive for query, positive in batch)
        assert len({query.product for query, _ in batch}) == len(batch)
    products = Counter(query.product for batch in batches for query, _ in batch)
    assert len(products) == 10 and min(products.values()) > 12  # 30 are expected of each
    assert {query for batch in batches for query, _ in batch} == set(PICTURES)
    assert any(len({query.category for query, _ in batch}) > 1 for batch in batches)


def test_batches_of_one_class() -> None:
    batches = _batches(1.0, 60)
    classes = [{query.category for query, _ in batch} for batch in batches]
    assert all(len(found) == 1 for found in classes)
    counts = Counter(next(iter(found)) for found in classes)
    assert counts["a"] > counts["b"] > 0 and counts["c"] == 0  # "c" has no possible negative
    of_b = next(batch for batch in batches if batch[0][0].category == "b")
    assert len({query.product for query, _ in of_b}) == 3  # some twice
    mixed = [len({query.category for query, _ in batch}) > 1 for batch in _batches(0.5, 60)]
    assert 15 < sum(mixed) < 45


def test_validation_pairs_are_fixed() -> None:
    pairs = list(all_pairs(PICTURES).as_numpy_iterator())
    assert sorted(pair["query"] for pair in pairs) == list(range(len(PICTURES)))
    for pair in pairs:
        query, positive = PICTURES[pair["query"]], PICTURES[pair["positive"]]
        assert query.product == positive.product and query != positive
    trn, vld = split(PICTURES, 0.3)
    assert len({p.product for p in vld}) == 3 and not {p.product for p in vld} & {p.product for p in trn}
    assert split(PICTURES, 0.0) == (PICTURES, [])


def test_augmentation_is_a_function_of_the_seed(tmp_path: Path, config: Config) -> None:
    path = tmp_path / "a.png"
    pixels = np.random.default_rng(0).integers(0, 255, (30, 20, 3)).astype(np.uint8)
    path.write_bytes(tf.io.encode_png(pixels).numpy())

    def draw(seed: int) -> np.ndarray:
        return augmented(str(path), tf.constant([5, seed], tf.int64)).numpy()

    assert draw(0).shape == (16, 16, 3) and draw(0).dtype == np.uint8
    assert (draw(0) == draw(0)).all()
    assert len({draw(seed).tobytes() for seed in range(8)}) == 8
    config.update({"model.augment.crop": 1.0, "model.augment.noise": 0.0, "model.augment.flip": True,
                   "model.augment.resize_methods": ["bilinear"]})  # fmt: skip
    whole = plain(str(path)).numpy()
    assert {draw(seed).tobytes() for seed in range(8)} == {whole.tobytes(), whole[:, ::-1].tobytes()}
