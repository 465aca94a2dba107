#!/usr/bin/env python3
"""One training step of the reference models in JAX, compiled as one function with donated state."""

import os

import step_timer

FORMS = ["jit", "jit-reshape-pool", "jit-plain-attention"]
args = step_timer.arguments(__doc__, FORMS)
if args.model in ("dqn", "ptb", "dcgan"):
    raise SystemExit(f"JAX does not measure {args.model}")
if args.dtype == "bf16" and args.model not in ("resnet50", "transformer"):
    raise SystemExit(f"JAX measures {args.model} in f32 only")
os.environ["JAX_PLATFORMS"] = args.device

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
    return lax.conv_general_dilated(x, w.astype(x.dtype), (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x):
    if args.form == "jit-reshape-pool":
        n, h, w, c = x.shape
        return x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def dense_params(fan_in, fan_out):
    return {"w": he_normal(fan_in, fan_out), "b": jnp.zeros(fan_out)}


def dense(p, x):
    return x @ p["w"].astype(x.dtype) + p["b"].astype(x.dtype)


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


def conv_bn_params(channels_in, channels_out, kernel=3):
    weights = {
        "w": he_normal(kernel, kernel, channels_in, channels_out),
        "gamma": jnp.ones(channels_out),
        "beta": jnp.zeros(channels_out),
    }
    return weights, {"mean": jnp.zeros(channels_out), "var": jnp.ones(channels_out)}


def conv_bn(p, running, x, stride=1):
    """Batch norm with statistics in f32; scale and shift are applied in the dtype of the activations."""
    x = conv(x, p["w"], stride)
    count = math.prod(x.shape[:3])
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    var = jnp.maximum((wide * wide).mean((0, 1, 2)) - mean * mean, 0)
    keep = step_timer.BN_MOMENTUM
    running = {
        "mean": keep * running["mean"] + (1 - keep) * mean,
        "var": keep * running["var"] + (1 - keep) * var * (count / (count - 1)),
    }
    scale = lax.rsqrt(var + step_timer.BN_EPSILON) * p["gamma"]
    mean, scale, shift = (a.astype(x.dtype) for a in (mean, scale, p["beta"]))
    return (x - mean) * scale + shift, running


class ConvBns:
    """Applies the convolutions of a model in order and collects their new statistics."""

    def __init__(self, weights, stats):
        self.weights, self.stats, self.updated = weights, stats, []

    def __call__(self, x, stride=1):
        i = len(self.updated)
        x, running = conv_bn(self.weights[i], self.stats[i], x, stride)
        self.updated.append(running)
        return x


def resnet32():
    widths = [16] * 6 + [32] * 5 + [64] * 5
    pairs = [(3, 16)] + [pair for a, b in zip(widths, widths[1:]) for pair in ((a, b), (b, b))]
    weights, stats = zip(*[conv_bn_params(a, b) for a, b in pairs])

    def apply(weights, stats, x):
        conv_bn = ConvBns(weights["conv"], stats)
        x = jax.nn.relu(conv_bn(x))
        for a, b in zip(widths, widths[1:]):
            y = conv_bn(jax.nn.relu(conv_bn(x, 1 if a == b else 2)))
            if a != b:
                before = (b - a) // 2
                x = jnp.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (before, b - a - before)))
            x = jax.nn.relu(x + y)
        return dense(weights["fc"], x.mean((1, 2))), conv_bn.updated

    return {"conv": list(weights), "fc": dense_params(64, step_timer.CLASSES)}, list(stats), apply


def resnet50():
    """v1.5: the stride of a block is on its 3x3 convolution."""
    blocks, channels = [], 64  # (channels in, width, stride) of each
    for stage, count in enumerate([3, 4, 6, 3]):
        for i in range(count):
            blocks.append((channels, 64 << stage, 2 if stage > 0 and i == 0 else 1))
            channels = 256 << stage
    shapes = [(3, 64, 7)]
    for a, width, _ in blocks:
        shapes += [(a, width, 1), (width, width, 3), (width, 4 * width, 1)]
        if a != 4 * width:
            shapes.append((a, 4 * width, 1))
    weights, stats = zip(*[conv_bn_params(*shape) for shape in shapes])

    def apply(weights, stats, x):
        x = x.astype(jnp.bfloat16 if args.dtype == "bf16" else jnp.float32)
        conv_bn = ConvBns(weights["conv"], stats)
        x = jax.nn.relu(conv_bn(x, 2))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for a, width, stride in blocks:
            y = jax.nn.relu(conv_bn(x))
            y = jax.nn.relu(conv_bn(y, stride))
            y = conv_bn(y)
            x = jax.nn.relu(y + (x if a == 4 * width else conv_bn(x, stride)))
        return dense(weights["fc"], x.mean((1, 2))).astype(jnp.float32), conv_bn.updated

    return {"conv": list(weights), "fc": dense_params(channels, step_timer.IMAGENET_CLASSES)}, list(stats), apply


