#!/usr/bin/env python3
"""Golden values of RandAugment, computed by torchvision on Pillow images.

Run:  python make_rand_augment.py    (needs `pip install torchvision pillow numpy`; writes rand_augment.json beside itself)

Every operation at two magnitudes, with both signs where it has one.
"""

import json
import pathlib

import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode, RandAugment
from torchvision.transforms.autoaugment import _apply_op

HERE = pathlib.Path(__file__).resolve().parent
HEIGHT, WIDTH = 14, 19


def image():
    """A color image with smooth parts and an edge."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype("float64")
    r = 127 + 100 * np.sin(x / 5.0) * np.cos(y / 4.0)
    g = 20 + 200 * (x + y) / (HEIGHT + WIDTH - 2)
    b = np.where(x * 2 > WIDTH + y * 0.3, 210, 40) + 10 * np.sin(y / 3)
    return np.clip(np.stack([r, g, b], -1), 0, 255).astype("uint8")


def main():
    picture = image()
    space = RandAugment()._augmentation_space(31, (HEIGHT, WIDTH))
    cases = []
    for name, (magnitudes, signed) in space.items():
        for bin in (9, 24):
            magnitude = float(magnitudes[bin].item()) if magnitudes.ndim > 0 else 0.0
            for sign in (1, -1) if signed else (1,):
                changed = _apply_op(Image.fromarray(picture), name, sign * magnitude, InterpolationMode.NEAREST, None)
                values = np.asarray(changed).reshape(-1).tolist()
                cases.append({"op": name, "bin": bin, "magnitude": sign * magnitude, "signed": signed, "values": values})
    golden = {"height": HEIGHT, "width": WIDTH, "image": picture.reshape(-1).tolist(), "cases": cases}
    (HERE / "rand_augment.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


main()
