#!/usr/bin/env python3
"""Golden values of layers, computed by PyTorch in float64; writes layers.json next to itself.

Run:    python tests/golden/make_layers.py            (needs `pip install torch`)
Check:  python tests/golden/make_layers.py --check    (recomputes and compares with the file)

Where PyTorch has the layer, the layer is PyTorch's own. README.md beside this file describes the format.
"""

import math
import sys

import torch
import torch.nn.functional as F
from torch.func import functional_call

from make_golden import HERE, F64, Source, described, described_input, document, flat, named, same_or_given

# ---------------------------------------------------------------- layers
# Each is fn(attrs, variables, *inputs) -> tensor or tuple. Images are NHWC unless the layout says NCHW.

ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def to_nchw(attrs, x):
    if attrs.get("layout") == "NCHW" or x.dim() == 2:
        return x
    return x.movedim(-1, 1)


def from_nchw(attrs, x):
    return x if attrs.get("layout") == "NCHW" or x.dim() == 2 else x.movedim(1, -1)


def linear(attrs, v, x):
    if not attrs.get("last_axis"):
        x = x.flatten(1)
    return ACTIVATIONS[attrs.get("activation", "identity")](F.linear(x, v["W"].T, v["b"]))


def conv2d(attrs, v, x):
    x = to_nchw(attrs, x)
    w = v["W"].permute(3, 2, 0, 1)
    stride, dilation = [attrs.get("stride", 1)] * 2, [attrs.get("dilation", 1)] * 2
    pairs = same_or_given(attrs.get("padding", "SAME"), x.shape[2:], w.shape[2:], stride, dilation)
    (top, bottom), (left, right) = pairs
    groups = attrs.get("groups", 1) or x.shape[1]
    y = F.conv2d(F.pad(x, (left, right, top, bottom)), w, v.get("b"), stride, 0, dilation, groups)
    return from_nchw(attrs, ACTIVATIONS[attrs.get("activation", "identity")](y))


def conv2d_transpose(attrs, v, x):
    x, w, s = to_nchw(attrs, x), v["W"].permute(3, 2, 0, 1), attrs["stride"]
    y = F.conv_transpose2d(x, w, stride=s)
    for axis in (2, 3):
        n, k = x.shape[axis], w.shape[axis]
        beyond = max(k - s, 0)
        size = n * s + (0 if attrs["padding"] == "SAME" else beyond)
        low = beyond // 2 if attrs["padding"] == "SAME" else 0
        y = y.narrow(axis, low, min(size, y.shape[axis] - low))
        missing = size - y.shape[axis]
        y = F.pad(y, (0, missing, 0, 0) if axis == 3 else (0, 0, 0, missing))
    return from_nchw(attrs, y + v["b"].reshape(-1, 1, 1))


def conv1d(attrs, v, x):
    w, stride, dilation = v["W"].permute(2, 1, 0), attrs.get("stride", 1), attrs.get("dilation", 1)
    if attrs.get("causal"):
        pair = [(w.shape[2] - 1) * dilation, 0]
    else:
        (pair,) = same_or_given("SAME", x.shape[1:2], w.shape[2:], [stride], [dilation])
    y = F.conv1d(F.pad(x.transpose(1, 2), pair), w, v["b"], stride, 0, dilation, attrs.get("groups", 1))
    return y.transpose(1, 2)


def conv3d(attrs, v, x):
    x, w = x.permute(0, 4, 1, 2, 3), v["W"].permute(4, 3, 0, 1, 2)
    stride, dilation = [attrs.get("stride", 1)] * 3, [attrs.get("dilation", 1)] * 3
    pairs = same_or_given("SAME", x.shape[2:], w.shape[2:], stride, dilation)
    around = [n for pair in reversed(pairs) for n in pair]
    y = F.conv3d(F.pad(x, around), w, v["b"], stride, 0, dilation, attrs.get("groups", 1))
    return y.permute(0, 2, 3, 4, 1)


def batch_norm(attrs, v, x):
    """Returns the result; the running statistics in `v` become what they are after the step."""
    x, keep = to_nchw(attrs, x), attrs["momentum"]
    mean, variance = v["mean/EMA"], v["variance/EMA"]

    def one(x, mean, variance):
        training = attrs["mode"] == "training"
        return F.batch_norm(x, mean, variance, v.get("gamma"), v.get("beta"), training, 1 - keep, attrs["epsilon"])

    size = attrs.get("virtual_batch_size", x.shape[0])
    groups = [(part, mean.clone(), variance.clone()) for part in x.split(size)]
    y = torch.cat([one(*group) for group in groups])
    v["mean/EMA"] = torch.stack([m for _, m, _ in groups]).mean(0)
    v["variance/EMA"] = torch.stack([s for _, _, s in groups]).mean(0)
    return from_nchw(attrs, y)


