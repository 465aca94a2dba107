#!/usr/bin/env python3
"""Golden values for the image tests, computed by OpenCV, NumPy and Tensorpack's augmentors.

Run:  python make_golden.py    (needs `pip install tensorpack==0.11 opencv-python-headless`; writes augmentors.json
                                beside itself, and the files of ../images)

Augmentors get fixed parameters and float32 images, so that nothing is truncated on the way. Images are rounded to
four decimals. For every JPEG file, the PNG file of the same name holds the image that OpenCV decodes.
"""

import json
import pathlib

import cv2
import numpy as np
from tensorpack.dataflow import imgaug
from tensorpack.dataflow.imgaug.transform import CropTransform, FlipTransform, ResizeTransform, WarpAffineTransform

HERE = pathlib.Path(__file__).resolve().parent
IMAGES = HERE.parent / "images"


def smooth(h, w):
    """A smooth color image with an edge."""
    y, x = np.mgrid[:h, :w].astype("float64")
    r = 127 + 120 * np.sin(x / 7.0) * np.cos(y / 9.0)
    g = 255 * (x + y) / max(1, h + w - 2)
    b = np.where(x * 2 > w + y * 0.3, 200, 40) + 10 * np.sin(y / 3)
    return np.clip(np.stack([r, g, b], -1), 0, 255).astype("uint8")


def packed(array):
    array = np.asarray(array)
    values = [round(float(v), 4) for v in array.reshape(-1)]
    return {"shape": list(array.shape), "values": [int(v) if v == int(v) else v for v in values]}


def photometric(image):
    """Return a dict from name to the original's output for `image` with fixed parameters."""
    p = lambda augmentor, prm: augmentor._augment(image.copy(), prm)
    values, vectors = np.array([0.2175, 0.0188, 0.0045]) * 255, [
        [-0.5675, 0.7192, 0.4009],
        [-0.5808, -0.0045, -0.8140],
        [-0.5836, -0.6948, 0.4203],
    ]
    return {
        "brightness": p(imgaug.Brightness(50), -33.5),
        "brightness_scale": p(imgaug.BrightnessScale((0.5, 1.5)), 1.3),
        "contrast": p(imgaug.Contrast((0.5, 1.5)), 0.7),
        "contrast_of_grey": p(imgaug.Contrast((0.5, 1.5), rgb=True), 1.4),
        "saturation": p(imgaug.Saturation(0.4), 0.65),
        "saturation_up": p(imgaug.Saturation(0.4), 1.35),
        "hue": p(imgaug.Hue((0, 180)), 35.0),
        "lighting": p(imgaug.Lighting(1.0, values, vectors), np.array([0.5, -1.5, 0.8], "float32")),
        "gamma": p(imgaug.Gamma(), 0.3),
        "clip": p(imgaug.Clip(30, 200), None),
        "mean_variance": p(imgaug.MeanVarianceNormalize(), None),
        "mean_variance_by_channel": p(imgaug.MeanVarianceNormalize(all_channel=False), None),
        "min_max": p(imgaug.MinMaxNormalize(-1, 1), None),
        "min_max_by_channel": p(imgaug.MinMaxNormalize(0, 1, all_channel=False), None),
        "blur_5": p(imgaug.GaussianBlur(), ((5, 5), (0, 0))),
        "blur_9": p(imgaug.GaussianBlur(), ((9, 9), (0, 0))),
        "blur_11": p(imgaug.GaussianBlur(), ((11, 11), (0, 0))),
        "blur_sigma": p(imgaug.GaussianBlur(), ((7, 7), (1.2, 1.2))),
        "grayscale": cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None],
    }


def geometric(image, points):
    h, w = image.shape[:2]
    both = lambda t: {"image": packed(t.apply_image(image)), "coords": packed(t.apply_coords(points.copy()))}
    center = (w * 0.5 - 0.5, h * 0.5 - 0.5)
    matrix = cv2.getRotationMatrix2D(center, 25.0, 1)

    def turned(border):
        t = WarpAffineTransform(matrix, (w, h), cv2.INTER_LINEAR, border, (60, 60, 60))
        # Points are relative to the corner of the first pixel, the matrix to its center.
        return {"image": packed(t.apply_image(image)), "coords": packed(t.apply_coords(points - 0.5) + 0.5)}

    return {
        "flip_horizontal": both(FlipTransform(h, w, True)),
        "flip_vertical": both(FlipTransform(h, w, False)),
        "crop": both(CropTransform(2, 1, 4, 5)),
        "resize": both(ResizeTransform(h, w, 13, 17, cv2.INTER_LINEAR)),
        "rotation": turned(cv2.BORDER_REPLICATE),
        "rotation_constant": turned(cv2.BORDER_CONSTANT),
    }


def affine_matrix():
    """Return the matrix of Affine for scale 1.1, 20 degrees, 12 degrees of shear and a shift of (2, -3) on 9x7."""
    augmentor = imgaug.Affine(scale=(1.1, 1.1), translate_frac=(0.5, 0.5), rotate_max_deg=20, shear=12)
    draws = iter([1.1, 2.0, -3.0, 12.0, 20.0])
    augmentor._rand_range = lambda *_: next(draws)
    return augmentor.get_transform(np.zeros((7, 9, 3), "uint8")).mat


