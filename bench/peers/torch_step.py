#!/usr/bin/env python3
"""One training step of the reference models in PyTorch on the CPU."""

import step_timer

FORMS = ["eager", "eager-channels-last", "compile", "compile-channels-last"]
args = step_timer.arguments(__doc__, FORMS)

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(args.threads)
torch.set_num_interop_threads(1)
torch.manual_seed(0)


def mlp():
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, step_timer.CLASSES)
    )


def mnist():
    def conv(channels):
        return [nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU()]

    return nn.Sequential(
        *conv(1), nn.MaxPool2d(2), *conv(32), *conv(32), nn.MaxPool2d(2), *conv(32),
        nn.Flatten(), nn.Linear(7 * 7 * 32, 512), nn.ReLU(), nn.Linear(512, step_timer.CLASSES),
    )  # fmt: skip


def conv_bn(channels_in, channels_out, stride):
    return (
        nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out, step_timer.BN_EPSILON, 1 - step_timer.BN_MOMENTUM),
    )


class Block(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.stride = 1 if channels_in == channels_out else 2
        self.added = channels_out - channels_in
        self.conv1, self.bn1 = conv_bn(channels_in, channels_out, self.stride)
        self.conv2, self.bn2 = conv_bn(channels_out, channels_out, 1)

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.added:
            before = self.added // 2
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.added - before))
        return F.relu(x + y)


class Resnet32(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = conv_bn(3, 16, 1)
        widths = [16] * 6 + [32] * 5 + [64] * 5
        self.blocks = nn.Sequential(*[Block(a, b) for a, b in zip(widths, widths[1:])])
        self.fc = nn.Linear(64, step_timer.CLASSES)

    def forward(self, x):
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(x.mean((2, 3)))


model = {"mlp": mlp, "mnist": mnist, "resnet32": Resnet32}[args.model]().train()
x, labels = (torch.from_numpy(a) for a in step_timer.synthetic(args))
labels = labels.long()
if x.dim() == 4:
    x = x.permute(0, 3, 1, 2).contiguous()
    if args.form.endswith("channels-last"):
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
optimizer = torch.optim.Adam(model.parameters(), step_timer.LEARNING_RATE, fused=True)


def cost(x, labels):
    return F.cross_entropy(model(x), labels)


if args.form.startswith("compile"):
    cost = torch.compile(cost)


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = cost(x, labels)
    loss.backward()
    optimizer.step()
    return loss.item()


step_timer.measure(args, "torch", torch.__version__, sum(p.numel() for p in model.parameters()), step)
