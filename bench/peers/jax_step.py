#!/usr/bin/env python3
"""One training step of the reference models in JAX on the CPU, compiled whole, with donated state."""

import os

import step_timer

FORMS = ["jit", "jit-reshape-pool"]
args = step_timer.arguments(__doc__, FORMS)
os.environ["JAX_PLATFORMS"] = "cpu"

import functools
import math

import jax
import jax.numpy as jnp
import numpy
from jax import lax

RNG = numpy.random.default_rng(1)


def he_normal(*shape):
    fan_in = math.prod(shape[:-1])
    return jnp.asarray(RNG.standard_normal(shape, dtype=numpy.float32) * math.sqrt(2 / fan_in))


def conv(x, w, stride=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x):
    if args.form == "jit-reshape-pool":
        n, h, w, c = x.shape
        return x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def dense_params(fan_in, fan_out):
    return {"w": he_normal(fan_in, fan_out), "b": jnp.zeros(fan_out)}


def dense(p, x):
    return x @ p["w"] + p["b"]


# Each model: (weights, running statistics) and apply(weights, statistics, x) -> (logits, new statistics).


def mlp():
    sizes = [784, 512, 512, step_timer.CLASSES]

    def apply(weights, stats, x):
        for p in weights[:-1]:
            x = jax.nn.relu(dense(p, x))
        return dense(weights[-1], x), stats

    return [dense_params(a, b) for a, b in zip(sizes, sizes[1:])], [], apply


def mnist():
    weights = {
        "conv": [{"w": he_normal(3, 3, c, 32), "b": jnp.zeros(32)} for c in (1, 32, 32, 32)],
        "fc0": dense_params(7 * 7 * 32, 512),
        "fc1": dense_params(512, step_timer.CLASSES),
    }

    def apply(weights, stats, x):
        for i, p in enumerate(weights["conv"]):
            x = jax.nn.relu(conv(x, p["w"]) + p["b"])
            if i in (0, 2):
                x = max_pool(x)
        x = jax.nn.relu(dense(weights["fc0"], x.reshape(x.shape[0], -1)))
        return dense(weights["fc1"], x), stats

    return weights, [], apply


def conv_bn_params(channels_in, channels_out):
    weights = {"w": he_normal(3, 3, channels_in, channels_out), "gamma": jnp.ones(channels_out), "beta": jnp.zeros(channels_out)}
    return weights, {"mean": jnp.zeros(channels_out), "var": jnp.ones(channels_out)}


def conv_bn(p, running, x, stride=1):
    x = conv(x, p["w"], stride)
    count = math.prod(x.shape[:3])
    mean = x.mean((0, 1, 2))
    var = jnp.maximum((x * x).mean((0, 1, 2)) - mean * mean, 0)
    keep = step_timer.BN_MOMENTUM
    running = {
        "mean": keep * running["mean"] + (1 - keep) * mean,
        "var": keep * running["var"] + (1 - keep) * var * (count / (count - 1)),
    }
    return (x - mean) * (lax.rsqrt(var + step_timer.BN_EPSILON) * p["gamma"]) + p["beta"], running


def resnet32():
    widths = [16] * 6 + [32] * 5 + [64] * 5
    pairs = [(3, 16)] + [pair for a, b in zip(widths, widths[1:]) for pair in ((a, b), (b, b))]
    weights, stats = zip(*[conv_bn_params(a, b) for a, b in pairs])

    def apply(weights, stats, x):
        convs, updated = weights["conv"], []

        def next_conv_bn(x, stride=1):
            i = len(updated)
            x, running = conv_bn(convs[i], stats[i], x, stride)
            updated.append(running)
            return x

        x = jax.nn.relu(next_conv_bn(x))
        for a, b in zip(widths, widths[1:]):
            y = next_conv_bn(jax.nn.relu(next_conv_bn(x, 1 if a == b else 2)))
            if a != b:
                before = (b - a) // 2
                x = jnp.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (before, b - a - before)))
            x = jax.nn.relu(x + y)
        return dense(weights["fc"], x.mean((1, 2))), updated

    return {"conv": list(weights), "fc": dense_params(64, step_timer.CLASSES)}, list(stats), apply


weights, stats, apply = {"mlp": mlp, "mnist": mnist, "resnet32": resnet32}[args.model]()


def cost(weights, stats, x, labels):
    logits, stats = apply(weights, stats, x)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - picked).mean(), stats


@functools.partial(jax.jit, donate_argnums=0)
def train(state, x, labels):
    weights, stats, m, v, t = state
    (loss, stats), grads = jax.value_and_grad(cost, has_aux=True)(weights, stats, x, labels)
    t = t + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    rate, scale = step_timer.LEARNING_RATE / (1 - 0.9**t), 1 / (1 - 0.999**t)
    weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v * scale) + 1e-8), weights, m, v)
    return (weights, stats, m, v, t), loss


x, labels = map(jnp.asarray, step_timer.synthetic(args))
state = (weights, stats, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights), jnp.zeros(()))
parameters = sum(w.size for w in jax.tree.leaves(weights))


def step():
    global state
    state, loss = train(state, x, labels)
    jax.block_until_ready(state)
    return float(loss)


step_timer.measure(args, "jax", jax.__version__, parameters, step)
