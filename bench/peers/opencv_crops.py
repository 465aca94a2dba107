"""Compares our image crops with OpenCV's.

    bench dataflow --jpegs DIR --crops OUT
    python opencv_crops.py OUT

Reads the output of `bench`, decodes, crops and resizes the same regions with OpenCV (INTER_LINEAR), and prints the mean
absolute difference in levels of 0 to 255: of all crops, of those decoded at reduced scale, and of the others.
"""

import pathlib
import sys

import cv2
import numpy

SIDE = 224


def main():
    folder = pathlib.Path(sys.argv[1])
    pixels = numpy.fromfile(folder / "crops.rgb", dtype=numpy.uint8).reshape(-1, SIDE, SIDE, 3)
    differences = {"whole": [], "fraction": []}
    for ours, line in zip(pixels, (folder / "crops.tsv").read_text().splitlines()):
        file, *numbers = line.split("\t")
        x, y, w, h = map(int, numbers)
        image = cv2.imread(file, cv2.IMREAD_COLOR)[y : y + h, x : x + w, ::-1]
        theirs = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        mean = numpy.abs(ours.astype(int) - theirs.astype(int)).mean()
        differences["fraction" if min(w, h) >= 2 * SIDE else "whole"].append(mean)
    for name, means in [("all", sum(differences.values(), [])), *differences.items()]:
        if means:
            print(f"{name}: {len(means)} crops, mean {numpy.mean(means):.3f}, largest mean of a crop {max(means):.3f}")


if __name__ == "__main__":
    main()