def affine(attrs, v, y):
    """A scale and a shift by channel, of NCHW."""
    def channels(t):
        return t.reshape(-1, *[1] * (y.dim() - 2))

    return from_nchw(attrs, y * channels(v["gamma"]) + channels(v["beta"]))


def layer_norm(attrs, v, x):
    if attrs.get("last_axis"):
        return F.layer_norm(x, x.shape[-1:], v["gamma"], v["beta"], attrs["epsilon"])
    x = to_nchw(attrs, x)
    return affine(attrs, v, F.layer_norm(x, x.shape[1:], eps=attrs["epsilon"]))


def instance_norm(attrs, v, x):
    return affine(attrs, v, F.instance_norm(to_nchw(attrs, x), eps=attrs["epsilon"]))


def group_norm(attrs, v, x):
    y = F.group_norm(to_nchw(attrs, x), attrs["groups"], v["gamma"], v["beta"], attrs["epsilon"])
    return from_nchw(attrs, y)


def embedding(attrs, v, ids):
    return F.embedding(ids.long(), v["W"])


def recurrent(module, params, x, state):
    module = module(x.shape[2], params["weight_hh_l0"].shape[1], batch_first=True, dtype=F64)
    return functional_call(module, params, (x,) if state is None else (x, state))


def lstm(attrs, v, x, *state):
    units = v["U"].shape[0]
    forget = torch.zeros(4 * units, dtype=F64)
    forget[units : 2 * units] = attrs["forget_bias"]
    params = {"weight_ih_l0": v["W"].T, "weight_hh_l0": v["U"].T, "bias_ih_l0": v["b"], "bias_hh_l0": forget}
    # Inputs are x, c, h; PyTorch's state is (h, c).
    start = (state[1][None], state[0][None]) if state else None
    y, (h, c) = recurrent(torch.nn.LSTM, params, x, start)
    return y, c[0], h[0]


def gru(attrs, v, x, *state):
    units = v["U"].shape[0]
    inner = torch.cat([torch.zeros(2 * units, dtype=F64), v["c"]])
    params = {"weight_ih_l0": v["W"].T, "weight_hh_l0": v["U"].T, "bias_ih_l0": v["b"], "bias_hh_l0": inner}
    y, h = recurrent(torch.nn.GRU, params, x, state[0][None] if state else None)
    return y, h[0]


def attention(attrs, v, x, *memory):
    memory = memory[0] if memory else x

    def heads(name, x):
        y = F.linear(x, v[f"{name}/W"].T, v.get(f"{name}/b"))
        return y.reshape(*y.shape[:2], attrs["heads"], -1).transpose(1, 2)

    y = F.scaled_dot_product_attention(
        heads("query", x), heads("key", memory), heads("value", memory), is_causal=attrs.get("causal", False)
    )
    return y.transpose(1, 2).flatten(2) @ v["out/W"] + v["out/b"]


def prelu(attrs, v, x):
    return F.prelu(x, v["alpha"].reshape(1))


def maxout(attrs, v, x):
    return x.reshape(*x.shape[:-1], -1, attrs["units"]).amax(-1)


def unpool(attrs, v, x, block):
    return from_nchw({}, torch.kron(to_nchw({}, x).contiguous(), block))


def global_max_pool(attrs, v, x):
    return F.adaptive_max_pool2d(to_nchw(attrs, x), 1).flatten(1)


LAYERS = {f.__name__: f for f in (
    linear, conv2d, conv2d_transpose, conv1d, conv3d, batch_norm, layer_norm, instance_norm, group_norm, embedding, lstm,
    gru, attention, prelu, maxout, unpool, global_max_pool)}


# ---------------------------------------------------------------- cases


def norm_variables(s, n):
    return {"gamma": s.uniform(n, low=0.5, high=1.5), "beta": s.normal(n, scale=0.3)}


