"""Batches of pairs of images of one product: random for training (trn), fixed for validation (vld)."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import ConfigError, DataError

from .config import config
from .faults import usable
from .layouts import Picture, read_shop
from .pictures import augmented, plain

Pair = dict[str, tf.Tensor]


def datasets() -> dict[str, tf.data.Dataset]:
    """Return datasets of "query" and "positive", uint8 [batch, height, width, 3], and "product", int32 [batch].

    The training data has no end and no epochs. Its n-th batch is a function of the run's seed and n, and nothing of it
    is drawn by an op with a state, so the position is part of a checkpoint.
    """
    shop = read_shop()
    trn, vld = split(by_product(usable(shop, shop.trn)), config["data.validation_share"])
    if not trn:
        raise DataError(f"there is no product with two pictures to train on in {shop.directory}")
    batch_size = config["model.batch_size"]
    drawn = draw_pairs(
        trn, batch_size, within_class=config["model.random_within_class"], seed=config["trainer.random_seed"]
    )
    found = {"trn": _load(drawn, trn, shop.directory, random=True).batch(batch_size, drop_remainder=True)}
    if vld:
        found["vld"] = _load(all_pairs(vld), vld, shop.directory, random=False).batch(batch_size)
    return found


def by_product(pictures: list[Picture]) -> list[Picture]:
    """Sort images by class and product; a product in several classes belongs to the first one."""
    first: dict[str, str] = {}
    for picture in pictures:
        first.setdefault(picture.product, picture.category)
    return sorted(pictures, key=lambda picture: (first[picture.product], picture.product))


def split(pictures: list[Picture], share: float) -> tuple[list[Picture], list[Picture]]:
    """Split images, sorted by product: every n-th product is for validation."""
    if not 0.0 <= share < 1.0:
        raise ConfigError(f"data.validation_share: expected a share from 0 and below 1, got {share!r}")
    trn: list[Picture] = []
    vld: list[Picture] = []
    for number, (_, group) in enumerate(groupby(pictures, key=lambda picture: picture.product), 1):
        held_out = int(number * share) > int((number - 1) * share)
        (vld if held_out else trn).extend(group)
    return trn, vld


def draw_pairs(pictures: list[Picture], batch_size: int, *, within_class: float, seed: int) -> tf.data.Dataset:
    """Draws, for batch after batch, different products and two different pictures of each.

    Args:
        pictures: as `by_product` sorts them, at least two of each product.
        batch_size: the number of products in a batch. If there are fewer, some are drawn more than once.
        within_class: the probability that a batch is of one class; larger classes are drawn more often.
        seed: the n-th batch is a function of it and n.

    Returns:
        an endless dataset of single pairs: "query" and "positive", int64 indices into `pictures`, "product", an int32
        number, and "seed", int64 [2], a different one for each pair.

    Raises:
        ConfigError: `within_class` is no probability.
    """
    if not 0.0 <= within_class <= 1.0:
        raise ConfigError(f"model.random_within_class: expected a probability from 0 to 1, got {within_class!r}")
    first_picture, pictures_of = _runs([picture.product for picture in pictures])
    categories = [pictures[index].category for index in first_picture]  # of each product
    first_product, products_of = _runs(categories)
    class_of = np.repeat(np.arange(len(products_of)), products_of)
    with_negatives = np.flatnonzero(products_of[class_of] > 1)
    within_class = within_class if len(with_negatives) else 0.0

    def draw(number: tf.Tensor) -> Pair:
        # Constants are made here, inside the function, where they count among what a resume checks.
        chance, one_of, order, query, other = tf.unstack(tf.random.split([seed, number], 5))
        if within_class:
            at = tf.random.stateless_uniform([], one_of, maxval=len(with_negatives), dtype=tf.int32)
            category = tf.gather(class_of, tf.gather(with_negatives, at))
            within = tf.random.stateless_uniform([], chance) < within_class
        else:
            category, within = tf.constant(0, tf.int64), tf.constant(False)
        first = tf.where(within, tf.gather(first_product, category), 0)
        count = tf.where(within, tf.gather(products_of, category), len(categories))
        shuffled = tf.random.experimental.stateless_shuffle(tf.range(first, first + count), order)
        product = tf.gather(shuffled, tf.range(batch_size, dtype=tf.int64) % count)
        there = tf.cast(tf.gather(pictures_of, product), tf.float64)
        of_query = _below(there, query)
        step = 1 + _below(there - 1.0, other)
        of_positive = (of_query + step) % tf.gather(pictures_of, product)
        start = tf.gather(first_picture, product)
        pair = number * batch_size + tf.range(batch_size, dtype=tf.int64)
        return {
            "query": start + of_query,
            "positive": start + of_positive,
            "product": tf.cast(product, tf.int32),
            "seed": tf.stack([tf.fill([batch_size], tf.constant(seed, tf.int64)), pair], 1),
        }

    return tf.data.Dataset.counter().map(draw).unbatch()


def all_pairs(pictures: list[Picture]) -> tf.data.Dataset:
    """Return each image once as the query, with the next image of its product, in an order that mixes products."""
    start, count = _runs([picture.product for picture in pictures])
    product = np.repeat(np.arange(len(start)), count)
    query = np.arange(len(pictures))
    positive = start[product] + (query - start[product] + 1) % count[product]
    order = np.random.default_rng(0).permutation(len(pictures))
    return tf.data.Dataset.from_tensor_slices(
        {"query": query[order], "positive": positive[order], "product": product[order].astype(np.int32)}
    )


def _load(pairs: tf.data.Dataset, pictures: list[Picture], directory: Path, *, random: bool) -> tf.data.Dataset:
    names = [picture.path for picture in pictures]
    root = tf.constant(f"{directory}/")  # outside of the function: a data set may be moved between runs

    def load(pair: Pair) -> Pair:
        seeds = tf.random.split(pair["seed"], 2) if random else None

        def picture(place: int, role: str) -> tf.Tensor:
            path = root + tf.gather(names, pair[role])
            return plain(path) if seeds is None else augmented(path, seeds[place])

        return {"query": picture(0, "query"), "positive": picture(1, "positive"), "product": pair["product"]}

    return pairs.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _runs(values: list[str]) -> tuple[Any, Any]:
    """The start and the length of each run of equal values, int64."""
    counts = np.array([len(list(group)) for _, group in groupby(values)], np.int64)
    return np.cumsum(counts) - counts, counts


def _below(limits: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A random whole number below each of the limits, float64 [n]."""
    drawn = tf.random.stateless_uniform(tf.shape(limits), seed, dtype=tf.float64)
    return tf.cast(tf.floor(drawn * limits), tf.int64)
