#!/usr/bin/env python3
"""The pre-activation ResNets of examples/cifar_resnet.rs in PyTorch, randomly initialised, and what they make of an
input: tests/cifar_resnet.rs loads the weights and compares.

Run:  python tests/torch/make_cifar_resnet.py FOLDER       (needs `pip install torch`)
"""

import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

FOLDER = pathlib.Path(sys.argv[1])
torch.manual_seed(7)


class Block(nn.Module):
    def __init__(self, inputs, channels, is_first):
        super().__init__()
        self.stride = channels // inputs
        # Before the first block there are a normalization and a ReLU already.
        self.bn0 = nn.Identity() if is_first else nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride=self.stride, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x):
        # With a stride of 2 the even size needs one row and one column, at the end.
        before = 2 - self.stride
        y = self.conv1(F.pad(self.bn0(x), (before, 1, before, 1)))
        y = self.conv2(F.relu(self.bn1(y)))
        if self.stride == 2:
            missing = x.shape[1] // 2
            x = F.pad(F.avg_pool2d(x, 2), (0, 0, 0, 0, missing, missing))
        return x + y


class ResNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv0 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn0 = nn.BatchNorm2d(16)
        self.stages = nn.ModuleList()
        inputs = 16
        for channels in [16, 32, 64]:
            stage = nn.ModuleList()
            for i in range(n):
                stage.append(Block(inputs, channels, channels == 16 and i == 0))
                inputs = channels
            self.stages.append(stage)
        self.bnlast = nn.BatchNorm2d(64)
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn0(self.conv0(x)))
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return self.linear(F.relu(self.bnlast(x)).mean((2, 3)))


for name, n in [("resnet20", 3), ("resnet56", 9), ("resnet110", 18)]:
    net = ResNet(n)
    # Running statistics that are not those of a new net.
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    net.eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        y = net(x)
    torch.save(net.state_dict(), FOLDER / f"{name}.pth")
    # Images here are [batch, height, width, channels].
    torch.save({"x": x.permute(0, 2, 3, 1), "y": y}, FOLDER / f"{name}-values.pt")