def attention_variables(s, features, memory=None):
    sizes = {"query": features, "key": memory or features, "value": memory or features, "out": features}
    found = {}
    for name, inputs in sizes.items():
        found[f"{name}/W"] = s.normal(inputs, features, scale=1 / math.sqrt(inputs))
        if name != "key":
            found[f"{name}/b"] = s.normal(features, scale=0.1)
    return found


def lstm_variables(s, features, units):
    return {
        "W": s.normal(features, 4 * units, scale=0.5),
        "U": s.normal(units, 4 * units, scale=0.5),
        "b": s.normal(4 * units, scale=0.1),
    }


def gru_variables(s, features, units):
    return {
        "W": s.normal(features, 3 * units, scale=0.5),
        "U": s.normal(units, 3 * units, scale=0.5),
        "b": s.normal(3 * units, scale=0.1),
        "c": s.normal(units, scale=0.1),
    }


def layer_cases():
    """(name, layer, attrs, variables(source), inputs(source))"""
    for a in ACTIVATIONS:
        yield (f"linear_{a}", "linear", {"activation": a},
               lambda s: {"W": s.normal(5, 3), "b": s.normal(3)}, lambda s: [s.normal(4, 5)])
    yield ("linear_flat", "linear", {}, lambda s: {"W": s.normal(12, 3), "b": s.normal(3)},
           lambda s: [s.normal(2, 2, 3, 2)])
    yield ("linear_last_axis", "linear", {"last_axis": True}, lambda s: {"W": s.normal(4, 3), "b": s.normal(3)},
           lambda s: [s.normal(2, 3, 4)])

    def conv(name, attrs, filter, image):
        w = lambda s: {"W": s.normal(*filter, scale=0.5), "b": s.normal(filter[-1])}
        return (f"conv2d_{name}", "conv2d", attrs, w, lambda s: [s.normal(*image)])

    yield conv("stride", {"stride": 2, "activation": "relu"}, (3, 3, 2, 4), (2, 5, 6, 2))
    yield conv("nchw", {"layout": "NCHW", "activation": "tanh"}, (3, 3, 3, 4), (2, 3, 4, 5))
    yield conv("groups", {"groups": 2, "stride": 2}, (3, 3, 2, 6), (2, 5, 5, 4))
    yield conv("groups_nchw", {"groups": 3, "dilation": 2, "layout": "NCHW"}, (2, 2, 1, 6), (1, 3, 5, 5))
    yield conv("valid", {"padding": "VALID", "dilation": 2}, (2, 2, 2, 3), (1, 5, 5, 2))
    # 0 groups: as many as there are channels.
    yield conv("depthwise", {"groups": 0}, (3, 3, 1, 5), (2, 4, 5, 5))
    yield conv("depthwise_stride", {"groups": 0, "stride": 2, "activation": "relu6"}, (3, 3, 1, 18), (1, 5, 6, 18))
    yield conv("depthwise_multiplier", {"groups": 0, "layout": "NCHW"}, (2, 2, 1, 6), (2, 3, 4, 4))

    for name, padding, stride, k, layout in (("same", "SAME", 2, 4, "NHWC"), ("same_odd", "SAME", 2, 3, "NCHW"),
                                             ("valid", "VALID", 2, 5, "NHWC"), ("valid_small", "VALID", 3, 2, "NHWC"),
                                             ("same_small", "SAME", 3, 2, "NHWC")):
        image = (2, 3, 4, 2) if layout == "NHWC" else (2, 2, 3, 4)
        yield (f"conv2d_transpose_{name}", "conv2d_transpose", {"padding": padding, "stride": stride, "layout": layout},
               lambda s, k=k: {"W": s.normal(k, k, 3, 2, scale=0.5), "b": s.normal(3)},
               lambda s, image=image: [s.normal(*image)])

    for name, attrs, w, x in (("same", {"stride": 2}, (4, 3, 2), (2, 7, 3)),
                              ("causal", {"causal": True, "dilation": 2}, (3, 2, 4), (2, 6, 2)),
                              ("groups", {"groups": 2}, (3, 2, 4), (2, 5, 4))):
        yield (f"conv1d_{name}", "conv1d", attrs, lambda s, w=w: {"W": s.normal(*w), "b": s.normal(w[-1])},
               lambda s, x=x: [s.normal(*x)])

    for name, attrs, w, x in (("same", {"stride": 2}, (3, 2, 3, 3, 2), (2, 4, 3, 5, 3)),
                              ("dilated", {"dilation": 2}, (2, 2, 1, 2, 3), (1, 4, 4, 3, 2)),
                              ("groups", {"groups": 2}, (2, 3, 2, 2, 4), (2, 3, 3, 4, 4))):
        yield (f"conv3d_{name}", "conv3d", attrs, lambda s, w=w: {"W": s.normal(*w), "b": s.normal(w[-1])},
               lambda s, x=x: [s.normal(*x)])

    for name, more, x, parts in (("matrix", {}, (6, 4), "gb"), ("images", {}, (3, 2, 3, 4), "gb"),
                                 ("nchw", {"layout": "NCHW"}, (3, 4, 2, 3), "gb"),
                                 ("no_center", {}, (5, 4), "g"), ("no_scale", {}, (5, 4), "b"),
                                 ("ghost", {"virtual_batch_size": 3}, (6, 2, 2, 4), "gb"),
                                 ("running", {"mode": "running"}, (5, 4), "gb")):
        attrs = {"mode": "training", "momentum": 0.8, "epsilon": 1e-3, **more}

        def variables(s, parts=parts):
            found = norm_variables(s, 4)
            found = {k: v for k, v in found.items() if k[0] in parts}
            return {**found, "mean/EMA": s.normal(4), "variance/EMA": s.uniform(4)}

        yield (f"batch_norm_{name}", "batch_norm", attrs, variables, lambda s, x=x: [s.normal(*x, scale=2.0)])

    norms = (("layer_norm_matrix", "layer_norm", {}, (3, 6)), ("layer_norm_images", "layer_norm", {}, (2, 3, 2, 6)),
             ("layer_norm_nchw", "layer_norm", {"layout": "NCHW"}, (2, 6, 3, 2)),
             ("layer_norm_last_axis", "layer_norm", {"last_axis": True}, (2, 3, 6)),
             ("instance_norm", "instance_norm", {}, (2, 3, 4, 6)),
             ("instance_norm_nchw", "instance_norm", {"layout": "NCHW"}, (2, 6, 3, 4)),
             ("group_norm", "group_norm", {"groups": 3}, (2, 3, 2, 6)),
             ("group_norm_nchw", "group_norm", {"groups": 2, "layout": "NCHW"}, (2, 6, 3, 2)))
    for name, layer, more, x in norms:
        yield (name, layer, {"epsilon": 1e-4, **more}, lambda s: norm_variables(s, 6), lambda s, x=x: [s.normal(*x)])

    yield ("embedding", "embedding", {}, lambda s: {"W": s.normal(7, 3)},
           lambda s: [s.labels(6, 7).reshape(2, 3)])
    yield ("lstm", "lstm", {"forget_bias": 1.0}, lambda s: lstm_variables(s, 3, 4), lambda s: [s.normal(2, 5, 3)])
    yield ("lstm_from_a_state", "lstm", {"forget_bias": 0.0}, lambda s: lstm_variables(s, 3, 4),
           lambda s: [s.normal(2, 3, 3), s.normal(2, 4), s.normal(2, 4)])
    yield ("gru", "gru", {}, lambda s: gru_variables(s, 3, 4), lambda s: [s.normal(2, 5, 3)])
    yield ("gru_from_a_state", "gru", {}, lambda s: gru_variables(s, 3, 4), lambda s: [s.normal(2, 3, 3), s.normal(2, 4)])
    # Through many steps.
    yield ("lstm_35_steps", "lstm", {"forget_bias": 1.0}, lambda s: lstm_variables(s, 4, 6),
           lambda s: [s.normal(2, 35, 4)])
    yield ("attention", "attention", {"heads": 2}, lambda s: attention_variables(s, 6), lambda s: [s.normal(2, 4, 6)])
    yield ("attention_causal", "attention", {"heads": 3, "causal": True}, lambda s: attention_variables(s, 6),
           lambda s: [s.normal(2, 5, 6)])
    yield ("attention_to_memory", "attention", {"heads": 2}, lambda s: attention_variables(s, 4, 5),
           lambda s: [s.normal(2, 3, 4), s.normal(2, 6, 5)])
    yield ("prelu", "prelu", {}, lambda s: {"alpha": s.uniform()}, lambda s: [s.away_from_zero(3, 4)])
    yield ("maxout", "maxout", {"units": 3}, lambda s: {}, lambda s: [s.distinct(2, 2, 6)])
    yield ("unpool", "unpool", {}, lambda s: {}, lambda s: [s.normal(2, 2, 3, 2), s.normal(2, 3)])
    yield ("global_max_pool", "global_max_pool", {"layout": "NCHW"}, lambda s: {}, lambda s: [s.distinct(2, 3, 3, 4)])


