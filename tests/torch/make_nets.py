#!/usr/bin/env python3
"""Randomly initialised nets of PyTorch, torchvision, timm and transformers, and what they make of an input:
tests/torch_nets.rs builds the same nets, loads the weights and compares.

Run:  python tests/torch/make_nets.py FOLDER       (needs `pip install torch torchvision timm transformers`)
"""

import pathlib
import sys

import safetensors.torch
import timm
import torch
import torchvision
import transformers

FOLDER = pathlib.Path(sys.argv[1])
torch.manual_seed(7)


def save(name, net, *inputs, legacy=False, weights=None):
    # Running statistics that are not those of a new net.
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.1)
    net.eval()
    with torch.no_grad():
        y = net(*inputs)
    y = y[0] if isinstance(y, tuple) else y
    state = {"epoch": 3, "model": weights or net.state_dict()}
    torch.save(state, FOLDER / f"{name}.pth", _use_new_zipfile_serialization=not legacy)
    x = inputs[0]
    # Images here are [batch, height, width, channels]. A view of the same storage: the reader collects it.
    torch.save({"x": x.permute(0, 2, 3, 1) if x.dim() == 4 else x, "y": y}, FOLDER / f"{name}-values.pt")


class Flattened(torch.nn.Module):
    """The layers of a VGG, small: the classifier follows a flattened image."""

    def __init__(self):
        super().__init__()
        conv = [torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
        self.features = torch.nn.Sequential(*conv)
        self.classifier = torch.nn.Sequential(torch.nn.Linear(6 * 4 * 5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        torch.nn.init.normal_(self.attention.in_proj_bias)
        torch.nn.init.normal_(self.attention.out_proj.bias)

    def forward(self, x):
        x = self.norm(x)
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(5, 4, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


save("resnet18", torchvision.models.resnet18(), torch.randn(2, 3, 64, 64))
save("timm_resnet18", timm.create_model("resnet18"), torch.randn(2, 3, 64, 64))
save("resnet50", torchvision.models.resnet50(), torch.randn(2, 3, 64, 64))
save("resnext50_32x4d", torchvision.models.resnext50_32x4d(), torch.randn(2, 3, 64, 64))
save("timm_seresnet50", timm.create_model("seresnet50"), torch.randn(2, 3, 64, 64))
for depth in [18, 50]:
    net = timm.create_model(f"resnetv2_{depth}")
    # The last layer is a 1x1 convolution there.
    weights = {name: x.flatten(1) if name == "head.fc.weight" else x for name, x in net.state_dict().items()}
    save(f"timm_resnetv2_{depth}", net, torch.randn(2, 3, 64, 64), weights=weights)
save("shufflenet_v2_x1_0", torchvision.models.shufflenet_v2_x1_0(), torch.randn(2, 3, 64, 64))
# VGG-16 with an eighth of the channels.
stages = [[8, 8], [16, 16], [32, 32, 32], [64, 64, 64], [64, 64, 64]]
net = torchvision.models.VGG(torchvision.models.vgg.make_layers([x for stage in stages for x in [*stage, "M"]]))
net.classifier[0], net.classifier[3] = torch.nn.Linear(64 * 7 * 7, 512), torch.nn.Linear(512, 512)
net.classifier[6] = torch.nn.Linear(512, 1000)
save("vgg16", net, torch.randn(1, 3, 224, 224))
save("mobilenet_v2", torchvision.models.mobilenet_v2(), torch.randn(2, 3, 64, 64))
save("efficientnet_b0", torchvision.models.efficientnet_b0(), torch.randn(2, 3, 64, 64))
save("flattened", Flattened(), torch.randn(2, 3, 8, 10), legacy=True)
save("attention", Attention(), torch.randn(2, 6, 8))
save("lstm", Recurrent(torch.nn.LSTM), torch.randn(2, 6, 5), legacy=True)
save("gru", Recurrent(torch.nn.GRU), torch.randn(2, 6, 5))

VISION = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
net = timm.models.vision_transformer.VisionTransformer(**VISION)
for name, parameter in net.named_parameters():
    torch.nn.init.normal_(parameter, std=0.5)
save("timm_vit", net, torch.randn(2, 3, 32, 32))


class Bert(torch.nn.Module):
    """Takes ids as floats and returns the hidden states."""

    def __init__(self):
        super().__init__()
        sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.BertConfig(**sizes, intermediate_size=16, max_position_embeddings=6)
        self.bert = transformers.BertModel(config)
        for name, parameter in self.bert.named_parameters():
            torch.nn.init.normal_(parameter, std=0.5)

    def forward(self, x):
        return self.bert(x.long()).last_hidden_state


save("hf_bert", Bert(), torch.randint(0, 20, (2, 6)).float())


class Gpt2(torch.nn.Module):
    """Takes ids as floats and returns the hidden states."""

    def __init__(self):
        super().__init__()
        config = transformers.GPT2Config(vocab_size=20, n_positions=7, n_embd=8, n_layer=2, n_head=2)
        self.transformer = transformers.GPT2Model(config)
        # As in files of GPT2LMHeadModel, which ties it to the embedding.
        self.lm_head = torch.nn.Linear(8, 20, bias=False)
        for name, parameter in self.transformer.named_parameters():
            torch.nn.init.normal_(parameter, std=0.5)

    def forward(self, x):
        return self.transformer(x.long()).last_hidden_state


save("hf_gpt2", Gpt2(), torch.randint(0, 20, (2, 6)).float())


class Vit(torch.nn.Module):
    """Returns the logits."""

    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=5)
        self.net = transformers.ViTForImageClassification(config)
        for name, parameter in self.net.named_parameters():
            torch.nn.init.normal_(parameter, std=0.5)

    def forward(self, x):
        return self.net(x).logits


vit = Vit()
# The names in files are not those of the modules.
vit.net.save_pretrained(FOLDER / "vit")
weights = safetensors.torch.load_file(FOLDER / "vit" / "model.safetensors")
save("hf_vit", vit, torch.randn(2, 3, 16, 16), weights=weights)
