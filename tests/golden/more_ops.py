"""The operations and cases of more_ops.json: rows by number, running sums, orders, products, einsum, resizing."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def reduce_prod(attrs, x):
    for axis in sorted(attrs["axes"], reverse=True):
        x = x.prod(axis)
    return x


def cumsum(attrs, x):
    axis = attrs["axis"]
    turned = x.flip(axis) if attrs["reverse"] else x
    y = turned.cumsum(axis)
    if attrs["exclusive"]:
        y = torch.cat([torch.zeros_like(y.narrow(axis, 0, 1)), y.narrow(axis, 0, y.shape[axis] - 1)], axis)
    return y.flip(axis) if attrs["reverse"] else y


def scatter_add(attrs, updates, indices):
    shape = [attrs["rows"], *updates.shape[indices.dim():]]
    flat = updates.reshape(-1, *updates.shape[indices.dim():])
    return torch.zeros(shape, dtype=updates.dtype).index_add(0, indices.reshape(-1).long(), flat)


def gather(attrs, x, indices):
    axis = attrs["axis"]
    picked = x.index_select(axis, indices.reshape(-1).long())
    return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1:])


def resize(mode):
    def of(attrs, x):
        return F.interpolate(x.permute(0, 3, 1, 2), attrs["size"], mode=mode).permute(0, 2, 3, 1)

    return of


def attention(attrs, q, k, v, *more):
    """Attention of [batch, time, heads, features] with PyTorch's own function; `more` are the tensors of attrs["with"]."""
    mask, given = None, dict(zip(attrs["with"], more))

    def combined(with_mask):
        zeros = torch.zeros((), dtype=q.dtype)
        added = torch.where(with_mask, zeros, -torch.inf)
        return added if mask is None else mask + added

    if "bias" in given:
        mask = given["bias"]
    positions = torch.arange(k.shape[1])
    if "lengths" in given:
        mask = combined(positions < given["lengths"][:, None, None, None])
    if "key_mask" in given:
        mask = combined(given["key_mask"][:, None, None, :] != 0)
    if attrs["causal"] and mask is not None:
        mask = combined(positions <= torch.arange(q.shape[1])[:, None])
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, is_causal=attrs["causal"] and mask is None,
            scale=attrs["scale"], enable_gqa=q.shape[2] != k.shape[2])
    return y.transpose(1, 2)


OPS = {
    "attention": attention,
    "concat": lambda at, *x: torch.cat(x, at["axis"]),
    "stack": lambda at, *x: torch.stack(x, at["axis"]),
    "tile": lambda at, x: x.tile(at["counts"]),
    "repeat": lambda at, x: x.repeat_interleave(at["count"], at["axis"]),
    "reverse": lambda at, x: x.flip(at["axes"]),
    "gather": gather,
    "take_along_axis": lambda at, x, indices: x.take_along_dim(indices.long(), at["axis"]),
    "scatter_add": scatter_add,
    "reduce_prod": reduce_prod,
    "reduce_min": lambda at, x: x.amin(at["axes"]),
    "variance": lambda at, x: x.var(at["axes"], correction=0),
    "std": lambda at, x: x.std(at["axes"], correction=0),
    "softmax_axis": lambda at, x: x.softmax(at["axis"]),
    "cumsum": cumsum,
    "top_k": lambda at, x: x.topk(at["k"]).values,
    "sort": lambda at, x: x.sort(at["axis"], descending=at["descending"]).values,
    "einsum": lambda at, *x: torch.einsum(at["equation"], *x),
    "resize_nearest": resize("nearest-exact"),
    "resize_bilinear": resize("bilinear"),
    "log1p": lambda _, x: x.log1p(),
    "gelu": lambda _, x: F.gelu(x),
    "silu": lambda _, x: F.silu(x),
    "elu": lambda _, x: F.elu(x),
    "leaky_relu": lambda at, x: F.leaky_relu(x, at["slope"]),
    "relu6": lambda _, x: F.relu6(x * 4.0),
}


