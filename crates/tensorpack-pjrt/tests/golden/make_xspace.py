#!/usr/bin/env python3
"""Writes cpu.xplane.pb, a recording of JAX's profiler, and cpu.tsv, what JAX's own reader finds in it: plane, line,
name, beginning and duration in nanoseconds.

    pip install jax && python make_xspace.py
"""

import glob
import pathlib
import shutil
import tempfile

import jax
import jax.numpy as jnp

HERE = pathlib.Path(__file__).parent


def main():
    step = jax.jit(lambda x: jnp.sort(x @ x).sum())
    x = jnp.ones((8, 8))
    step(x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        step(x).block_until_ready()
        jax.profiler.stop_trace()
        (file,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        shutil.copyfile(file, HERE / "cpu.xplane.pb")
    rows = []
    for plane in jax.profiler.ProfileData.from_file(str(HERE / "cpu.xplane.pb")).planes:
        for line in plane.lines:
            for event in line.events:
                rows.append([plane.name, line.name, event.name, round(event.start_ns), round(event.duration_ns)])
    (HERE / "cpu.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


main()
