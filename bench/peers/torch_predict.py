"""Measures predictions in PyTorch, in f32, without gradients; the images are in the layout that the form names."""

import predict_timer

args = predict_timer.arguments(__doc__, ["eager", "eager-channels-last"])

import torch
import torchvision

torch.set_num_threads(args.threads)
torch.manual_seed(0)


def build():
    if args.net == "transformer":
        layer = torch.nn.TransformerEncoderLayer(
            predict_timer.WIDTH,
            predict_timer.HEADS,
            4 * predict_timer.WIDTH,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        return torch.nn.TransformerEncoder(layer, predict_timer.LAYERS, enable_nested_tensor=False)
    return getattr(torchvision.models, args.net)(weights=None)


net, x = build().eval(), torch.from_numpy(predict_timer.examples(args))
if args.net != "transformer":
    x = x.permute(0, 3, 1, 2).contiguous()
    if args.form == "eager-channels-last":
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
with torch.inference_mode():
    predict_timer.measure(args, torch.__version__, lambda: net(x))