def cases(Source):
    """Yields (name, op, attrs, inputs)."""

    def case(tag, op, inputs, **attrs):
        name = f"{op}_{tag}" if tag else op
        return name, op, attrs, inputs(Source(name))

    yield case("rows", "concat", lambda s: [s.normal(2, 3), s.normal(1, 3), s.normal(3, 3)], axis=0)
    yield case("columns", "concat", lambda s: [s.normal(2, 1, 3), s.normal(2, 1, 5)], axis=2)
    yield case("middle", "concat", lambda s: [s.normal(2, 2, 2), s.normal(2, 3, 2)], axis=1)
    for axis in (0, 1, 2):
        yield case(str(axis), "stack", lambda s: [s.normal(2, 3), s.normal(2, 3)], axis=axis)
    yield case("2d", "tile", lambda s: [s.normal(2, 3)], counts=[2, 3])
    for axis in (0, 1):
        yield case(str(axis), "repeat", lambda s: [s.normal(2, 3)], count=3, axis=axis)
        yield case(str(axis), "reverse", lambda s: [s.normal(3, 4)], axes=[axis])

    for tag, shape, axis, indices in (("rows", (5, 3), 0, (4,)), ("columns", (2, 6), 1, (3,)),
                                      ("table", (7, 2), 0, (2, 3)), ("middle", (2, 4, 3), 1, (2, 2)),
                                      ("one", (4, 3), 0, ())):
        def picked(s):
            n = 1
            for d in indices:
                n *= d
            return [s.normal(*shape), s.labels(n, shape[axis]).reshape(indices)]

        yield case(tag, "gather", picked, axis=axis)
    for axis, shape in ((0, (2, 5)), (1, (4, 3))):
        yield case(str(axis), "take_along_axis",
                   lambda s: [s.normal(4, 5), s.labels(shape[0] * shape[1], (4, 5)[axis]).reshape(shape)], axis=axis)
    yield case("rows", "scatter_add", lambda s: [s.normal(7, 2), s.labels(7, 4)], rows=4)
    yield case("table", "scatter_add", lambda s: [s.normal(2, 3, 2), s.labels(6, 3).reshape(2, 3)], rows=5)
    yield case("numbers", "scatter_add", lambda s: [s.normal(9), s.labels(9, 4)], rows=4)

    def with_zeros(s):
        x = s.normal(4, 5)
        x[1, 2] = 0.0
        x[2, 0] = x[2, 3] = 0.0
        x[3, 1] = x[3, 2] = x[3, 4] = 0.0
        return [x]

    yield case("rows", "reduce_prod", lambda s: [s.normal(3, 5)], axes=[1])
    yield case("all", "reduce_prod", lambda s: [s.normal(2, 3)], axes=[0, 1])
    yield case("zeros", "reduce_prod", with_zeros, axes=[1])
    for tag, axes in (("0", [0]), ("02", [0, 2]), ("all", [0, 1, 2])):
        yield case(tag, "variance", lambda s: [s.normal(3, 2, 4)], axes=axes)
        yield case(tag, "std", lambda s: [s.normal(3, 2, 4)], axes=axes)
        yield case(tag, "reduce_min", lambda s: [s.distinct(3, 2, 4)], axes=axes)
    for axis in (0, 1):
        yield case(str(axis), "softmax_axis", lambda s: [s.normal(3, 4, 2)], axis=axis)

    for exclusive in (False, True):
        for reverse in (False, True):
            for axis in (0, 1):
                tag = f"{axis}" + "_exclusive" * exclusive + "_reverse" * reverse
                yield case(tag, "cumsum", lambda s: [s.normal(4, 5)], axis=axis, exclusive=exclusive, reverse=reverse)
    for k in (1, 3, 6):
        yield case(str(k), "top_k", lambda s: [s.distinct(3, 6)], k=k)
    for axis, descending in ((0, False), (1, True)):
        yield case(str(axis), "sort", lambda s: [s.distinct(4, 5)], axis=axis, descending=descending)

    for equation, shapes in (("ij,jk->ik", ((2, 3), (3, 4))), ("ij,kj->ki", ((2, 3), (4, 3))),
                             ("bij,bjk->bik", ((2, 3, 2), (2, 2, 3))), ("bqhd,bkhd->bhqk", ((1, 2, 2, 3), (1, 3, 2, 3))),
                             ("i,i->", ((5,), (5,))), ("i,j->ji", ((3,), (2,))), ("abc,cd->ab", ((2, 2, 3), (3, 2))),
                             ("abc->ca", ((2, 3, 2),))):
        yield case(equation, "einsum", lambda s: [s.normal(*shape) for shape in shapes], equation=equation)
    for tag, size in (("up", [6, 8]), ("down", [2, 3]), ("odd", [7, 5]), ("same", [3, 4]), ("one", [1, 1])):
        for op in ("resize_nearest", "resize_bilinear"):
            yield case(tag, op, lambda s: [s.normal(1, 3, 4, 2)], size=size)

    yield case("", "log1p", lambda s: [s.uniform(3, 5)])
    for op in ("gelu", "silu", "elu", "relu6"):
        yield case("", op, lambda s: [s.away_from_zero(3, 5)])
    def attended(*more, queries=3, keys=4, heads=2, kv_heads=2):
        def inputs(s):
            made = {
                # An example without keys, one with all of them, and one in between.
                "lengths": lambda: torch.tensor([0, keys, 2], dtype=torch.int32),
                "key_mask": lambda: s.labels(3 * keys, 2).reshape(3, keys),
                "bias": lambda: s.normal(1, heads, queries, keys),
            }
            qkv = [s.normal(3, queries, heads, 4), s.normal(3, keys, kv_heads, 4), s.normal(3, keys, kv_heads, 3)]
            return qkv + [made[kind]() for kind in more]

        return inputs

    def attention_case(tag, *more, causal=False, scale=None, **sizes):
        return case(tag, "attention", attended(*more, **sizes), causal=causal, scale=scale, **{"with": more})

    yield attention_case("all")
    yield attention_case("scaled", scale=0.7)
    yield attention_case("causal", causal=True)
    yield attention_case("causal_fewer_keys", causal=True, queries=5, keys=3)
    yield attention_case("lengths", "lengths")
    yield attention_case("key_mask", "key_mask")
    yield attention_case("bias", "bias")
    yield attention_case("grouped", heads=4, kv_heads=2)
    yield attention_case("everything", "lengths", "key_mask", "bias", causal=True, scale=0.3, heads=4, kv_heads=1)

    yield case("", "leaky_relu", lambda s: [s.away_from_zero(3, 5)], slope=0.2)


def second_cases(Source):
    """Yields (name, op, attrs, inputs, wrt)."""

    def case(tag, op, inputs, wrt=0, **attrs):
        name = f"{op}_{tag}_again"
        return name, op, attrs, inputs(Source(name)), wrt

    def with_zeros(s):
        x = s.normal(4, 4)
        x[1, 2] = x[2, 0] = x[2, 3] = x[3, 0] = x[3, 1] = x[3, 2] = 0.0
        return [x]

    yield case("rows", "reduce_prod", lambda s: [s.normal(2, 4)], axes=[1])
    yield case("zeros", "reduce_prod", with_zeros, axes=[1])
    yield case("columns", "variance", lambda s: [s.normal(3, 4)], axes=[0])
    for wrt in (0, 1):
        yield case(f"attention_{wrt}", "einsum", lambda s: [s.normal(1, 2, 2, 3), s.normal(1, 3, 2, 3)], wrt,
                   equation="bqhd,bkhd->bhqk")
    for wrt in (0, 1, 2):
        yield case(f"{wrt}", "attention",
                   lambda s: [s.normal(2, 3, 2, 3), s.normal(2, 4, 1, 3), s.normal(2, 4, 1, 2)], wrt,
                   causal=True, scale=None, **{"with": ()})
