#!/usr/bin/env python3
"""Golden values for the tests, computed by PyTorch in float64.

Run:    python tests/golden/make_golden.py            (needs `pip install torch`; writes next to itself)
Check:  python tests/golden/make_golden.py --check    (recomputes, compares with the files, and compares
                                                       every gradient with finite differences)

Writes ops.json, more_ops.json, second.json, training.json and optimizers.json; README.md beside this file describes
the formats.
Inputs come from Python's own generator seeded by the case's name, so adding a case changes no other.
"""

import argparse
import json
import math
import pathlib
import platform
import random
import re
import sys
import zlib

import torch
import torch.nn.functional as F

import more_ops

HERE = pathlib.Path(__file__).resolve().parent
F64 = torch.float64


# ---------------------------------------------------------------- inputs


class Source:
    """Small inputs with four decimals, fixed by a name."""

    def __init__(self, name):
        self.random = random.Random(zlib.crc32(name.encode()))

    def _tensor(self, shape, draw):
        values = [round(draw(), 4) for _ in range(math.prod(shape))]
        return torch.tensor(values, dtype=F64).reshape(shape)

    def normal(self, *shape, scale=1.0):
        return self._tensor(shape, lambda: self.random.gauss(0.0, scale))

    def uniform(self, *shape, low=0.3, high=2.5):
        return self._tensor(shape, lambda: self.random.uniform(low, high))

    def away_from_zero(self, *shape):
        """Either sign, at least 0.2 from zero: for kinks and divisors."""
        return self._tensor(shape, lambda: self.random.choice((-1, 1)) * self.random.uniform(0.2, 2.0))

    def distinct(self, *shape):
        """No two elements are equal or nearly so: for maxima."""
        n = math.prod(shape)
        order = list(range(n))
        self.random.shuffle(order)
        values = [round((k - n / 2) * 0.0413 + 0.0107, 4) for k in order]
        return torch.tensor(values, dtype=F64).reshape(shape)

    def labels(self, n, classes):
        return torch.tensor([self.random.randrange(classes) for _ in range(n)], dtype=torch.int32)


# ---------------------------------------------------------------- operations
# Each is fn(attrs, *inputs) -> tensor or tuple of tensors. Images are NHWC, filters HWIO.


