"""Reads the event files of a directory with TensorBoard's own reader and prints what it sees as JSON, once each file
on its own has been found whole and once all together, as TensorBoard's pages show them."""

import glob
import io
import json
import os
import sys

import PIL.Image
from tensorboard.backend.event_processing import event_accumulator, event_file_loader

logdir = sys.argv[1]
files = sorted(glob.glob(os.path.join(logdir, "events.out.tfevents.*")))
# The loader stops silently at a torn record, so what it has read must be all there is.
for path in files:
    loader = event_file_loader.RawEventFileLoader(path)
    read = sum(16 + len(record) for record in loader.Load())
    assert read == os.path.getsize(path), f"{path}: {read} of {os.path.getsize(path)} bytes"

everything = {kind: 0 for kind in (event_accumulator.SCALARS, event_accumulator.IMAGES, event_accumulator.HISTOGRAMS)}
seen = event_accumulator.EventAccumulator(logdir, size_guidance=everything)
seen.Reload()
tags = seen.Tags()


def histogram(value):
    buckets = [[limit, count] for limit, count in zip(value.bucket_limit, value.bucket)]
    return {"min": value.min, "max": value.max, "num": value.num, "sum": value.sum, "buckets": buckets}


def image(event):
    picture = PIL.Image.open(io.BytesIO(event.encoded_image_string))
    channels = len(picture.getbands())
    assert (picture.width, picture.height) == (event.width, event.height)
    return {"width": event.width, "height": event.height, "channels": channels, "pixels": list(picture.tobytes())}


json.dump(
    {
        "files": len(files),
        "scalars": {t: [[e.step, e.value] for e in seen.Scalars(t)] for t in tags["scalars"]},
        "images": {t: [[e.step, image(e)] for e in seen.Images(t)] for t in tags["images"]},
        "histograms": {t: [[e.step, histogram(e.histogram_value)] for e in seen.Histograms(t)] for t in tags["histograms"]},
        "graph": [[n.name, n.op, list(n.input)] for n in seen.Graph().node] if tags["graph"] else None,
    },
    sys.stdout,
)