def transformer():
    """A language model of bytes. Products are in the dtype of the activations, layer norm in f32. On a GPU in bf16,
    attention is cuDNN's, except in the form `jit-plain-attention`."""
    dtype = jnp.bfloat16 if args.dtype == "bf16" else jnp.float32
    fused = args.device == "cuda" and args.dtype == "bf16" and args.form != "jit-plain-attention"
    width, heads = step_timer.WIDTH, step_timer.HEADS

    def embedding(count):
        return jnp.asarray(RNG.standard_normal((count, width), dtype=numpy.float32) * 0.02)

    def norm_params():
        return {"scale": jnp.ones(width), "shift": jnp.zeros(width)}

    def norm(p, x):
        wide = x.astype(jnp.float32)
        mean = wide.mean(-1, keepdims=True)
        centered = wide - mean
        scale = lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)
        return (centered * scale * p["scale"] + p["shift"]).astype(x.dtype)

    def layer(p, x):
        qkv = dense(p["qkv"], norm(p["norm1"], x)).reshape(*x.shape[:2], 3, heads, width // heads)
        q, k, v = (qkv[:, :, i] for i in range(3))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn" if fused else "xla")
        x = x + dense(p["out"], y.reshape(x.shape))
        hidden = jax.nn.gelu(dense(p["linear1"], norm(p["norm2"], x)), approximate=False)
        return x + dense(p["linear2"], hidden)

    weights = {
        "words": embedding(step_timer.BYTES),
        "positions": embedding(step_timer.TOKENS),
        "layers": [
            {
                "norm1": norm_params(),
                "norm2": norm_params(),
                "qkv": dense_params(width, 3 * width),
                "out": dense_params(width, width),
                "linear1": dense_params(width, 4 * width),
                "linear2": dense_params(4 * width, width),
            }
            for _ in range(step_timer.LAYERS)
        ],
        "norm": norm_params(),
        "head": dense_params(width, step_timer.BYTES),
    }

    def apply(weights, stats, words):
        x = (weights["words"][words] + weights["positions"]).astype(dtype)
        for p in weights["layers"]:
            x = layer(p, x)
        return dense(weights["head"], norm(weights["norm"], x)).astype(jnp.float32), stats

    return weights, [], apply


models = {"mlp": mlp, "mnist": mnist, "resnet32": resnet32, "resnet50": resnet50, "transformer": transformer}
weights, stats, apply = models[args.model]()


def cost(weights, stats, x, labels):
    logits, stats = apply(weights, stats, x)
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean(), stats


def adam(weights, grads, slots):
    m, v, t = slots
    t = t + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    rate, scale = step_timer.LEARNING_RATE / (1 - 0.9**t), 1 / (1 - 0.999**t)
    weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v * scale) + 1e-8), weights, m, v)
    return weights, (m, v, t)


def momentum(weights, grads, v):
    v = jax.tree.map(lambda v, g, w: step_timer.MOMENTUM * v + g + step_timer.WEIGHT_DECAY * w, v, grads, weights)
    return jax.tree.map(lambda w, v: w - step_timer.LEARNING_RATE * v, weights, v), v


def zeros():
    return jax.tree.map(jnp.zeros_like, weights)


update, slots = (momentum, zeros()) if args.model == "resnet50" else (adam, (zeros(), zeros(), jnp.zeros(())))


def train(state, x, labels):
    weights, stats, slots = state
    (loss, stats), grads = jax.value_and_grad(cost, has_aux=True)(weights, stats, x, labels)
    weights, slots = update(weights, grads, slots)
    return (weights, stats, slots), loss


@functools.partial(jax.jit, donate_argnums=0)
def train_one(state, x, labels):
    return train(state, x, labels)


@functools.partial(jax.jit, donate_argnums=0)
def train_several(state, xs, labels):
    """Trains on the batches of `xs` and `labels` in turn; returns their losses."""
    return lax.scan(lambda state, batch: train(state, *batch), state, (xs, labels))


x, labels = map(jnp.asarray, step_timer.synthetic(args))
launched = train_one
if args.scan > 1:
    x, labels = (jnp.stack([a] * args.scan) for a in (x, labels))
    launched = train_several
state = (weights, stats, slots)
parameters = sum(w.size for w in jax.tree.leaves(weights))
loss = None


def launch():
    global state, loss
    state, loss = launched(state, x, labels)


def step():
    launch()
    jax.block_until_ready(state)
    return float(loss.reshape(-1)[-1])


step_timer.measure(args, "jax", jax.__version__, parameters, step, launch)
