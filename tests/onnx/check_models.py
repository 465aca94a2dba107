"""Checks every ONNX file of a folder with onnx.checker, and runs it with onnxruntime.

usage: check_models.py FOLDER

Beside MODEL.onnx lies MODEL.npz with its inputs as in:NAME and the expected outputs as out:NAME. Prints what differs;
the exit status is then 1. Needs onnx, onnxruntime and numpy.
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime

TOLERANCE = 1e-4


def difference(expected, found):
    """Returns what differs, or None."""
    if expected.shape != found.shape:
        return f"the shape is {found.shape}, not {expected.shape}"
    if expected.dtype != found.dtype:
        return f"the type is {found.dtype}, not {expected.dtype}"
    if expected.dtype.kind != "f":
        return None if np.array_equal(expected, found) else f"{found.ravel()[:8]}, not {expected.ravel()[:8]}"
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(found)):
        return "other elements are finite"
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True):
        return "infinities differ"
    if not finite.any():
        return None
    scale = max(np.abs(expected[finite]).max(), 1e-6)
    error = np.abs(expected[finite] - found[finite]).max() / scale
    return None if error <= TOLERANCE else f"the relative error is {error:.1e}"


def check(path):
    """Returns what is wrong with a file."""
    onnx.checker.check_model(str(path), full_check=True)
    values = np.load(path.with_suffix(".npz"))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = {i.name: values["in:" + i.name] for i in session.get_inputs()}
    for name, found in zip(names, session.run(names, feeds)):
        wrong = difference(values["out:" + name], found)
        if wrong:
            return f"{name}: {wrong}"
    return None


def main():
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*.onnx"))
    failures = 0
    for path in paths:
        try:
            wrong = check(path)
        except Exception as e:
            wrong = f"{type(e).__name__}: {str(e).strip()[:500]}"
        if wrong:
            failures += 1
            print(f"{path.name}: {wrong}")
    print(f"{len(paths)} models, {failures} failures")
    sys.exit(1 if failures or not paths else 0)


main()
