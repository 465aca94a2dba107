"""Shared code of the peers' data benchmarks: arguments, the list of JPEG files, timing and the JSON line.

Import it before the library: it also pins the process to `--threads` processors, as the step benchmarks do.
"""

import argparse
import json
import os
import pathlib
import sys
import time

from step_timer import peak_rss_mb, since_process_start

WARM_UP = 5  # batches, the first included
SIDE = 224
AREA = (0.08, 1.0)
STRENGTH = 0.4  # jitter of brightness, contrast and saturation


def arguments(description, forms):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--jpegs", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="timed batches, after the warm-up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--form", choices=forms, default=forms[0])
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    return args


def photographs(args):
    files = sorted(str(f) for f in args.jpegs.iterdir() if f.suffix.lower() in (".jpeg", ".jpg"))
    if not files:
        sys.exit(f"--jpegs {args.jpegs}: the directory has no .jpg or .jpeg file")
    return files


def measure(args, peer, version, next_batch):
    """Takes batches from `next_batch`, which returns an array [batch, ..] of bytes, and prints the result.

    The result is the mean over all batches: workers deliver in bursts, so the median of single times is meaningless.
    """
    shape = tuple(next_batch().shape)
    first = since_process_start()
    assert shape[0] == args.batch and sorted(shape[1:]) == [3, SIDE, SIDE], shape
    for _ in range(WARM_UP - 1):
        next_batch()
    start = time.perf_counter()
    for _ in range(args.steps):
        next_batch()
    seconds = time.perf_counter() - start
    result = {
        "peer": peer,
        "form": args.form,
        "model": "dataflow",
        "batch": args.batch,
        "ms_per_step": round(seconds / args.steps * 1e3, 4),
        "examples_per_s": round(args.batch * args.steps / seconds, 1),
        "first_step_s": round(first, 3),
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "workers": args.workers,
        "steps": args.steps,
        "version": version,
    }
    if args.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:16}{value}")
    sys.stdout.flush()
