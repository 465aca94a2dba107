#!/usr/bin/env python3
"""Weights of a small net, saved by PyTorch, and what the net makes of an input: tests/session_init.rs loads them.

Run:  python tests/torch/make_model.py       (needs `pip install torch safetensors`; writes next to itself)
"""

import json
import pathlib

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent

torch.manual_seed(7)
net = torch.nn.Sequential(
    torch.nn.Conv2d(2, 3, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(3, 5),
)
x = torch.randn(2, 2, 4, 6)
with torch.no_grad():
    y = net(x)
save_file(net.state_dict(), HERE / "model.safetensors", metadata={"format": "pt"})
# Images here are [batch, height, width, channels].
values = {"x": x.permute(0, 2, 3, 1).flatten().tolist(), "y": y.flatten().tolist()}
(HERE / "values.json").write_text(json.dumps(values) + "\n")
