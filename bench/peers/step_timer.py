"""Shared code of the peers' step benchmarks: arguments, synthetic data, timing and the JSON line.

Import it before the framework: it also holds the process to `--threads` processors, which is the only
limit that every framework honors.
"""

import argparse
import json
import os
import statistics
import sys
import time

IMPORTED_AT = time.monotonic()
WARM_UP = 5  # the first step included
CLASSES = 10
IMAGENET_CLASSES = 1000  # of resnet50
LEARNING_RATE = 1e-3
MOMENTUM = 0.9  # of resnet50, like the weight decay
WEIGHT_DECAY = 1e-4
BN_MOMENTUM = 0.9
BN_EPSILON = 1e-5
WORDS = 10_000  # of ptb
STEPS = 35  # of ptb
TOKENS, WIDTH, LAYERS, HEADS, BYTES = 256, 384, 6, 6, 256  # of the transformer
# Images are height, width, channels.
INPUT_SHAPE = {
    "mlp": (784,),
    "dqn": (8,),
    "mnist": (28, 28, 1),
    "resnet32": (32, 32, 3),
    "resnet50": (224, 224, 3),
    "ptb": (STEPS,),
    "transformer": (TOKENS,),
    "dcgan": (32, 32, 3),
}


def arguments(description, forms):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=list(INPUT_SHAPE), default="mnist")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20, help="timed steps, after the warm-up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--form", choices=forms, default=forms[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="dtype of activations and products")
    parser.add_argument("--pipelined", action="store_true", help="start each step without waiting for the one before")
    parser.add_argument("--scan", type=int, default=1, metavar="K", help="K steps in one launch (JAX only)")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    args = parser.parse_args()
    if args.batch < 1 or args.steps < 1 or args.threads < 1 or args.scan < 1:
        parser.error("--batch, --steps, --threads and --scan are at least 1")
    if args.dtype == "bf16" and args.model in ("dqn", "dcgan"):
        parser.error(f"{args.model} is not measured in bf16")
    # Processes of a distributed run share all cores with the threads that communicate.
    if "WORLD_SIZE" not in os.environ:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    return args


def synthetic(args):
    """Returns the inputs of a model as NumPy arrays: normal f32 NHWC (or flat) images and i32 labels; for ptb and
    the transformer words and the next words; for dcgan only images."""
    import numpy

    rng = numpy.random.default_rng(0)
    if args.model in ("ptb", "transformer"):
        words = WORDS if args.model == "ptb" else BYTES
        size = (args.batch, *INPUT_SHAPE[args.model])
        return tuple(rng.integers(0, words, size, dtype=numpy.int32) for _ in range(2))
    x = rng.standard_normal((args.batch, *INPUT_SHAPE[args.model]), dtype=numpy.float32)
    if args.model == "dcgan":
        return (x,)
    classes = IMAGENET_CLASSES if args.model == "resnet50" else CLASSES
    return x, rng.integers(0, classes, args.batch, dtype=numpy.int32)


def since_process_start():
    """Returns the seconds since this process started, including the start of the interpreter."""
    try:
        with open("/proc/self/stat") as f:
            ticks = int(f.read().rsplit(")", 1)[1].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic() - IMPORTED_AT


def peak_rss_mb():
    """Returns the peak resident memory of this process, in MiB."""
    try:
        with open("/proc/self/status") as f:
            kib = next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource

        kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib / 1024


PIPELINED_ROUNDS = 5  # parts of a pipelined measurement, each of which ends with a wait


def measure(args, peer, version, parameters, step, launch=None):
    """Runs `step`, which trains one step and returns the loss as a float, and prints the result.

    With `--pipelined`, calls `launch` instead, which starts `--scan` steps without waiting for them, and `step` only
    at the end of every round, to wait.
    """
    if args.pipelined and launch is None or args.scan > 1 and peer != "jax":
        raise SystemExit(f"{peer} does not measure {args.model} like this")
    step()
    first_step_s = since_process_start()
    for _ in range(WARM_UP - 1):
        step()
    times = []
    if args.pipelined:
        launches = -(-args.steps // (PIPELINED_ROUNDS * args.scan))
        for _ in range(PIPELINED_ROUNDS):
            start = time.perf_counter()
            for _ in range(launches - 1):
                launch()
            loss = step()
            times.append((time.perf_counter() - start) / (launches * args.scan))
    else:
        for _ in range(args.steps):
            start = time.perf_counter()
            loss = step()
            times.append((time.perf_counter() - start) / args.scan)
    if os.environ.get("RANK", "0") != "0":
        return
    median = statistics.median(times)
    result = {
        "peer": peer,
        "form": args.form,
        "model": args.model,
        "device": args.device,
        "dtype": args.dtype,
        "pipelined": args.pipelined,
        "scan": args.scan,
        "batch": args.batch,
        "ms_per_step": round(median * 1e3, 4),
        "examples_per_s": round(args.batch / median, 1),
        "first_step_s": round(first_step_s, 3),
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "ms_mean": round(statistics.fmean(times) * 1e3, 4),
        "ms_min": round(min(times) * 1e3, 4),
        "ms_max": round(max(times) * 1e3, 4),
        "steps": args.steps,
        "threads": args.threads,
        "parameters": int(parameters),
        "loss": float(loss),
        "version": version,
    }
    if args.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:16}{value}")
    sys.stdout.flush()
