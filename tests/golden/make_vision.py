#!/usr/bin/env python3
"""Golden values of the vision operations, computed by PyTorch and torchvision in float64; writes vision.json next to
itself.

Run:    python tests/golden/make_vision.py            (needs `pip install torch torchvision`)
Check:  python tests/golden/make_vision.py --check    (recomputes, compares with the file, and compares every
                                                       gradient with finite differences)

README.md beside this file describes the format, which is that of ops.json.
"""

import sys

import torch
import torch.nn.functional as F
import torchvision
from torchvision.models.detection._utils import BoxCoder

import make_golden
from make_golden import F64, HERE, Source, document, make_ops


def nchw(x):
    return x.permute(0, 3, 1, 2)


def nhwc(x):
    return x.permute(0, 2, 3, 1)


def resize_bilinear_aligned(attrs, x):
    return nhwc(F.interpolate(nchw(x), attrs["size"], mode="bilinear", align_corners=True))


def grid_sample(attrs, x, grid):
    padding = "border" if attrs["border_padding"] else "zeros"
    return nhwc(F.grid_sample(nchw(x), grid, "bilinear", padding, attrs["align_corners"]))


def roi_align(attrs, x, index):
    """Boxes are attributes, because torchvision gives them no gradient."""
    rois = torch.cat([index[:, None].to(F64), torch.tensor(attrs["boxes"], dtype=F64)], 1)
    return nhwc(torchvision.ops.roi_align(
        nchw(x), rois, attrs["size"], attrs["spatial_scale"], attrs["sampling_ratio"], aligned=True))


def crop_and_resize(attrs, x, boxes, index):
    """Boxes as grids: a box with corners -1 and 1 is the whole image."""
    height, width = x.shape[1:3]
    crops = []
    for (x1, y1, x2, y2), i in zip(boxes, index):
        def axis(low, high, count, n):
            at = low + (high - low) * (torch.arange(count, dtype=F64) + 0.5) / count
            return at * 2.0 / n - 1.0

        rows, columns = axis(y1, y2, attrs["size"][0], height), axis(x1, x2, attrs["size"][1], width)
        y, x_ = torch.meshgrid(rows, columns, indexing="ij")
        crops.append(F.grid_sample(nchw(x[i : i + 1]), torch.stack([x_, y], -1)[None], align_corners=False))
    return nhwc(torch.cat(crops))


def ncdhw(x):
    return x.permute(0, 4, 1, 2, 3)


def ndhwc(x):
    return x.permute(0, 2, 3, 4, 1)


def conv3d(attrs, x, w):
    """Pads are before and after depth, height and width."""
    around = [n for pair in reversed(attrs["pads"]) for n in pair]
    y = F.conv3d(F.pad(ncdhw(x), around), w.permute(4, 3, 0, 1, 2), None, attrs["stride"], 0, attrs["dilation"],
                 attrs["groups"])
    return ndhwc(y)


def max_pool3d(attrs, x):
    return ndhwc(F.max_pool3d(ncdhw(x), attrs["window"], attrs["stride"], attrs["pad"]))


def average_pool3d(attrs, x):
    return ndhwc(F.avg_pool3d(ncdhw(x), attrs["window"], attrs["stride"], attrs["pad"], count_include_pad=False))


def nms(attrs, boxes):
    """The boxes that are kept, then zeros. Scores and classes are attributes, because they have no gradient."""
    scores = torch.tensor(attrs["scores"], dtype=F64)
    if "classes" in attrs:
        # Each class by itself, without the offsets that keep classes apart only up to rounding.
        classes = torch.tensor(attrs["classes"])
        kept = torchvision.ops.boxes._batched_nms_vanilla(boxes.detach(), scores, classes, attrs["iou_threshold"])
        # The documented order of equal scores: the first comes first.
        kept = kept[torch.sort(kept)[1]]
        kept = kept[torch.sort(scores[kept], descending=True, stable=True)[1]]
    else:
        kept = torchvision.ops.nms(boxes.detach(), scores, attrs["iou_threshold"])
    kept = kept[: attrs["max_outputs"]]
    zeros = torch.zeros(attrs["max_outputs"] - len(kept), 4, dtype=F64)
    return torch.cat([boxes[kept], zeros])


OPS = {
    "conv3d": conv3d,
    "max_pool3d": max_pool3d,
    "average_pool3d": average_pool3d,
    "nms": nms,
    "resize_bilinear_aligned": resize_bilinear_aligned,
    "grid_sample": grid_sample,
    "roi_align": roi_align,
    "crop_and_resize": crop_and_resize,
    "box_iou": lambda _, a, b: torchvision.ops.box_iou(a, b),
    "clip_boxes": lambda at, x: torchvision.ops.clip_boxes_to_image(x, at["size"]),
    "encode_boxes": lambda at, x, anchors: BoxCoder(at["weights"]).encode_single(x, anchors),
    "decode_boxes": lambda at, x, anchors: BoxCoder(at["weights"]).decode_single(x, anchors),
}


