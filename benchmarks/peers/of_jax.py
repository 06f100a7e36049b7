"""JAX by hand: the layers of `benchmarks.workloads` as functions, and Adam from Optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp

from benchmarks.peers.turns import LOG, Batches, Turns, loop

CLASSES, EPSILON = 10, 1e-3
Tree = dict[str, Any]
Apply = Callable[[Tree, Tree, Any], tuple[Any, Tree]]  # from parameters, statistics and x to logits and statistics


class Maker:
    """Makes parameters with Keras's initial values: Glorot kernels, ones for scales, zeros otherwise."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def kernel(self, *shape: int) -> Any:
        patch = int(np.prod(shape[:-2]))
        limit = (6 / (patch * (shape[-2] + shape[-1]))) ** 0.5
        return jnp.asarray(self._random.uniform(-limit, limit, shape), jnp.float32)

    def dense(self, before: int, after: int) -> Tree:
        return {"w": self.kernel(before, after), "b": jnp.zeros(after)}

    def norm(self, width: int) -> Tree:
        return {"scale": jnp.ones(width), "offset": jnp.zeros(width)}

    def embedding(self, count: int, width: int) -> Any:
        return jnp.asarray(self._random.uniform(-0.05, 0.05, (count, width)), jnp.float32)


def dense(p: Tree, x: Any) -> Any:
    return x @ p["w"] + p["b"]


def mlp(make: Maker) -> tuple[Tree, Tree, Apply]:
    parameters = {"0": make.dense(64, 128), "1": make.dense(128, 128), "2": make.dense(128, CLASSES)}

    def apply(p: Tree, stats: Tree, x: Any) -> tuple[Any, Tree]:
        x = jax.nn.relu(dense(p["0"], x))
        return dense(p["2"], jax.nn.relu(dense(p["1"], x))), stats

    return parameters, {}, apply


