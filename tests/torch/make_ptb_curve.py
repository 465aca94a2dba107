#!/usr/bin/env python3
"""Costs of the first steps of `examples/ptb_lstm.rs` without dropout, computed by PyTorch: tests/language_models compares.

Run:  python tests/torch/make_ptb_curve.py DATASETS     (needs `pip install torch numpy`; writes next to itself)

DATASETS is the folder that has `ptb/ptb.train.txt`. Initial weights need no file: both sides draw them from a generator
that is a function of seed, name and counter (Philox), so this also checks the initializers.
"""

import collections
import json
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
WORDS, BATCH, STEPS = 10_000, 20, 35


# ---------------------------------------------------------------- the generator


def hash_name(name):
    """FNV-1a, then mixed."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) % 2**64
    h = ((h ^ (h >> 32)) * 0xD6E8FEB86659FD93) % 2**64
    return h ^ (h >> 32)


def philox(seed, name, count):
    """Philox 4x32-10: four words for each of the first `count` counters of draw 0."""
    key = seed ^ hash_name(name)
    k0, k1 = key % 2**32, key >> 32
    counter = np.arange(count, dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c = [counter & low, counter >> half, np.zeros_like(counter), np.zeros_like(counter)]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> half) ^ c[1] ^ np.uint64(k0), p1 & low, (p0 >> half) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return np.stack(c, axis=1)


def uniform(name, *sizes):
    """The variable `name` of seed 0, between -0.05 and 0.05."""
    count = int(np.prod(sizes))
    words = philox(0, name, (count + 3) // 4).reshape(-1)[:count]
    values = -0.05 + 0.1 * ((words >> np.uint64(8)).astype(np.float64) / 2**24)
    return torch.tensor(values.reshape(sizes), dtype=torch.get_default_dtype())


# ---------------------------------------------------------------- texts


def sentences(count):
    """The generated text, `tensorpack::dataflow::dataset::sentences`."""
    text, before = [], 0
    for follows, octave, within, which in philox(0, "train sentences", count).tolist():
        if follows % 2 == 0:
            before = (before * 5 + (which % 4 + 1) * 2003) % 511
        else:
            first = 1 << (octave % 13)
            before = first - 1 + within % first
        text.append(before)
    return text


def treebank(datasets):
    """The Penn Treebank; frequent words first."""
    text = (pathlib.Path(datasets) / "ptb" / "ptb.train.txt").read_text().replace("\n", " <eos> ").split()
    words = sorted(collections.Counter(text).items(), key=lambda item: (-item[1], item[0]))
    numbers = {word: i for i, (word, _) in enumerate(words)}
    return [numbers[word] for word in text]


# ---------------------------------------------------------------- the model


def lstm(x, state, w, u, b):
    """`x [batch, time, features]`; gates i, f, g, o. One bias: two would learn twice as fast."""
    c, h = state
    outputs = []
    for x_t in (x @ w + b).unbind(1):
        i, f, g, o = (x_t + h @ u).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, 1), (c, h)


def curve(text, units, rate, count, dtype):
    torch.set_default_dtype(dtype)
    weights = {"embedding": uniform("embedding/W", WORDS, units)}
    for layer in ("lstm0", "lstm1"):
        weights[f"{layer}/W"] = uniform(f"{layer}/W", units, 4 * units)
        weights[f"{layer}/U"] = uniform(f"{layer}/U", units, 4 * units)
        weights[f"{layer}/b"] = torch.zeros(4 * units)
    weights["fc/W"] = uniform("fc/W", units, WORDS)
    weights["fc/b"] = torch.zeros(WORDS)
    for weight in weights.values():
        weight.requires_grad_()
    optimizer = torch.optim.SGD(weights.values(), lr=rate)

    part = len(text) // BATCH
    rows = torch.tensor(text[: BATCH * part]).reshape(BATCH, part)
    state = {layer: (torch.zeros(BATCH, units), torch.zeros(BATCH, units)) for layer in ("lstm0", "lstm1")}
    costs = []
    for step in range(count):
        at = step * STEPS
        x = weights["embedding"][rows[:, at : at + STEPS]]
        for layer in ("lstm0", "lstm1"):
            x, after = lstm(x, state[layer], *(weights[f"{layer}/{part}"] for part in "WUb"))
            state[layer] = tuple(s.detach() for s in after)
        logits = x @ weights["fc/W"] + weights["fc/b"]
        cost = STEPS * F.cross_entropy(logits.flatten(0, 1), rows[:, at + 1 : at + STEPS + 1].flatten())
        optimizer.zero_grad()
        cost.backward()
        # By hand: `clip_grad_norm_` adds 1e-6 to the norm.
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(w.grad) for w in weights.values()]))
        for weight in weights.values():
            weight.grad *= 5.0 / max(norm.item(), 5.0)
        optimizer.step()
        costs.append(round(cost.item(), 8))
    return costs


if __name__ == "__main__":
    generated = sentences(300_000)
    # At a rate of 1 costs leap, and what rounding makes different grows with every leap: PyTorch in f32 is 12 % away from
    # PyTorch in f64 after 42 steps on the Treebank. So such a curve is short and in f64; the others learn slowly.
    runs = {
        "small": curve(generated, 64, 0.1, 100, torch.float32),
        "leaps": curve(generated, 64, 1.0, 40, torch.float64),
        "full": curve(generated, 650, 0.1, 5, torch.float32),
        "treebank": curve(treebank(sys.argv[1]), 650, 0.1, 200, torch.float32),
    }
    (HERE / "ptb_curve.json").write_text(json.dumps(runs) + "\n")
