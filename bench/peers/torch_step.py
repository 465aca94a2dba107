#!/usr/bin/env python3
"""One training step of the reference models in PyTorch."""

import os

import step_timer

FORMS = ["eager", "eager-channels-last", "compile", "compile-channels-last", "compile-cuda-graphs", "compile-cuda-graphs-channels-last"]
args = step_timer.arguments(__doc__, FORMS)

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(args.threads)
torch.set_num_interop_threads(1)
torch.manual_seed(0)
# With --dtype bf16: convolutions and products in bf16, statistics and weights in f32.
mixed = torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16")


def mlp(inputs=784, units=512):
    return nn.Sequential(
        nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, step_timer.CLASSES)
    )


def dqn():
    return mlp(8, 64)


def mnist():
    def conv(channels):
        return [nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU()]

    return nn.Sequential(
        *conv(1), nn.MaxPool2d(2), *conv(32), *conv(32), nn.MaxPool2d(2), *conv(32),
        nn.Flatten(), nn.Linear(7 * 7 * 32, 512), nn.ReLU(), nn.Linear(512, step_timer.CLASSES),
    )  # fmt: skip


def conv_bn(channels_in, channels_out, stride, kernel=3):
    return (
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False),
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


class Bottleneck(nn.Module):
    def __init__(self, channels_in, width, stride):
        super().__init__()
        self.conv1, self.bn1 = conv_bn(channels_in, width, 1, 1)
        self.conv2, self.bn2 = conv_bn(width, width, stride)
        self.conv3, self.bn3 = conv_bn(width, 4 * width, 1, 1)
        is_same = channels_in == 4 * width
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*conv_bn(channels_in, 4 * width, stride, 1))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class Resnet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = conv_bn(3, 64, 2, 7)
        blocks, channels = [], 64
        for stage, count in enumerate([3, 4, 6, 3]):
            for i in range(count):
                blocks.append(Bottleneck(channels, 64 << stage, 2 if stage > 0 and i == 0 else 1))
                channels = 256 << stage
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, step_timer.IMAGENET_CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 3, 2, padding=1)
        return self.fc(self.blocks(x).mean((2, 3)))


class Ptb(nn.Module):
    def __init__(self):
        super().__init__()
        units, words = 650, step_timer.WORDS
        self.embedding = nn.Embedding(words, units)
        self.lstm = nn.LSTM(units, units, 2, batch_first=True, dropout=0.5)
        self.fc = nn.Linear(units, words)
        for p in self.parameters():
            nn.init.uniform_(p, -0.05, 0.05)

    def forward(self, words):
        x = F.dropout(self.embedding(words), 0.5)
        return self.fc(F.dropout(self.lstm(x)[0], 0.5))


class TransformerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        width = step_timer.WIDTH
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        heads = (*x.shape[:2], step_timer.HEADS, -1)
        q, k, v = (y.view(heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        width, words = step_timer.WIDTH, step_timer.BYTES
        self.embedding = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(step_timer.TOKENS, width) * 0.02)
        self.layers = nn.Sequential(*[TransformerLayer() for _ in range(step_timer.LAYERS)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, words):
        return self.head(self.norm(self.layers(self.embedding(words) + self.positions)))


def dcgan_generator():
    def up(a, b, stride, padding):
        return nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False)

    def bn(channels):
        return [nn.BatchNorm2d(channels, step_timer.BN_EPSILON, 1 - step_timer.BN_MOMENTUM), nn.ReLU()]

    return nn.Sequential(
        up(100, 256, 1, 0), *bn(256), up(256, 128, 2, 1), *bn(128), up(128, 64, 2, 1), *bn(64), up(64, 3, 2, 1), nn.Tanh(),
    )  # fmt: skip


def dcgan_discriminator():
    def down(a, b):
        return nn.Conv2d(a, b, 4, 2, 1, bias=False)

    def bn(channels):
        return nn.BatchNorm2d(channels, step_timer.BN_EPSILON, 1 - step_timer.BN_MOMENTUM)

    return nn.Sequential(
        down(3, 64), nn.LeakyReLU(0.2), down(64, 128), bn(128), nn.LeakyReLU(0.2), down(128, 256), bn(256),
        nn.LeakyReLU(0.2), nn.Conv2d(256, 1, 4, bias=False),
    )  # fmt: skip


def images(x, *models):
    """Converts images to NCHW and images and models to the memory format of the variant."""
    x = x.permute(0, 3, 1, 2).contiguous()
    if not args.form.endswith("channels-last"):
        return x, *models
    return x.to(memory_format=torch.channels_last), *(m.to(memory_format=torch.channels_last) for m in models)


def compiled(function):
    if not args.form.startswith("compile"):
        return function
    # With CUDA graphs, which only replay what was recorded.
    return torch.compile(function, mode="reduce-overhead" if "cuda-graphs" in args.form else None)


def distributed(model):
    """Averages gradients over the processes that torchrun started, if it did."""
    if "WORLD_SIZE" not in os.environ:
        return model
    torch.distributed.init_process_group("gloo")
    return torch.nn.parallel.DistributedDataParallel(model)


def steps(model, cost, optimizer):
    """Returns the model, a step that reads its loss, and one that only starts."""

    def launch():
        optimizer.zero_grad(set_to_none=True)
        loss = cost()
        loss.backward()
        optimizer.step()
        return loss

    return [model], lambda: launch().item(), launch


def classifier():
    model = {"mlp": mlp, "dqn": dqn, "mnist": mnist, "resnet32": Resnet32, "resnet50": Resnet50}[args.model]()
    model = model.train().to(args.device)
    x, labels = (torch.from_numpy(a).to(args.device) for a in step_timer.synthetic(args))
    labels = labels.long()
    if x.dim() == 4:
        x, model = images(x, model)
    if args.model == "resnet50":
        optimizer = torch.optim.SGD(
            model.parameters(), step_timer.LEARNING_RATE, step_timer.MOMENTUM, weight_decay=step_timer.WEIGHT_DECAY, fused=True
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), step_timer.LEARNING_RATE, fused=True)
    trained = distributed(model)
    def mean_over_batch():
        with mixed:
            logits = trained(x)
        return F.cross_entropy(logits.float(), labels)

    return steps(model, compiled(mean_over_batch), optimizer)


def only_on_cpu():
    if args.device != "cpu":
        raise SystemExit(f"{args.model} runs only on the CPU")


def transformer():
    model = Transformer().train().to(args.device)
    words, following = (torch.from_numpy(a).long().to(args.device) for a in step_timer.synthetic(args))
    optimizer = torch.optim.Adam(model.parameters(), step_timer.LEARNING_RATE, fused=True)

    def mean_over_tokens():
        with mixed:
            logits = model(words)
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten())

    return steps(model, compiled(mean_over_tokens), optimizer)


def ptb():
    only_on_cpu()
    model = Ptb().train()
    words, following = (torch.from_numpy(a).long() for a in step_timer.synthetic(args))
    optimizer = torch.optim.SGD(model.parameters(), 1.0, fused=True)

    def mean_over_batch_summed_over_time():
        with mixed:
            logits = model(words)
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten()) * step_timer.STEPS

    cost = compiled(mean_over_batch_summed_over_time)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = cost()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.item()

    return [model], step


def dcgan():
    only_on_cpu()
    (x,) = (torch.from_numpy(a) for a in step_timer.synthetic(args))
    x, generator, discriminator = images(x, dcgan_generator().train(), dcgan_discriminator().train())
    g_parameters, d_parameters = list(generator.parameters()), list(discriminator.parameters())
    optimizers = [
        torch.optim.Adam(parameters, 2e-4, (0.5, 0.999), fused=True) for parameters in (g_parameters, d_parameters)
    ]

    def both_costs():
        fake = generator(torch.randn(args.batch, 100, 1, 1))
        on_real, on_fake = discriminator(x), discriminator(fake)
        d_cost = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        return d_cost, F.softplus(-on_fake).mean()

    costs = compiled(both_costs)

    def step():
        d_cost, g_cost = costs()
        # Separate gradients of each player from one forward pass, both at the weights of the step's start.
        d_gradients = torch.autograd.grad(d_cost, d_parameters, retain_graph=True)
        g_gradients = torch.autograd.grad(g_cost, g_parameters)
        for parameters, gradients in ((d_parameters, d_gradients), (g_parameters, g_gradients)):
            for p, g in zip(parameters, gradients):
                p.grad = g
        for optimizer in optimizers:
            optimizer.step()
        return d_cost.item()

    return [generator, discriminator], step


models, step, *launch = {"ptb": ptb, "transformer": transformer, "dcgan": dcgan}.get(args.model, classifier)()
parameters = sum(p.numel() for model in models for p in model.parameters())
step_timer.measure(args, "torch", torch.__version__, parameters, step, *launch)