def lstm(make: Maker) -> tuple[Tree, Tree, Apply]:
    width = 32
    parameters = {
        "embedding": make.embedding(1000, width),
        "input": make.dense(width, 4 * width),
        "state": make.kernel(width, 4 * width),
        "logits": make.dense(width, CLASSES),
    }

    def apply(p: Tree, stats: Tree, x: Any) -> tuple[Any, Tree]:
        inputs = dense(p["input"], p["embedding"][x]).swapaxes(0, 1)  # for all tokens at once
        zeros = jnp.zeros((x.shape[0], width))

        def token(carry: tuple[Any, Any], now: Any) -> tuple[tuple[Any, Any], None]:
            h, c = carry
            i, f, g, o = jnp.split(now + h @ p["state"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        (h, _), _ = lax.scan(token, (zeros, zeros), inputs)
        return dense(p["logits"], h), stats

    return parameters, {}, apply


def transformer(make: Maker) -> tuple[Tree, Tree, Apply]:
    width, heads = 64, 2
    parameters: Tree = {"embedding": make.embedding(1000, width), "logits": make.dense(width, CLASSES)}
    for number in range(4):
        parameters[f"layer{number}"] = {
            "norm1": make.norm(width),
            "norm2": make.norm(width),
            **{name: make.dense(width, width) for name in ("query", "key", "value", "out")},
            "dense1": make.dense(width, 2 * width),
            "dense2": make.dense(2 * width, width),
        }

    def norm(p: Tree, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return centred * lax.rsqrt(variance + EPSILON) * p["scale"] + p["offset"]

    def layer(p: Tree, x: Any) -> Any:
        inner = norm(p["norm1"], x)
        split = (*x.shape[:2], heads, width // heads)
        query, key, value = (dense(p[name], inner).reshape(split) for name in ("query", "key", "value"))
        x = x + dense(p["out"], jax.nn.dot_product_attention(query, key, value).reshape(x.shape))
        return x + dense(p["dense2"], jax.nn.gelu(dense(p["dense1"], norm(p["norm2"], x)), approximate=False))

    def apply(p: Tree, stats: Tree, x: Any) -> tuple[Any, Tree]:
        x = p["embedding"][x]
        for number in range(4):
            x = layer(p[f"layer{number}"], x)
        return dense(p["logits"], x.mean(1)), stats

    return parameters, {}, apply


def resnet18(make: Maker) -> tuple[Tree, Tree, Apply]:
    parameters: Tree = {"logits": make.dense(512, CLASSES)}
    stats: Tree = {}

    def add(name: str, before: int, filters: int, size: int) -> None:
        parameters[name] = {"kernel": make.kernel(size, size, before, filters), **make.norm(filters)}
        stats[name] = {"mean": jnp.zeros(filters), "variance": jnp.ones(filters)}

    blocks, before = [], 64
    add("stem", 3, 64, 3)
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(2):
            name, stride = f"block{stage}_{block}", 2 if stage and not block else 1
            blocks.append((name, stride))
            add(f"{name}_1", before, filters, 3)
            add(f"{name}_2", filters, filters, 3)
            if stride > 1:
                add(f"{name}_short", before, filters, 1)
            before = filters

    def apply(p: Tree, stats: Tree, x: Any) -> tuple[Any, Tree]:
        new: Tree = {}

        def conv(name: str, x: Any, stride: int = 1) -> Any:
            one, was = p[name], stats[name]
            dimensions = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, one["kernel"], (stride, stride), "SAME", dimension_numbers=dimensions)
            mean = x.mean((0, 1, 2))
            variance = jnp.square(x - mean).mean((0, 1, 2))
            new[name] = {
                "mean": 0.99 * was["mean"] + 0.01 * lax.stop_gradient(mean),
                "variance": 0.99 * was["variance"] + 0.01 * lax.stop_gradient(variance),
            }
            return (x - mean) * (lax.rsqrt(variance + EPSILON) * one["scale"]) + one["offset"]

        x = jax.nn.relu(conv("stem", x))
        for name, stride in blocks:
            inner = conv(f"{name}_2", jax.nn.relu(conv(f"{name}_1", x, stride)))
            x = jax.nn.relu(inner + (conv(f"{name}_short", x, stride) if stride > 1 else x))
        return dense(p["logits"], x.mean((1, 2))), new

    return parameters, stats, apply


MODELS = {"mlp": mlp, "resnet18": resnet18, "transformer": transformer, "lstm": lstm}


def by_hand(name: str, batches: Batches, turns: Turns, *, at_once: int = 1) -> None:
    """Train with a compiled step called from Python, or with a compiled `lax.scan` over several steps.

    Raises:
        SystemExit: A network with convolutions was to be trained in a `lax.scan`.
    """
    if at_once > 1 and name == "resnet18":
        raise SystemExit("with convolutions in a lax.scan on a CPU, ten steps were not done after 100 seconds")
    turns.begin()
    parameters, stats, apply = MODELS[name](Maker())
    optimizer = optax.adam(1e-3)
    count = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    state = (parameters, stats, optimizer.init(parameters))
    x, y = jnp.asarray(batches.x), jnp.asarray(batches.y)

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        parameters, stats, moments = state

        def loss_of(parameters: Tree) -> tuple[Any, Tree]:
            logits, new = apply(parameters, stats, batch[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean(), new

        (loss, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(parameters, updates), stats, moments), loss

    def scan(state: Any, begin: Any) -> tuple[Any, Any]:
        def one(state: Any, index: Any) -> tuple[Any, Any]:
            return step(state, (x[index], y[index]))

        state, losses = lax.scan(one, state, (begin + jnp.arange(at_once)) % len(x))
        return state, losses[-1]

    at_once = min(at_once, turns.steps)
    call = jax.jit(step if at_once == 1 else scan, donate_argnums=0)
    data = list(zip(x, y, strict=True))
    for end, index in loop(turns, batches):
        if end % at_once:
            continue
        state, loss = call(state, data[index] if at_once == 1 else jnp.asarray(end - at_once))
        if end % LOG == 0:
            print(end, float(loss))
        if end == turns.end:
            turns.over(float(jax.block_until_ready((state, loss))[1]), count)
