"""Exports randomly initialised nets of torchvision and transformers to ONNX, with inputs and outputs.

usage: export_torch.py FOLDER

FOLDER gets NAME.onnx, NAME.npz, with the inputs as in:NAME and PyTorch's outputs as out:NAME, and NAME.path, a file that
contains the path of the model. Needs torch, torchvision, transformers and onnx.
"""
import pathlib
import sys
import warnings

import numpy as np
import torch
import torchvision
import transformers

warnings.filterwarnings("ignore")
torch.manual_seed(0)
folder = pathlib.Path(sys.argv[1])
image = torch.randn(2, 3, 64, 64)
words = torch.randint(0, 100, (2, 7))


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True)
        self.gru = torch.nn.GRU(8, 3, batch_first=True)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])[0]


class First(torch.nn.Module):
    """A net that returns a dictionary or a tuple, reduced to its first output."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, *inputs):
        outputs = self.net(*inputs)
        return outputs[0] if isinstance(outputs, tuple) else next(iter(outputs.values()))


def warm(net):
    """Replaces running statistics of 0 and 1, and weights of 0, which would hide differences."""
    for parameter in net.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return net.eval()


def transformer(kind, **settings):
    config = getattr(transformers, kind + "Config")(vocab_size=100, **settings)
    config._attn_implementation = "eager"
    config.return_dict = False
    return First(getattr(transformers, kind + "Model")(config))


def nets():
    vision = torchvision.models
    for name in [
        "resnet18",
        "mobilenet_v2",
        "mobilenet_v3_small",
        "efficientnet_b0",
        "squeezenet1_1",
        "densenet121",
        "shufflenet_v2_x0_5",
        "regnet_x_400mf",
        "mnasnet0_5",
        "convnext_tiny",
        "swin_t",
    ]:
        yield name, getattr(vision, name)(weights=None), image
    yield "googlenet", vision.googlenet(weights=None, init_weights=False, aux_logits=False), image
    yield "vit_b_16", vision.vit_b_16(weights=None, image_size=64), image
    segmentation = vision.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)
    yield "lraspp", First(segmentation), image
    small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    yield "bert", transformer("Bert", **small), words
    yield "electra", transformer("Electra", embedding_size=16, **small), words
    yield "distilbert", transformer("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=64), words
    yield "recurrent", Recurrent(), torch.randn(2, 6, 5)


def main():
    for name, net, x in nets():
        net = warm(net)
        path = folder / (name + ".onnx")
        with torch.no_grad():
            y = net(x)
        options = dict(input_names=["x"], output_names=["y"], opset_version=17, dynamo=False)
        torch.onnx.export(net, (x,), str(path), **options)
        np.savez(folder / (name + ".npz"), **{"in:x": x.numpy(), "out:y": y.numpy()})
        (folder / (name + ".path")).write_text(str(path))


main()
