"""Shared code of the peers' prediction benchmarks: arguments, examples, timing and the JSON line.

Import it before the framework: it also holds the process to `--threads` processors.
"""

import argparse
import json
import os
import statistics
import time

from step_timer import peak_rss_mb, since_process_start

WARM_UP = 5
TOKENS, WIDTH, LAYERS, HEADS = 256, 384, 6, 6  # of the transformer
# Images are height, width, channels.
INPUT_SHAPE = {"resnet50": (224, 224, 3), "mobilenet_v2": (224, 224, 3), "transformer": (TOKENS, WIDTH)}


def arguments(description, forms):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--net", choices=list(INPUT_SHAPE), default="resnet50")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="timed predictions, after the warm-up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--form", choices=forms, default=forms[0])
    parser.add_argument("--model", help="the ONNX file that `bench -- predict --onnx` wrote (onnxruntime only)")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    args = parser.parse_args()
    if args.batch < 1 or args.steps < 1 or args.threads < 1:
        parser.error("--batch, --steps and --threads are at least 1")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    return args


def examples(args):
    """Returns normal f32 numbers; images are NHWC."""
    import numpy

    return numpy.random.default_rng(0).standard_normal((args.batch, *INPUT_SHAPE[args.net]), dtype=numpy.float32)


def measure(args, version, predict):
    """Times `predict()`, which returns when its output can be read."""
    predict()
    first = since_process_start()
    for _ in range(WARM_UP - 1):
        predict()
    times, cpu = [], time.process_time()
    for _ in range(args.steps):
        began = time.perf_counter()
        predict()
        times.append((time.perf_counter() - began) * 1e3)
    cpu = (time.process_time() - cpu) * 1e3 / args.steps
    result = {
        "net": args.net,
        "batch": args.batch,
        "form": args.form,
        "ms_per_step": statistics.median(times),
        "ms_mean": statistics.fmean(times),
        "ms_best": min(times),
        "cpu_ms": cpu,
        "first_step_s": first,
        "peak_rss_mb": peak_rss_mb(),
        "version": version,
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{args.net}, batch {args.batch}, {args.form}: {result['ms_per_step']:.3f} ms (best {result['ms_best']:.3f}), {cpu:.3f} ms of processor time")