RUNNING = ("mean/EMA", "variance/EMA")


def make_cases():
    cases = []
    for name, layer, attrs, variables, inputs in layer_cases():
        variables, inputs = variables(Source("variables_" + name)), inputs(Source("inputs_" + name))
        inputs = [t.requires_grad_(t.dtype == F64) for t in inputs]
        learned = {k: t.requires_grad_() for k, t in variables.items() if k not in RUNNING}
        state = {k: t for k, t in variables.items() if k in RUNNING}
        initial = named(variables)
        held = {**learned, **state}
        outputs = LAYERS[layer](attrs, held, *inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        source = Source("seeds_" + name)
        seeds = [source.normal(*y.shape) for y in outputs]
        wanted = [t for t in inputs if t.requires_grad] + list(learned.values())
        grads = torch.autograd.grad(sum((y * s).sum() for y, s in zip(outputs, seeds)), wanted)
        count = len(wanted) - len(learned)
        cases.append({
            "name": name, "layer": layer, "attrs": attrs, "variables": initial,
            "inputs": [described_input(t) for t in inputs],
            "outputs": [described(y) for y in outputs],
            "seeds": [flat(s) for s in seeds],
            "input_grads": [flat(g) for g in grads[:count]],
            "variable_grads": [{"name": k, "data": flat(g)} for k, g in zip(learned, grads[count:])],
            "state": [{"name": k, "data": flat(held[k])} for k in state],
        })
    return cases


# ---------------------------------------------------------------- gradient penalty


def make_penalty():
    """The penalty of Wasserstein GANs, (|dD/dx| - 1)^2, whose gradient has second derivatives of all of D."""
    s = Source("gradient_penalty")
    v = {
        "conv0/W": s.normal(3, 3, 2, 4, scale=0.4), "conv0/b": s.normal(4, scale=0.2),
        "conv1/W": s.normal(3, 3, 4, 5, scale=0.3), "conv1/b": s.normal(5, scale=0.2),
        **{f"ln/{k}": t for k, t in norm_variables(s, 5).items()},
        "fc/W": s.normal(20, 1, scale=0.4),
    }
    initial = named(v)
    v = {k: t.requires_grad_() for k, t in v.items()}
    x = s.normal(3, 4, 4, 2).requires_grad_()

    def part(prefix):
        return {k.split("/")[1]: t for k, t in v.items() if k.startswith(prefix + "/")}

    y = conv2d({"activation": "leaky_relu"}, part("conv0"), x)
    y = conv2d({"stride": 2}, part("conv1"), y)
    y = F.leaky_relu(layer_norm({"epsilon": 1e-5}, part("ln"), y), 0.2)
    score = (y.flatten(1) @ v["fc/W"]).sum()
    (slope,) = torch.autograd.grad(score, x, create_graph=True)
    norm = slope.square().sum([1, 2, 3]).sqrt()
    penalty = (norm - 1).square().mean()
    grads = torch.autograd.grad(penalty, list(v.values()) + [x], allow_unused=True)
    return [{
        "name": "gradient_penalty", "x": described(x), "variables": initial, "penalty": penalty.item(),
        "gradients": [{"name": k, "data": flat(g)} for k, g in zip([*v, "x"], grads) if g is not None],
    }]


# ---------------------------------------------------------------- training

STEPS, RATE = 20, 0.05


def convnet():
    s = Source("layers_convnet")
    v = {
        "conv0/W": s.normal(3, 3, 2, 4, scale=0.4),
        **{f"bn0/{k}": t for k, t in norm_variables(s, 4).items()},
        "conv1/W": s.normal(3, 3, 1, 4, scale=0.5), "conv1/b": s.normal(4, scale=0.1),
        "fc/W": s.normal(4, 3, scale=0.6), "fc/b": s.normal(3, scale=0.1),
    }
    state = {"bn0/mean/EMA": torch.zeros(4, dtype=F64), "bn0/variance/EMA": torch.ones(4, dtype=F64)}
    x, labels = s.normal(4, 4, 5, 5, 2), s.labels(16, 3).reshape(4, 4)

    def logits(v, state, x):
        y = conv2d({}, {"W": v["conv0/W"]}, x)
        held = {k[4:]: t for k, t in {**v, **state}.items() if k.startswith("bn0/")}
        y = F.relu(batch_norm({"mode": "training", "momentum": 0.9, "epsilon": 1e-5}, held, y))
        state.update({f"bn0/{k}": held[k].detach() for k in RUNNING})
        y = F.relu(conv2d({"groups": 0, "stride": 2}, {"W": v["conv1/W"], "b": v["conv1/b"]}, y))
        return y.mean([1, 2]) @ v["fc/W"] + v["fc/b"]

    return "convnet", v, state, x, labels, logits


def lstm_net():
    s = Source("layers_lstm")
    v = {
        "words/W": s.normal(9, 4, scale=0.5),
        **{f"lstm0/{k}": t for k, t in lstm_variables(s, 4, 5).items()},
        **{f"gru1/{k}": t for k, t in gru_variables(s, 5, 4).items()},
        "fc/W": s.normal(4, 9, scale=0.5), "fc/b": s.normal(9, scale=0.1),
    }
    x, labels = s.labels(4 * 2 * 6, 9).reshape(4, 2, 6), s.labels(4 * 12, 9).reshape(4, 12)

    def logits(v, state, x):
        part = lambda prefix: {k.split("/")[1]: t for k, t in v.items() if k.startswith(prefix)}
        y = embedding({}, part("words"), x)
        y = lstm({"forget_bias": 1.0}, part("lstm0"), y)[0]
        y = gru({}, part("gru1"), y)[0]
        return y.reshape(-1, 4) @ v["fc/W"] + v["fc/b"]

    return "lstm_net", v, {}, x, labels, logits


def transformer():
    s = Source("layers_transformer")
    v = {
        **{f"ln0/{k}": t for k, t in norm_variables(s, 6).items()},
        **{f"attention/{k}": t for k, t in attention_variables(s, 6).items()},
        **{f"ln1/{k}": t for k, t in norm_variables(s, 6).items()},
        "fc0/W": s.normal(6, 8, scale=0.5), "fc0/b": s.normal(8, scale=0.1),
        "fc1/W": s.normal(8, 6, scale=0.5), "fc1/b": s.normal(6, scale=0.1),
        "out/W": s.normal(6, 3, scale=0.5), "out/b": s.normal(3, scale=0.1),
    }
    x, labels = s.normal(4, 2, 4, 6), s.labels(4 * 8, 3).reshape(4, 8)

    def logits(v, state, x):
        part = lambda prefix: {k[len(prefix) + 1 :]: t for k, t in v.items() if k.startswith(prefix + "/")}
        norm = {"epsilon": 1e-5, "last_axis": True}
        x = x + attention({"heads": 2, "causal": True}, part("attention"), layer_norm(norm, part("ln0"), x))
        y = F.gelu(layer_norm(norm, part("ln1"), x) @ v["fc0/W"] + v["fc0/b"])
        x = x + y @ v["fc1/W"] + v["fc1/b"]
        return x.reshape(-1, 6) @ v["out/W"] + v["out/b"]

    return "transformer", v, {}, x, labels, logits


def make_runs():
    """SGD over four batches, again and again."""
    runs = []
    for name, v, state, x, labels, logits in (convnet(), lstm_net(), transformer()):
        initial = named(v)
        v = {k: t.requires_grad_() for k, t in v.items()}
        losses = []
        for step in range(STEPS):
            batch = step % len(x)
            loss = F.cross_entropy(logits(v, state, x[batch]), labels[batch].long())
            losses.append(loss.item())
            for t, g in zip(v.values(), torch.autograd.grad(loss, list(v.values()))):
                with torch.no_grad():
                    t -= RATE * g
        runs.append({
            "name": name, "rate": RATE, "steps": STEPS, "x": described_input(x), "labels": described(labels),
            "initial": initial, "losses": losses, "final": named(v), "final_state": named(state),
        })
    return runs


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    text = document("entries", [{"kind": kind, **e} for kind, entries in
                                (("layer", make_cases()), ("penalty", make_penalty()), ("run", make_runs()))
                                for e in entries])
    path = HERE / "layers.json"
    if "--check" in sys.argv[1:]:
        same = path.exists() and path.read_text() == text
        print(f"layers.json: {'identical' if same else 'DIFFERS'}")
        return 0 if same else 1
    path.write_text(text)
    print(f"layers.json: {len(text) / 1024:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
