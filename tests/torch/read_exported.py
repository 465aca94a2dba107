#!/usr/bin/env python3
"""Loads weights that tensorpack exported into torchvision's ResNet-18 and compares its logits with ours.

Run:  python tests/torch/read_exported.py WEIGHTS.safetensors VALUES.pt   (needs torch, torchvision, safetensors)
"""

import sys

import torch
import torchvision
from safetensors.torch import load_file

net = torchvision.models.resnet18().eval()
net.load_state_dict(load_file(sys.argv[1]))
values = torch.load(sys.argv[2])
with torch.no_grad():
    y = net(values["x"].permute(0, 3, 1, 2))
error = ((y - values["y"]).abs().max() / values["y"].abs().max()).item()
print(f"largest error: {error}")
sys.exit(0 if error < 1e-5 else 1)