def same_or_given(padding, sizes, window, stride, dilation):
    """[[low, high], ...] per spatial dimension; SAME is TensorFlow's rule."""
    if padding == "VALID":
        return [[0, 0] for _ in sizes]
    if padding != "SAME":
        return padding
    pairs = []
    for n, k, s, d in zip(sizes, window, stride, dilation):
        out = -(-n // s)
        total = max((out - 1) * s + (k - 1) * d + 1 - n, 0)
        pairs.append([total // 2, total - total // 2])
    return pairs


def to_padded_nchw(x, pairs, value=0.0):
    x = x.permute(0, 3, 1, 2)
    (top, bottom), (left, right) = pairs
    return F.pad(x, (left, right, top, bottom), value=value)


def to_nhwc(x):
    return x.permute(0, 2, 3, 1)


def conv2d(attrs, x, w):
    stride, dilation = attrs["stride"], attrs["dilation"]
    pairs = same_or_given(attrs["padding"], x.shape[1:3], w.shape[:2], stride, dilation)
    y = F.conv2d(to_padded_nchw(x, pairs), w.permute(3, 2, 0, 1), stride=stride, dilation=dilation)
    return to_nhwc(y)


def max_pool(attrs, x):
    window, stride = attrs["window"], attrs["stride"]
    pairs = same_or_given(attrs["padding"], x.shape[1:3], window, stride, [1, 1])
    return to_nhwc(F.max_pool2d(to_padded_nchw(x, pairs, -math.inf), window, stride))


def avg_pool(attrs, x):
    window, stride = attrs["window"], attrs["stride"]
    pairs = same_or_given(attrs["padding"], x.shape[1:3], window, stride, [1, 1])

    def total(t):
        return F.avg_pool2d(to_padded_nchw(t, pairs), window, stride, divisor_override=1)

    return to_nhwc(total(x) / total(torch.ones_like(x)))


def matmul(attrs, a, b):
    a = a.mT if attrs["transpose_a"] else a
    b = b.mT if attrs["transpose_b"] else b
    return a @ b


COMPARE = {"lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne}


def compare_select(attrs, a, b, x, y):
    return torch.where(COMPARE[attrs["compare"]](a, b), x, y)


def moments(attrs, x):
    mean = x.mean(attrs["axes"], keepdim=True)
    var = (x - mean).square().mean(attrs["axes"], keepdim=True)
    shape = x.sum(attrs["axes"], keepdim=attrs["keep"]).shape
    return mean.reshape(shape), var.reshape(shape)


def cross_entropy(attrs, logits, labels):
    return F.cross_entropy(logits, labels.long(), reduction="none")


def batch_norm(attrs, x, gamma, beta):
    axes = list(range(x.dim() - 1))
    mean = x.mean(axes)
    var = (x - mean).square().mean(axes)
    return (x - mean) / torch.sqrt(var + attrs["eps"]) * gamma + beta


def pad(attrs, x):
    """Zeros before, after and between the elements of each axis."""
    shape, index = [], []
    for n, low, high, gap in zip(x.shape, attrs["low"], attrs["high"], attrs["interior"]):
        span = n + (n - 1) * gap
        shape.append(low + span + high)
        index.append(slice(low, low + span, gap + 1))
    y = torch.zeros(shape, dtype=x.dtype)
    y[tuple(index)] = x
    return y


def strided_slice(attrs, x):
    return x[tuple(slice(*bounds) for bounds in zip(attrs["begin"], attrs["end"], attrs["stride"]))].clone()


OPS = {
    "add": lambda _, a, b: a + b,
    "sub": lambda _, a, b: a - b,
    "mul": lambda _, a, b: a * b,
    "div": lambda _, a, b: a / b,
    "maximum": lambda _, a, b: torch.maximum(a, b),
    "minimum": lambda _, a, b: torch.minimum(a, b),
    "pow": lambda _, a, b: a**b,
    "neg": lambda _, x: -x,
    "abs": lambda _, x: x.abs(),
    "exp": lambda _, x: x.exp(),
    "log": lambda _, x: x.log(),
    "sqrt": lambda _, x: x.sqrt(),
    "rsqrt": lambda _, x: x.rsqrt(),
    "tanh": lambda _, x: x.tanh(),
    "sigmoid": lambda _, x: x.sigmoid(),
    "relu": lambda _, x: x.relu(),
    "square": lambda _, x: x.square(),
    # F.softplus turns linear above a threshold, which is off by 2e-9 there.
    "softplus": lambda _, x: torch.logaddexp(x, torch.zeros_like(x)),
    "erf": lambda _, x: x.erf(),
    "sin": lambda _, x: x.sin(),
    "cos": lambda _, x: x.cos(),
    "compare_select": compare_select,
    "reduce_sum": lambda at, x: x.sum(at["axes"], keepdim=at["keep"]),
    "reduce_mean": lambda at, x: x.mean(at["axes"], keepdim=at["keep"]),
    "reduce_max": lambda at, x: x.amax(at["axes"], keepdim=at["keep"]),
    "logsumexp": lambda at, x: x.logsumexp(at["axes"], keepdim=at["keep"]),
    "moments": moments,
    "matmul": matmul,
    "conv2d": conv2d,
    "max_pool": max_pool,
    "avg_pool": avg_pool,
    "sparse_softmax_cross_entropy": cross_entropy,
    "softmax": lambda _, x: x.softmax(-1),
    "log_softmax": lambda _, x: x.log_softmax(-1),
    "batch_norm": batch_norm,
    "reshape": lambda at, x: x.reshape(at["shape"]),
    "transpose": lambda at, x: x.permute(at["perm"]),
    "pad": pad,
    "strided_slice": strided_slice,
    "linear_relu": lambda _, x, w, b: (x @ w + b).relu(),
    "linear_relu_linear": lambda _, x, w1, b1, w2, b2: (x @ w1 + b1).relu() @ w2 + b2,
    # Only in second.json.
    "mul_chain": lambda _, a, b: a * b * a,
    "linear_tanh_linear": lambda _, x, w1, b1, w2, b2: (x @ w1 + b1).tanh() @ w2 + b2,
    **more_ops.OPS,
}


# ---------------------------------------------------------------- the cases of ops.json


def op_cases():
    """Yields (name, op, attrs, inputs)."""

    def case(name, op, inputs, **attrs):
        return name, op, attrs, inputs(Source(name))

    shapes = {
        "same": ((3, 5), (3, 5)),
        "row": ((2, 3, 5), (5,)),
        "scalar": ((7,), ()),
        "both": ((3, 1, 5), (4, 1)),
        "longer_right": ((1,), (2, 1, 3)),
    }
    for tag, (left, right) in shapes.items():
        for op in ("add", "sub", "mul"):
            yield case(f"{op}_{tag}", op, lambda s: [s.normal(*left), s.normal(*right)])
        yield case(f"div_{tag}", "div", lambda s: [s.normal(*left), s.away_from_zero(*right)])
        yield case(f"pow_{tag}", "pow", lambda s: [s.uniform(*left), s.normal(*right, scale=1.5)])
        for op in ("maximum", "minimum"):
            yield case(f"{op}_{tag}", op, lambda s: [s.normal(*left), s.normal(*right)])

    domains = {
        **{op: "normal" for op in ("neg", "exp", "tanh", "sigmoid", "square", "softplus", "erf", "sin", "cos")},
        **{op: "away_from_zero" for op in ("abs", "relu")},
        **{op: "uniform" for op in ("log", "sqrt", "rsqrt")},
    }
    for op, domain in domains.items():
        yield case(op, op, lambda s: [getattr(s, domain)(3, 7)])
        yield case(f"{op}_3d", op, lambda s: [getattr(s, domain)(2, 1, 17)])
        yield case(f"{op}_rank0", op, lambda s: [getattr(s, domain)()])
    wide = torch.tensor([-700.0, -40.0, -20.5, -3.0, -1e-3, 0.0, 1e-9, 0.5, 5.0, 20.5, 40.0, 700.0], dtype=F64)
    for op in ("tanh", "sigmoid", "softplus", "erf"):
        yield case(f"{op}_wide", op, lambda s: [wide.clone()])
    yield case("log_wide", "log", lambda s: [torch.tensor([1e-300, 1e-8, 0.999999, 1.0, 1.000001, 3e5, 1e300], dtype=F64)])
    yield case("sin_wide", "sin", lambda s: [torch.tensor([-1000.25, -31.4159, 1e-7, 3.1416, 6.2832, 500.5], dtype=F64)])
    yield case("cos_wide", "cos", lambda s: [torch.tensor([-1000.25, -31.4159, 1e-7, 3.1416, 6.2832, 500.5], dtype=F64)])

    for compare in COMPARE:

        def selected(s):
            a, b = s.normal(4, 5), s.normal(4, 5)
            b[::2, 1::2] = a[::2, 1::2]  # some are equal
            return [a, b, s.normal(4, 5), s.normal(4, 5)]

        yield case(f"compare_select_{compare}", "compare_select", selected, compare=compare)
    yield case("compare_select_broadcast", "compare_select",
               lambda s: [s.normal(3, 1), s.normal(5), s.normal(), s.normal(2, 3, 5)], compare="gt")

    reductions = [((7,), [0]), ((3, 5), [0]), ((3, 5), [1]), ((3, 5), [0, 1]), ((2, 3, 5), [1]),
                  ((2, 3, 5), [0, 2]), ((2, 3, 2, 3), [0, 1, 2]), ((2, 3, 2, 3), [1, 3]), ((1, 2, 19), [2])]
    for op, domain in (("reduce_sum", "normal"), ("reduce_mean", "normal"), ("reduce_max", "distinct"),
                       ("logsumexp", "normal"), ("moments", "normal")):
        for shape, axes in reductions:
            for keep in (False, True) if len(shape) < 3 or op == "reduce_sum" else (len(axes) == 2,):
                tag = "x".join(map(str, shape)) + "_over_" + "".join(map(str, axes)) + ("_keep" if keep else "")
                yield case(f"{op}_{tag}", op, lambda s: [getattr(s, domain)(*shape)], axes=axes, keep=keep)
    yield case("logsumexp_large", "logsumexp",
               lambda s: [torch.tensor([[1000.0, 1000.5, 999.0], [-1000.0, -1003.0, -999.5]], dtype=F64)],
               axes=[1], keep=False)
    yield case("moments_offset", "moments", lambda s: [s.normal(2, 3, 3, 2) + 100.0], axes=[0, 1, 2], keep=False)

    for ta in (False, True):
        for tb in (False, True):
            flags = dict(transpose_a=ta, transpose_b=tb)
            tag = ("t" if ta else "n") + ("t" if tb else "n")
            for m, k, n in ((5, 7, 3), (1, 9, 4), (9, 2, 1)):
                yield case(f"matmul_{tag}_{m}x{k}x{n}", "matmul",
                           lambda s: [s.normal(*((k, m) if ta else (m, k))), s.normal(*((n, k) if tb else (k, n)))],
                           **flags)
            yield case(f"matmul_{tag}_batched", "matmul",
                       lambda s: [s.normal(2, *((4, 5) if ta else (5, 4))), s.normal(2, *((3, 4) if tb else (4, 3)))],
                       **flags)

    convs = [
        # tag, input, filter, stride, dilation, padding
        ("same", (2, 5, 4, 2), (3, 3, 2, 3), [1, 1], [1, 1], "SAME"),
        ("valid", (2, 5, 4, 3), (3, 3, 3, 2), [1, 1], [1, 1], "VALID"),
        ("same_stride2_even", (1, 6, 8, 2), (3, 3, 2, 3), [2, 2], [1, 1], "SAME"),
        ("same_stride2_odd", (1, 7, 5, 2), (3, 3, 2, 3), [2, 2], [1, 1], "SAME"),
        ("valid_stride2_left_over", (1, 8, 6, 2), (3, 3, 2, 3), [2, 2], [1, 1], "VALID"),
        ("stride_3_2", (1, 8, 7, 2), (3, 2, 2, 2), [3, 2], [1, 1], "SAME"),
        ("stride_over_window", (1, 7, 8, 2), (2, 1, 2, 3), [3, 2], [1, 1], "SAME"),
        ("one_by_one", (2, 3, 2, 5), (1, 1, 5, 3), [1, 1], [1, 1], "SAME"),
        ("one_by_one_stride2", (1, 5, 4, 3), (1, 1, 3, 4), [2, 2], [1, 1], "SAME"),
        ("five", (1, 6, 6, 1), (5, 5, 1, 2), [1, 1], [1, 1], "SAME"),
        ("even_window", (1, 5, 5, 2), (2, 4, 2, 2), [1, 1], [1, 1], "SAME"),
        ("dilated", (1, 7, 6, 2), (3, 3, 2, 2), [1, 1], [2, 2], "SAME"),
        ("dilated_valid_mixed", (1, 8, 7, 1), (3, 2, 1, 3), [1, 2], [2, 3], "VALID"),
        ("dilated_stride2", (1, 8, 9, 2), (3, 3, 2, 2), [2, 2], [2, 2], "SAME"),
        ("explicit", (1, 5, 5, 2), (3, 3, 2, 2), [1, 1], [1, 1], [[1, 0], [2, 1]]),
        ("explicit_stride2", (2, 6, 5, 1), (3, 3, 1, 2), [2, 2], [1, 1], [[1, 1], [1, 1]]),
        ("explicit_wide", (1, 3, 4, 1), (2, 3, 1, 2), [1, 1], [1, 1], [[3, 2], [0, 4]]),
        ("window_over_input", (1, 2, 2, 2), (3, 3, 2, 3), [1, 1], [1, 1], "SAME"),
        ("full_window", (2, 3, 4, 2), (3, 4, 2, 3), [1, 1], [1, 1], "VALID"),
        ("many_channels", (1, 2, 3, 17), (2, 2, 17, 2), [1, 1], [1, 1], "SAME"),
        ("one_to_many", (1, 2, 3, 1), (2, 3, 1, 19), [1, 1], [1, 1], "SAME"),
    ]
    for tag, x, w, stride, dilation, padding in convs:
        yield case(f"conv2d_{tag}", "conv2d", lambda s: [s.normal(*x), s.normal(*w, scale=0.5)],
                   stride=stride, dilation=dilation, padding=padding)

    pools = [
        ("2", (2, 4, 6, 2), [2, 2], [2, 2], "VALID"),
        ("2_odd_valid", (1, 7, 5, 2), [2, 2], [2, 2], "VALID"),
        ("2_odd_same", (1, 7, 5, 2), [2, 2], [2, 2], "SAME"),
        ("3_stride2_same", (1, 6, 7, 2), [3, 3], [2, 2], "SAME"),
        ("3_stride1_same", (1, 5, 4, 2), [3, 3], [1, 1], "SAME"),
        ("2x3_stride_1x2", (2, 5, 6, 1), [2, 3], [1, 2], "VALID"),
        ("stride_over_window", (1, 7, 8, 1), [2, 2], [3, 3], "VALID"),
        ("explicit", (1, 6, 5, 2), [3, 3], [2, 2], [[1, 1], [0, 2]]),
        ("whole", (2, 3, 4, 3), [3, 4], [1, 1], "VALID"),
    ]
    for op in ("max_pool", "avg_pool"):
        for tag, x, window, stride, padding in pools:
            yield case(f"{op}_{tag}", op, lambda s: [s.distinct(*x) if op == "max_pool" else s.normal(*x)],
                       window=window, stride=stride, padding=padding)

    for rows, classes in ((1, 2), (4, 10), (7, 3), (2, 33)):
        yield case(f"sparse_softmax_cross_entropy_{rows}x{classes}", "sparse_softmax_cross_entropy",
                   lambda s: [s.normal(rows, classes, scale=2.0), s.labels(rows, classes)])
    yield case("sparse_softmax_cross_entropy_large", "sparse_softmax_cross_entropy",
               lambda s: [torch.tensor([[1000.0, 0.0, -1000.0], [-5.0, 800.0, 801.0], [-900.0, -900.5, -901.0]],
                                       dtype=F64), torch.tensor([2, 1, 0], dtype=torch.int32)])
    for op in ("softmax", "log_softmax"):
        for shape in ((5,), (4, 7), (2, 3, 5), (3, 1), (1, 33)):
            yield case(f"{op}_" + "x".join(map(str, shape)), op, lambda s: [s.normal(*shape, scale=2.0)])
        yield case(f"{op}_large", op,
                   lambda s: [torch.tensor([[1000.0, 1000.5, 999.0], [-900.0, 0.0, -900.5]], dtype=F64)])

    for shape in ((2, 3, 2, 4), (5, 1, 1, 3), (1, 4, 5, 1), (2, 1, 2, 17), (7, 3)):
        yield case("batch_norm_" + "x".join(map(str, shape)), "batch_norm",
                   lambda s: [s.normal(*shape, scale=1.5), s.uniform(shape[-1]), s.normal(shape[-1])], eps=1e-5)
    yield case("batch_norm_offset", "batch_norm",
               lambda s: [s.normal(2, 3, 4, 2) + 30.0, s.uniform(2), s.normal(2)], eps=1e-5)

    for source, target in (((3, 4), [12]), ((2, 3, 5), [5, 6]), ((6,), [1, 2, 1, 3]), ((), [1, 1]), ((1, 1), [])):
        tag = "x".join(map(str, source)) + "_to_" + "x".join(map(str, target))
        yield case(f"reshape_{tag}", "reshape", lambda s: [s.normal(*source)], shape=target)
    for source, perm in (((3, 5), [1, 0]), ((2, 3, 5), [2, 0, 1]), ((2, 3, 5), [0, 2, 1]),
                         ((2, 3, 2, 4), [0, 3, 1, 2]), ((2, 3, 1, 4), [3, 1, 2, 0]), ((2, 3), [0, 1])):
        tag = "x".join(map(str, source)) + "_" + "".join(map(str, perm))
        yield case(f"transpose_{tag}", "transpose", lambda s: [s.normal(*source)], perm=perm)

    for tag, shape, low, high, interior in (
        ("1d", (5,), [2], [1], [0]), ("1d_interior", (4,), [0], [0], [2]), ("2d", (3, 4), [1, 0], [0, 3], [0, 0]),
        ("2d_interior", (3, 4), [1, 0], [2, 1], [1, 2]), ("one_element_interior", (1, 3), [1, 1], [0, 0], [3, 1]),
        ("4d", (2, 2, 3, 1), [0, 1, 1, 0], [0, 1, 0, 2], [0, 0, 1, 0]), ("none", (2, 3), [0, 0], [0, 0], [0, 0]),
    ):
        yield case(f"pad_{tag}", "pad", lambda s: [s.normal(*shape)], low=low, high=high, interior=interior)
    for tag, shape, begin, end, stride in (
        ("1d", (9,), [2], [7], [1]), ("1d_stride", (9,), [1], [9], [3]), ("2d", (5, 6), [1, 0], [4, 6], [1, 2]),
        ("halves", (2, 5, 6, 3), [0, 0, 0, 0], [2, 5, 6, 3], [1, 2, 2, 1]),
        ("4d", (2, 5, 7, 3), [1, 1, 0, 2], [2, 5, 6, 3], [1, 3, 4, 1]),
        ("stride_over_size", (3, 4), [2, 1], [3, 4], [5, 7]), ("all", (3, 4), [0, 0], [3, 4], [1, 1]),
    ):
        yield case(f"strided_slice_{tag}", "strided_slice", lambda s: [s.normal(*shape)],
                   begin=begin, end=end, stride=stride)

    for n, i, o in ((4, 7, 3), (1, 5, 9), (6, 3, 1)):
        yield case(f"linear_relu_{n}x{i}x{o}", "linear_relu",
                   lambda s: [s.normal(n, i), s.normal(i, o, scale=0.6), s.normal(o)])
    yield case("linear_relu_linear", "linear_relu_linear",
               lambda s: [s.normal(5, 6), s.normal(6, 8, scale=0.6), s.normal(8), s.normal(8, 3, scale=0.6),
                          s.normal(3)])


def second_cases():
    """Yields (name, op, attrs, inputs, wrt): the gradient of input `wrt` is differentiated again."""

    def case(name, op, inputs, wrt=0, **attrs):
        return name, op, attrs, inputs(Source("second_" + name)), wrt

    for op in ("tanh", "exp", "sigmoid", "softplus", "square"):
        yield case(op, op, lambda s: [s.normal(3, 5)])
    for op in ("log", "rsqrt"):
        yield case(op, op, lambda s: [s.uniform(2, 5)])
    for wrt in (0, 1):
        yield case(f"mul_chain_{wrt}", "mul_chain", lambda s: [s.normal(3, 4), s.normal(4)], wrt)
        yield case(f"div_{wrt}", "div", lambda s: [s.normal(3, 4), s.away_from_zero(4)], wrt)
        yield case(f"matmul_{wrt}", "matmul", lambda s: [s.normal(3, 5), s.normal(5, 2)], wrt,
                   transpose_a=False, transpose_b=False)
        yield case(f"matmul_transposed_{wrt}", "matmul", lambda s: [s.normal(5, 3), s.normal(2, 5)], wrt,
                   transpose_a=True, transpose_b=True)
        yield case(f"conv2d_same_{wrt}", "conv2d", lambda s: [s.normal(2, 4, 5, 2), s.normal(3, 3, 2, 3)], wrt,
                   stride=[1, 1], dilation=[1, 1], padding="SAME")
        yield case(f"conv2d_stride2_{wrt}", "conv2d", lambda s: [s.normal(1, 6, 5, 2), s.normal(3, 3, 2, 2)], wrt,
                   stride=[2, 2], dilation=[1, 1], padding="SAME")
        yield case(f"conv2d_dilated_{wrt}", "conv2d", lambda s: [s.normal(1, 6, 7, 1), s.normal(3, 2, 1, 2)], wrt,
                   stride=[1, 2], dilation=[2, 2], padding=[[1, 0], [2, 1]])
    for wrt in (0, 1, 2):
        yield case(f"batch_norm_{wrt}", "batch_norm",
                   lambda s: [s.normal(2, 3, 2, 3), s.uniform(3), s.normal(3)], wrt, eps=1e-5)
    for wrt in (0, 1, 3):
        yield case(f"linear_tanh_linear_{wrt}", "linear_tanh_linear",
                   lambda s: [s.normal(4, 5), s.normal(5, 6, scale=0.5), s.normal(6), s.normal(6, 2), s.normal(2)],
                   wrt)
    yield case("softmax", "softmax", lambda s: [s.normal(3, 5)])
    yield case("logsumexp", "logsumexp", lambda s: [s.normal(3, 5)], axes=[1], keep=False)
    yield case("sparse_softmax_cross_entropy", "sparse_softmax_cross_entropy",
               lambda s: [s.normal(4, 6), s.labels(4, 6)])
    yield case("moments", "moments", lambda s: [s.normal(3, 4)], axes=[0], keep=False)
    yield case("avg_pool", "avg_pool", lambda s: [s.normal(1, 5, 4, 2)], window=[2, 2], stride=[2, 2], padding="SAME")
    yield case("pow_0", "pow", lambda s: [s.uniform(3, 4), s.normal(4)], 0)
    yield case("pow_1", "pow", lambda s: [s.uniform(3, 4), s.normal(4)], 1)


# ---------------------------------------------------------------- evaluation


def flat(t):
    return t.detach().reshape(-1).tolist()


def described(t, **more):
    return {"shape": list(t.shape), **more, "data": flat(t)}


def described_input(t):
    return described(t, dtype="i32" if t.dtype == torch.int32 else "f64")


def as_tuple(y):
    return y if isinstance(y, tuple) else (y,)


def flat_or_null(grad):
    return None if grad is None else flat(grad)


def check_by_differences(name, fn, inputs, order=1):
    variables = [t for t in inputs if t.requires_grad]

    def of_variables(*values):
        values = iter(values)
        return fn(*[next(values) if t.requires_grad else t for t in inputs])

    # Around +-700 a saturated function has no digits left for a difference, and around 1e300 no step.
    if "_wide" not in name:
        assert torch.autograd.gradcheck(of_variables, variables, atol=2e-5, rtol=1e-3), name
        if order == 2:
            assert torch.autograd.gradgradcheck(of_variables, variables, atol=2e-5, rtol=1e-3), name


def prepared(name, attrs, op, inputs):
    """(variables, outputs, seeds): one evaluation with cotangents fixed by the name."""
    differentiable = [t.dtype == F64 for t in inputs]
    if op == "compare_select":
        differentiable[:2] = [False, False]
    variables = [t.clone().requires_grad_(d) for t, d in zip(inputs, differentiable)]
    outputs = as_tuple(OPS[op](attrs, *variables))
    source = Source("seed_" + name)
    return variables, outputs, [source.normal(*y.shape) for y in outputs]


def make_ops(check, of):
    cases = []
    for name, op, attrs, inputs in of:
        variables, outputs, seeds = prepared(name, attrs, op, inputs)
        wanted = [v for v in variables if v.requires_grad]
        loss = sum((y * s).sum() for y, s in zip(outputs, seeds))
        grads = iter(torch.autograd.grad(loss, wanted))
        if check:
            check_by_differences(name, lambda *v: OPS[op](attrs, *v), variables)
        cases.append({
            "name": name, "op": op, "attrs": attrs,
            "inputs": [described_input(t) for t in inputs],
            "outputs": [described(y) for y in outputs],
            "seeds": [flat(s) for s in seeds],
            "input_grads": [flat_or_null(next(grads) if v.requires_grad else None) for v in variables],
        })
    return cases


def make_second(check, of):
    cases = []
    for name, op, attrs, inputs, wrt in of:
        variables, outputs, seeds = prepared("second_" + name, attrs, op, inputs)
        seeds = [s.requires_grad_() for s in seeds]
        loss = sum((y * s).sum() for y, s in zip(outputs, seeds))
        wanted = [v for v in variables if v.requires_grad]
        grads = torch.autograd.grad(loss, wanted, create_graph=True)
        by_input = dict(zip((i for i, v in enumerate(variables) if v.requires_grad), grads))
        first = by_input[wrt]
        seed2 = Source("seed2_second_" + name).normal(*first.shape)
        again = torch.autograd.grad((first * seed2).sum(), wanted + seeds, allow_unused=True)
        # A result that does not depend on a variable has the gradient zero there.
        again = [torch.zeros_like(v) if g is None else g for g, v in zip(again, wanted + seeds)]
        of_inputs, of_seeds = iter(again[: len(wanted)]), again[len(wanted) :]
        if check:
            check_by_differences(name, lambda *v: OPS[op](attrs, *v), variables, order=2)
        cases.append({
            "name": name, "op": op, "attrs": attrs,
            "inputs": [described_input(t) for t in inputs],
            "outputs": [described(y) for y in outputs],
            "seeds": [flat(s) for s in seeds],
            "input_grads": [flat_or_null(by_input.get(i)) for i in range(len(variables))],
            "wrt": wrt,
            "seed2": flat(seed2),
            "second_grads": [flat_or_null(next(of_inputs) if v.requires_grad else None) for v in variables],
            "seed_grads": [flat(g) for g in of_seeds],
        })
    return cases


# ---------------------------------------------------------------- training

ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
STEPS = 10


class Adam:
    def __init__(self, weights):
        self.weights, self.t = weights, 0
        self.m = {k: torch.zeros_like(w) for k, w in weights.items()}
        self.v = {k: torch.zeros_like(w) for k, w in weights.items()}

    def step(self, grads):
        self.t += 1
        b1, b2 = ADAM["beta1"], ADAM["beta2"]
        for k, g in grads.items():
            self.m[k] = b1 * self.m[k] + (1 - b1) * g
            self.v[k] = b2 * self.v[k] + (1 - b2) * g * g
            mhat = self.m[k] / (1 - b1**self.t)
            vhat = self.v[k] / (1 - b2**self.t)
            with torch.no_grad():
                self.weights[k] -= ADAM["lr"] * mhat / (vhat.sqrt() + ADAM["eps"])


def mlp_run():
    source, sizes, batch = Source("training_mlp"), [20, 16, 16, 5], 8
    weights = {}
    for i, (fan_in, fan_out) in enumerate(zip(sizes, sizes[1:])):
        weights[f"fc{i}/W"] = source.normal(fan_in, fan_out, scale=math.sqrt(2.0 / fan_in))
        weights[f"fc{i}/b"] = source.normal(fan_out, scale=0.1)
    x = source.normal(STEPS, batch, sizes[0])
    labels = source.labels(STEPS * batch, sizes[-1]).reshape(STEPS, batch)

    def logits(w, state, x):
        x = (x @ w["fc0/W"] + w["fc0/b"]).relu()
        x = (x @ w["fc1/W"] + w["fc1/b"]).relu()
        return x @ w["fc2/W"] + w["fc2/b"]

    return "mlp", weights, {}, x, labels, logits, {}


def convnet_run():
    source, batch = Source("training_convnet"), 4
    weights = {
        "conv0/W": source.normal(3, 3, 1, 4, scale=0.5),
        "conv0/b": source.normal(4, scale=0.1),
        # No bias here: the mean subtracted next would leave it a gradient of pure rounding error.
        "conv1/W": source.normal(3, 3, 4, 4, scale=0.25),
        "bn/gamma": source.uniform(4, low=0.7, high=1.3),
        "bn/beta": source.normal(4, scale=0.1),
        "fc/W": source.normal(4, 3, scale=0.7),
        "fc/b": source.normal(3, scale=0.1),
    }
    state = {"bn/mean": torch.zeros(4, dtype=F64), "bn/variance": torch.ones(4, dtype=F64)}
    more = {"bn_eps": 1e-5, "bn_momentum": 0.9}
    x = source.normal(STEPS, batch, 6, 6, 1)
    labels = source.labels(STEPS * batch, 3).reshape(STEPS, batch)
    same = {"stride": [1, 1], "dilation": [1, 1], "padding": "SAME"}

    def logits(w, state, x):
        x = (conv2d(same, x, w["conv0/W"]) + w["conv0/b"]).relu()
        x = max_pool({"window": [2, 2], "stride": [2, 2], "padding": "VALID"}, x)
        x = conv2d(same, x, w["conv1/W"])
        with torch.no_grad():
            keep = more["bn_momentum"]
            batch_mean, batch_var = x.mean([0, 1, 2]), x.var([0, 1, 2], correction=1)
            state["bn/mean"] = keep * state["bn/mean"] + (1 - keep) * batch_mean
            state["bn/variance"] = keep * state["bn/variance"] + (1 - keep) * batch_var
        x = batch_norm({"eps": more["bn_eps"]}, x, w["bn/gamma"], w["bn/beta"]).relu()
        return x.mean([1, 2]) @ w["fc/W"] + w["fc/b"]

    return "convnet", weights, state, x, labels, logits, more


def named(tensors):
    return [{"name": k, **described(t)} for k, t in tensors.items()]


def make_training(check):
    runs = []
    for name, weights, state, x, labels, logits, more in (mlp_run(), convnet_run()):
        initial, initial_state = named(weights), named(state)
        reference = {k: w.clone().requires_grad_() for k, w in weights.items()}
        weights = {k: w.requires_grad_() for k, w in weights.items()}
        optimizer, losses, first_grads = Adam(weights), [], None
        for step in range(STEPS):
            loss = F.cross_entropy(logits(weights, state, x[step]), labels[step].long())
            grads = dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))
            first_grads = first_grads or named(grads)
            losses.append(loss.item())
            optimizer.step(grads)
        if check:
            theirs = torch.optim.Adam(reference.values(), ADAM["lr"], (ADAM["beta1"], ADAM["beta2"]), ADAM["eps"])
            for step in range(STEPS):
                theirs.zero_grad()
                F.cross_entropy(logits(reference, dict(state), x[step]), labels[step].long()).backward()
                theirs.step()
            for k in weights:
                torch.testing.assert_close(weights[k], reference[k], rtol=1e-10, atol=1e-12)
        final = {**weights, **state}
        runs.append({
            "name": name, "optimizer": "adam", **ADAM, **more, "steps": STEPS,
            "x": described(x), "labels": described(labels),
            "initial": initial, "initial_state": initial_state,
            "first_grads": first_grads,
            "losses": losses,
            "final": named(weights), "final_state": named(state),
            "checksums": [{"name": k, "sum": t.sum().item(), "sum_of_squares": t.square().sum().item()}
                          for k, t in final.items()],
        })
    return runs


# ---------------------------------------------------------------- optimizers

OPTIMIZER_STEPS = 20


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of You et al. 2019, which PyTorch does not have."""

    def __init__(self, params, lr, betas, eps, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for w in group["params"]:
                state = self.state[w]
                if not state:
                    state.update(t=0, m=torch.zeros_like(w), v=torch.zeros_like(w))
                state["t"] += 1
                state["m"] = b1 * state["m"] + (1 - b1) * w.grad
                state["v"] = b2 * state["v"] + (1 - b2) * w.grad**2
                mhat = state["m"] / (1 - b1 ** state["t"])
                vhat = state["v"] / (1 - b2 ** state["t"])
                update = mhat / (vhat**0.5 + group["eps"]) + group["weight_decay"] * w
                w_norm, update_norm = w.norm().item(), update.norm().item()
                trust = w_norm / update_norm if w_norm > 0 and update_norm > 0 else 1.0
                w -= lr * trust * update


RULES = {
    "sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "lamb": Lamb,
}

SCHEDULERS = {
    "piecewise": torch.optim.lr_scheduler.MultiStepLR, "staircase": torch.optim.lr_scheduler.StepLR,
    "exponential": torch.optim.lr_scheduler.ExponentialLR, "cosine": torch.optim.lr_scheduler.CosineAnnealingLR,
    "polynomial": torch.optim.lr_scheduler.PolynomialLR, "warm_up": torch.optim.lr_scheduler.LinearLR,
}

ADAM_BETAS = {"betas": [0.9, 0.99], "eps": 1e-6}
WEIGHTS_DECAY = [{"pattern": "fc.*/W", "rate": 1.0, "decay": 0.05}]
TWO_GROUPS = [{"pattern": "fc0/.*", "rate": 0.1, "decay": 0.02}, {"pattern": ".*/W", "rate": 2.0, "decay": 0.1}]

# Name: rule, its arguments in PyTorch, and what is around it.
OPTIMIZER_RUNS = {
    "sgd": ("sgd", {"lr": 0.5}, {}),
    "momentum": ("sgd", {"lr": 0.2, "momentum": 0.9}, {}),
    "nesterov": ("sgd", {"lr": 0.2, "momentum": 0.9, "nesterov": True}, {}),
    "rmsprop": ("rmsprop", {"lr": 0.02, "alpha": 0.95, "eps": 1e-6}, {}),
    "rmsprop_momentum": ("rmsprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-6, "momentum": 0.8}, {}),
    "rmsprop_centered": ("rmsprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "centered": True}, {}),
    "rmsprop_both": ("rmsprop", {"lr": 0.005, "alpha": 0.9, "eps": 1e-3, "momentum": 0.5, "centered": True}, {}),
    "adagrad": ("adagrad", {"lr": 0.2, "eps": 1e-8}, {}),
    "adagrad_first_sum": ("adagrad", {"lr": 0.2, "eps": 1e-8, "initial_accumulator_value": 0.1}, {}),
    "adam": ("adam", {"lr": 0.02, **ADAM_BETAS}, {}),
    "adamw": ("adamw", {"lr": 0.02, **ADAM_BETAS, "weight_decay": 0.1}, {}),
    "lamb": ("lamb", {"lr": 0.05, **ADAM_BETAS, "weight_decay": 0.02}, {}),
    "sgd_global_norm_clip": ("sgd", {"lr": 0.5}, {"clip_norm": 0.4}),
    "adam_value_clip": ("adam", {"lr": 0.02, **ADAM_BETAS}, {"clip_value": 0.03}),
    "sgd_weight_decay": ("sgd", {"lr": 0.5}, {"groups": WEIGHTS_DECAY}),
    "momentum_groups": ("sgd", {"lr": 0.2, "momentum": 0.9}, {"groups": TWO_GROUPS}),
    "rmsprop_groups": ("rmsprop", {"lr": 0.02, "alpha": 0.95, "eps": 1e-6}, {"groups": TWO_GROUPS}),
    "adagrad_groups": ("adagrad", {"lr": 0.2, "eps": 1e-8}, {"groups": TWO_GROUPS}),
    "adam_groups": ("adam", {"lr": 0.02, **ADAM_BETAS}, {"groups": TWO_GROUPS}),
    "adamw_groups": ("adamw", {"lr": 0.02, **ADAM_BETAS, "weight_decay": 0.3}, {"groups": TWO_GROUPS}),
    "lamb_groups": ("lamb", {"lr": 0.05, **ADAM_BETAS, "weight_decay": 0.3}, {"groups": TWO_GROUPS}),
    "clip_and_groups": ("sgd", {"lr": 0.2, "momentum": 0.9}, {"clip_norm": 0.4, "groups": TWO_GROUPS}),
    "adam_ema": ("adam", {"lr": 0.02, **ADAM_BETAS}, {"ema": 0.8}),
    "adam_ema_debiased": ("adam", {"lr": 0.02, **ADAM_BETAS}, {"ema": 0.8, "debiased": True}),
}
for name, arguments in {
    "piecewise": {"milestones": [5, 11], "gamma": 0.3},
    "staircase": {"step_size": 6, "gamma": 0.3},
    "exponential": {"gamma": 0.9},
    "cosine": {"T_max": 20, "eta_min": 0.05},
    "polynomial": {"total_iters": 15, "power": 2.0},
    "warm_up": {"start_factor": 1 / 8, "total_iters": 7},
}.items():
    OPTIMIZER_RUNS[f"sgd_{name}"] = ("sgd", {"lr": 0.5}, {"schedule": name, "schedule_arguments": arguments})
for name in ("sgd", "momentum", "nesterov", "rmsprop_both", "adagrad", "adam", "adamw", "lamb", "clip_and_groups"):
    rule, arguments, around = OPTIMIZER_RUNS[name]
    OPTIMIZER_RUNS[f"{name}_accumulated"] = (rule, arguments, {**around, "accumulate": 4})


def optimizer_data():
    source, sizes, batch = Source("optimizers"), [6, 5, 3], 4
    weights = {}
    for i, (fan_in, fan_out) in enumerate(zip(sizes, sizes[1:])):
        weights[f"fc{i}/W"] = source.normal(fan_in, fan_out, scale=math.sqrt(1.0 / fan_in))
        weights[f"fc{i}/b"] = source.normal(fan_out, scale=0.1)
    x = source.normal(OPTIMIZER_STEPS, batch, sizes[0])
    labels = source.labels(OPTIMIZER_STEPS * batch, sizes[-1]).reshape(OPTIMIZER_STEPS, batch)
    return weights, x, labels


def param_groups(weights, arguments, groups):
    """PyTorch's groups for ours: the first whose pattern matches the whole name."""
    found = []
    for name, w in weights.items():
        group = next((g for g in groups if re.fullmatch(g["pattern"], name)), None)
        found.append({"params": [w]} if group is None else
                     {"params": [w], "lr": arguments["lr"] * group["rate"], "weight_decay": group["decay"]})
    return found


def make_optimizers():
    runs = []
    for name, (rule, arguments, around) in OPTIMIZER_RUNS.items():
        weights, x, labels = optimizer_data()
        weights = {k: w.requires_grad_() for k, w in weights.items()}
        optimizer = RULES[rule](param_groups(weights, arguments, around.get("groups", [])), **arguments)
        scheduler = None
        if "schedule" in around:
            scheduler = SCHEDULERS[around["schedule"]](optimizer, **around["schedule_arguments"])
        # Accumulation over n steps is one step on their batches together.
        n, decay = around.get("accumulate", 1), around.get("ema")
        averages = {k: w.detach() * (0.0 if around.get("debiased") else 1.0) for k, w in weights.items()}
        losses = []
        for step in range(0, OPTIMIZER_STEPS, n):
            inputs, targets = x[step:step + n].flatten(0, 1), labels[step:step + n].flatten().long()
            hidden = torch.tanh(inputs @ weights["fc0/W"] + weights["fc0/b"])
            loss = F.cross_entropy(hidden @ weights["fc1/W"] + weights["fc1/b"], targets)
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.item())
            grads = [w.grad for w in weights.values()]
            if "clip_norm" in around:
                norm = torch.cat([g.flatten() for g in grads]).norm()
                for g in grads:
                    g *= around["clip_norm"] / max(norm.item(), around["clip_norm"])
            if "clip_value" in around:
                torch.nn.utils.clip_grad_value_(weights.values(), around["clip_value"])
            optimizer.step()
            if scheduler:
                scheduler.step()
            if decay is not None:
                averages = {k: decay * averages[k] + (1 - decay) * w.detach() for k, w in weights.items()}
        run = {"name": name, "rule": rule, "arguments": arguments, **around, "losses": losses, "final": named(weights)}
        if decay is not None:
            bias = 1 - decay**OPTIMIZER_STEPS if around.get("debiased") else 1.0
            run["averages"] = named({k: a / bias for k, a in averages.items()})
        runs.append(run)
    weights, x, labels = optimizer_data()
    return runs, {"x": described(x), "labels": described(labels), "initial": named(weights)}


# ---------------------------------------------------------------- files


def document(key, entries, **shared):
    """JSON with one entry a line, so that a changed case is one changed line; what entries share comes first."""
    names = [e["name"] for e in entries]
    assert len(names) == len(set(names)), "the names of cases are unique"
    made_by = {"torch": torch.__version__.split("+")[0], "python": platform.python_version()}
    lines = ",\n".join(json.dumps(e, separators=(",", ":"), allow_nan=False) for e in entries)
    shared = "".join(f'"{k}":{json.dumps(v, separators=(",", ":"))},\n' for k, v in shared.items())
    return f'{{"made_by":{json.dumps(made_by)},\n{shared}"{key}":[\n{lines}\n]}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; compare with what is there")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    optimizer_runs, shared = make_optimizers()
    documents = {
        "ops.json": document("cases", make_ops(check, op_cases())),
        "more_ops.json": document(
            "cases", make_ops(check, more_ops.cases(Source)) + make_second(check, more_ops.second_cases(Source))
        ),
        "second.json": document("cases", make_second(check, second_cases())),
        "training.json": document("runs", make_training(check)),
        "optimizers.json": document("runs", optimizer_runs, **shared),
    }
    differing = 0
    for file, text in documents.items():
        path = HERE / file
        if check:
            same = path.exists() and path.read_text() == text
            differing += not same
            print(f"{file}: {'identical' if same else 'DIFFERS'}")
        else:
            path.write_text(text)
            print(f"{file}: {len(text) / 1024:.0f} KB")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
