#!/usr/bin/env python3
"""Golden values of COCO's average precision, computed by pycocotools; writes coco.json next to itself.

Run:    python tests/golden/make_coco.py            (needs `pip install numpy pycocotools`)
Check:  python tests/golden/make_coco.py --check    (recomputes and compares with the file)

Each case has `images` with `truths` [x1, y1, x2, y2, class, crowd, area] and `detections`
[x1, y1, x2, y2, class, score], `max_detections`, and the twelve `stats` of COCOeval.
"""

import contextlib
import io
import json
import pathlib
import sys

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

HERE = pathlib.Path(__file__).parent


def box(rng, side):
    """Corners are multiples of 1/4, so that corners and sizes are exact."""
    x, y = rng.integers(0, 400, 2) / 4
    w, h = np.exp(rng.uniform(np.log(side[0]), np.log(side[1]), 2)).round(2) // 0.25 * 0.25 + 1
    return [float(x), float(y), float(x + w), float(y + h)]


def scene(rng, classes, truths, extra, side, crowd):
    found, given = [], []
    for _ in range(int(rng.integers(0, truths + 1))):
        corners, kind = box(rng, side), int(rng.integers(classes))
        area = (corners[2] - corners[0]) * (corners[3] - corners[1])
        given.append([*corners, kind, int(rng.random() < crowd), float(area * rng.choice([1.0, 0.75]))])
        for _ in range(int(rng.integers(0, 3))):
            moved = [float(c + rng.integers(-8, 9) / 4) for c in corners]
            moved[2], moved[3] = max(moved[2], moved[0] + 0.25), max(moved[3], moved[1] + 0.25)
            label = kind if rng.random() < 0.8 else int(rng.integers(classes))
            # Some scores are equal.
            found.append([*moved, label, float(rng.integers(0, 40) / 40)])
    for _ in range(int(rng.integers(0, extra + 1))):
        found.append([*box(rng, side), int(rng.integers(classes)), float(rng.integers(0, 40) / 40)])
    rng.shuffle(found)
    return {"truths": given, "detections": [[*map(float, d[:4]), int(d[4]), float(d[5])] for d in found]}


def stats(images, classes, most):
    annotations, results = [], []
    for number, image in enumerate(images, 1):
        for x1, y1, x2, y2, kind, crowd, area in image["truths"]:
            annotations.append({"id": len(annotations) + 1, "image_id": number, "category_id": kind + 1,
                                "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": crowd, "area": area})
        for x1, y1, x2, y2, kind, score in image["detections"]:
            results.append({"image_id": number, "category_id": kind + 1, "bbox": [x1, y1, x2 - x1, y2 - y1],
                            "score": score})
    coco = COCO()
    coco.dataset = {"images": [{"id": i} for i in range(1, len(images) + 1)], "annotations": annotations,
                    "categories": [{"id": c + 1} for c in range(classes)], "info": {}}
    coco.createIndex()
    evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
    evaluation.params.maxDets = most
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    # `summarize` uses 100 for the first value whatever the limit is.
    if most[2] != 100:
        precision = evaluation.eval["precision"][:, :, :, 0, 2]
        evaluation.stats[0] = precision[precision > -1].mean()
    return [float(v) for v in evaluation.stats]


def cases():
    for seed, (count, classes, truths, extra, side, crowd, most) in enumerate((
            (6, 3, 6, 4, (4, 60), 0.0, [1, 10, 100]), (8, 2, 8, 6, (10, 150), 0.3, [1, 10, 100]),
            (5, 4, 5, 3, (20, 40), 0.15, [1, 10, 100]), (3, 1, 12, 40, (5, 120), 0.2, [1, 10, 100]),
            (6, 2, 6, 8, (8, 200), 0.2, [1, 2, 4]))):
        rng = np.random.default_rng(seed)
        images = [scene(rng, classes, truths, extra, side, crowd) for _ in range(count)]
        with contextlib.redirect_stdout(io.StringIO()):
            values = stats(images, classes, most)
        yield {"images": images, "max_detections": most, "stats": values}


def main():
    text = '{"cases": [\n' + ",\n".join(json.dumps(c) for c in cases()) + "\n]}\n"
    path = HERE / "coco.json"
    if "--check" not in sys.argv[1:]:
        path.write_text(text)
        print(f"coco.json: {len(text) / 1024:.0f} KB")
        return 0
    same = path.exists() and path.read_text() == text
    print(f"coco.json: {'identical' if same else 'DIFFERS'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