def resizes(image):
    methods = {
        "Linear": cv2.INTER_LINEAR,
        "Cubic": cv2.INTER_CUBIC,
        "Lanczos": cv2.INTER_LANCZOS4,
        "Nearest": cv2.INTER_NEAREST_EXACT,
    }
    cases = []
    for name, method in methods.items():
        # No center of a new pixel may lie on an edge between two pixels, where both are nearest.
        for h, w in [(32, 40), (16, 32)] if name == "Nearest" else [(31, 33), (11, 13)]:
            cases.append({"method": name, "out": packed(cv2.resize(image, (w, h), interpolation=method))})
    cases.append({"method": "Area", "out": packed(cv2.resize(image, (12, 10), interpolation=cv2.INTER_AREA))})
    return cases


def sizes():
    cases = []
    for h, w, size in [(375, 500, 256), (500, 375, 256), (333, 500, 224), (7, 9, 5), (500, 500, 256), (301, 400, 160)]:
        t = imgaug.ResizeShortestEdge(size).get_transform(np.zeros((h, w, 3), "uint8"))
        cases.append([h, w, size, t.new_h, t.new_w])
    return cases


def inside():
    cases = []
    for w, h, angle in [(100, 60, 10), (60, 100, 30), (100, 100, 45), (500, 375, -77), (40, 90, 0)]:
        cases.append([w, h, angle, *imgaug.RotationAndCropValid.largest_rotated_rect(w, h, angle)])
    return cases


def jpegs():
    IMAGES.mkdir(exist_ok=True)
    samplings = {
        "444": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
        "422": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
        "420": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
        "440": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
        "411": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
    }
    files = {}

    def opencv(name, picture, *options):
        files[name] = cv2.imencode(".jpg", picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 85, *options])[1].tobytes()

    for name, sampling in samplings.items():
        opencv(f"{name}_29x43", smooth(29, 43), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling)
    factor = cv2.IMWRITE_JPEG_SAMPLING_FACTOR
    opencv("420_restart_40x35", smooth(40, 35), cv2.IMWRITE_JPEG_RST_INTERVAL, 2, factor, samplings["420"])
    opencv("444_restart_optimised_33x20", smooth(33, 20), cv2.IMWRITE_JPEG_RST_INTERVAL, 3, cv2.IMWRITE_JPEG_OPTIMIZE, 1)
    opencv("progressive_25x31", smooth(25, 31), cv2.IMWRITE_JPEG_PROGRESSIVE, 1, factor, samplings["420"])
    opencv("420_1x1", smooth(1, 1), factor, samplings["420"])
    opencv("422_3x2", smooth(3, 2), factor, samplings["422"])
    opencv("420_16x16", smooth(16, 16), factor, samplings["420"])
    opencv("420_17x9", smooth(17, 9), factor, samplings["420"])
    files["grey_21x30"] = cv2.imencode(".jpg", smooth(21, 30)[:, :, 1])[1].tobytes()
    for orientation in (3, 6):
        opencv("upright", smooth(18, 26), factor, samplings["444"])
        upright = files.pop("upright")
        exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0%c\0\0\0\0\0\0" % orientation
        segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
        files[f"orientation{orientation}_18x26"] = upright[:2] + segment + upright[2:]
    for name, data in files.items():
        (IMAGES / f"{name}.jpg").write_bytes(data)
        decoded = cv2.imdecode(np.frombuffer(data, "uint8"), cv2.IMREAD_COLOR)
        cv2.imwrite(str(IMAGES / f"{name}.png"), decoded, [cv2.IMWRITE_PNG_COMPRESSION, 9])
    # Other kinds of PNG files: grayscale, with alpha, 16 bits.
    small = smooth(9, 7)
    cv2.imwrite(str(IMAGES / "png_grey.png"), small[:, :, 0])
    cv2.imwrite(str(IMAGES / "png_alpha.png"), np.dstack([small[:, :, ::-1], small[:, :, :1]]))
    cv2.imwrite(str(IMAGES / "png_16.png"), small[:, :, ::-1].astype("uint16") * 257)


def main():
    image = smooth(7, 9).astype("float32")
    points = np.array([[0.5, 0.5], [3.0, 2.25], [8.5, 6.5], [4.5, 3.5]], "float64")
    larger = smooth(20, 24)
    golden = {
        "image": packed(image),
        "photometric": {name: packed(out) for name, out in photometric(image).items()},
        "points": packed(points),
        "geometric": geometric(image, points),
        "affine": packed(affine_matrix()),
        "larger": packed(larger),
        "resize": resizes(larger),
        "shortest_edge": sizes(),
        "largest_inside": inside(),
    }
    (HERE / "augmentors.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    jpegs()


if __name__ == "__main__":
    main()