def boxes(s, n, low=-1.0, high=6.0):
    corner = s.uniform(n, 2, low=low, high=high)
    return torch.cat([corner, corner + s.uniform(n, 2, low=0.5, high=5.0)], 1)


def cases():
    """Yields (name, op, attrs, inputs)."""

    def case(tag, op, inputs, **attrs):
        name = f"{op}_{tag}"
        return name, op, attrs, inputs(Source(name))

    for tag, size in (("up", [6, 8]), ("down", [2, 3]), ("odd", [7, 5]), ("same", [3, 4]), ("one", [1, 1])):
        yield case(tag, "resize_bilinear_aligned", lambda s: [s.normal(1, 3, 4, 2)], size=size)
    for align in (False, True):
        for border in (False, True):
            tag = ("aligned" if align else "areas") + ("_border" if border else "_zeros")
            yield case(tag, "grid_sample",
                       lambda s: [s.normal(2, 4, 5, 2), s.uniform(2, 3, 4, 2, low=-1.6, high=1.6)],
                       align_corners=align, border_padding=border)
    for tag, size, ratio, scale in (("plain", [2, 3], 2, 1.0), ("scaled", [3, 2], 2, 0.5), ("one", [2, 2], 1, 0.7),
                                    ("three", [1, 2], 3, 1.0)):
        given = boxes(Source("boxes_" + tag), 5).round(decimals=4).tolist()
        # Far outside, empty, and inverted.
        given += [[-30.0, -30.0, -20.0, -20.0], [2.0, 2.0, 2.0, 2.0], [4.0, 4.0, 2.5, 1.0]]
        yield case(tag, "roi_align", lambda s: [s.normal(2, 6, 7, 2), s.labels(8, 2)],
                   boxes=given, size=size, sampling_ratio=ratio, spatial_scale=scale)
    for tag, size in (("up", [5, 4]), ("down", [2, 2]), ("one", [1, 1])):
        yield case(tag, "crop_and_resize", lambda s: [s.normal(2, 5, 6, 2), boxes(s, 4), s.labels(4, 2)], size=size)
    yield case("pairs", "box_iou", lambda s: [boxes(s, 4), boxes(s, 6)])
    yield case("inside", "clip_boxes", lambda s: [boxes(s, 6)], size=[5, 6])
    for tag, weights in (("ones", [1.0, 1.0, 1.0, 1.0]), ("head", [10.0, 10.0, 5.0, 5.0])):
        yield case(tag, "encode_boxes", lambda s: [boxes(s, 5), boxes(s, 5)], weights=weights)
        yield case(tag, "decode_boxes", lambda s: [s.normal(5, 4, scale=3.0), boxes(s, 5)], weights=weights)
    for tag, kernel, groups, attrs in (
            ("plain", (2, 3, 2), 1, {}), ("strided", (3, 2, 3), 1, {"stride": [2, 1, 2]}),
            ("dilated", (2, 2, 2), 1, {"dilation": [2, 1, 2]}), ("padded", (3, 3, 3), 1, {"pads": [[1, 1], [0, 2], [1, 0]]}),
            ("grouped", (2, 2, 1), 2, {"stride": [1, 2, 1], "pads": [[1, 0], [0, 0], [0, 0]]}),
            ("depthwise", (2, 2, 2), 4, {})):
        attrs = {"stride": [1, 1, 1], "dilation": [1, 1, 1], "pads": [[0, 0]] * 3, "groups": groups, **attrs}
        yield case(tag, "conv3d", lambda s: [s.normal(2, 4, 4, 3, 4), s.normal(*kernel, 4 // groups, 4)], **attrs)
    for op in ("max_pool3d", "average_pool3d"):
        for tag, window, stride, pad in (("plain", [2, 2, 2], [2, 2, 2], [0, 0, 0]),
                                         ("overlapping", [3, 2, 3], [1, 2, 1], [1, 1, 0])):
            yield case(tag, op, lambda s: [s.distinct(2, 4, 5, 4, 2)], window=window, stride=stride, pad=pad)
    for tag, count, threshold, outputs in (("few", 12, 0.5, 20), ("many", 60, 0.3, 40), ("cut", 60, 0.7, 10)):
        for classes in (1, 3):
            source = Source(f"nms_scores_{tag}_{classes}")
            # Equal scores too.
            attrs = {"scores": (source.uniform(count, low=0.0, high=1.0) * 16).round().div(16).tolist()}
            if classes > 1:
                attrs["classes"] = source.labels(count, classes).tolist()
            yield case(f"{tag}_{classes}", "nms", lambda s: [boxes(s, count)], iou_threshold=threshold,
                       max_outputs=outputs, **attrs)


def main():
    check = "--check" in sys.argv[1:]
    torch.set_num_threads(1)
    make_golden.OPS.update(OPS)
    text, path = document("cases", make_ops(check, cases())), HERE / "vision.json"
    if not check:
        path.write_text(text)
        print(f"vision.json: {len(text) / 1024:.0f} KB")
        return 0
    same = path.exists() and path.read_text() == text
    print(f"vision.json: {'identical' if same else 'DIFFERS'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
