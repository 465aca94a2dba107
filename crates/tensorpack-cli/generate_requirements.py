"""Writes requirements/PLUGIN-MACHINE.txt: every wheel of a plugin, pinned by version and SHA-256.

    python3 generate_requirements.py INDEX_URL

INDEX_URL is a Python package index with a JSON API at INDEX_URL/pypi/NAME/json. For every plugin the
script takes the newest versions in the ranges below that have a wheel for each machine, and checks that
the packages they require are listed, too, because pip is called with --no-deps. `tensorpack plugin install` passes the files to pip with
--require-hashes. Run it again to move to newer libraries, then test the plugins on a GPU.
"""

import json
import os
import re
import sys
import urllib.request

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.version import Version

MACHINES = ["x86_64", "aarch64"]

PLUGINS = {
    "cpu": ["xla-cpu-pjrt==0.0.1"],
    "cuda13": [
        "jax-cuda13-pjrt==0.12.0.1",
        "nvidia-cublas>=13.0.0.19,<14",
        "nvidia-cuda-cccl>=13.0,<14",
        "nvidia-cuda-crt>=13.0,<14",
        "nvidia-cuda-cupti>=13.0.48,<14",
        "nvidia-cuda-nvcc>=13.0.48,<14",
        "nvidia-cuda-nvrtc>=13.0.48,<14",
        "nvidia-cuda-runtime>=13.0.48,<14",
        "nvidia-cudnn-cu13>=9.12.0.46,<10",
        "nvidia-cufft>=12.0.0.15,<13",
        "nvidia-cusolver>=12.0.3.29,<13",
        "nvidia-cusparse>=12.6.2.49,<13",
        "nvidia-nccl-cu13>=2.27.7,<3",
        "nvidia-nvjitlink>=13.0.39,<14",
        "nvidia-nvshmem-cu13>=3.3.20,<4",
        "nvidia-nvvm>=13.0.48,<14",
    ],
    "cuda12": [
        "jax-cuda12-pjrt==0.11.2",
        "nvidia-cublas-cu12>=12.1.3.1,<13",
        "nvidia-cuda-cccl-cu12>=12.1,<13",
        "nvidia-cuda-cupti-cu12>=12.1.105,<13",
        "nvidia-cuda-nvcc-cu12>=12.6.85,<13",
        "nvidia-cuda-nvrtc-cu12>=12.1.55,<13",
        "nvidia-cuda-runtime-cu12>=12.1.105,<13",
        "nvidia-cudnn-cu12>=9.10.2.21,<10",
        "nvidia-cufft-cu12>=11.0.2.54,<12",
        "nvidia-cusolver-cu12>=11.4.5.107,<12",
        "nvidia-cusparse-cu12>=12.1.0.106,<13",
        "nvidia-nccl-cu12>=2.18.1,<3",
        "nvidia-nvjitlink-cu12>=12.1.105,<13",
        "nvidia-nvshmem-cu12>=3.2.5,<4",
    ],
    "mpi": ["mpich==5.0.2"],
}


def ask(index, name):
    with urllib.request.urlopen(f"{index.rstrip('/')}/pypi/{name}/json", timeout=60) as answer:
        return json.load(answer)


def wheel_for(files, machine):
    """The newest-ABI wheel for any Python 3 on Linux, or None."""
    tag = re.compile(rf"-py3-none-(manylinux[a-z0-9_.]*_{machine}|any)\.whl$")
    found = [f for f in files if tag.search(f["filename"].replace("-py2.py3-", "-py3-")) and not f["yanked"]]
    return max(found, key=lambda f: f["filename"], default=None)


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(index, requirements):
    """Package name to (version, {machine: wheel}): the newest version in each range."""
    chosen, needed = {}, set()
    for requirement in map(Requirement, requirements):
        package = ask(index, requirement.name)
        files = {Version(v): files for v, files in package["releases"].items()}
        for version in requirement.specifier.filter(sorted(files, reverse=True), prereleases=False):
            wheels = {machine: wheel_for(files[version], machine) for machine in MACHINES}
            if all(wheels.values()):
                break
        else:
            sys.exit(f"{requirement}: no version has wheels for {MACHINES}")
        chosen[requirement.name] = (version, wheels)
        needs = map(Requirement, package["info"]["requires_dist"] or [])
        needed |= {canonical(r.name) for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})}
    if needed - set(chosen):
        sys.exit(f"add these dependencies to PLUGINS: {sorted(needed - set(chosen))}")
    return chosen


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements")
    for plugin, requirements in PLUGINS.items():
        chosen = resolve(sys.argv[1], requirements)
        for machine in MACHINES:
            with open(os.path.join(folder, f"{plugin}-{machine}.txt"), "w") as out:
                out.write("# Written by generate_requirements.py. The number is the size of the wheel in bytes.\n")
                for name, (version, wheels) in chosen.items():
                    wheel = wheels[machine]
                    digest = wheel["digests"]["sha256"]
                    out.write(f"{name}=={version} --hash=sha256:{digest} # {wheel['size']}\n")


main()
