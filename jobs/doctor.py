"""Examines the machine: what a run needs, what is there, and what to do where something is not.

Owns the list of checks. Each check is a function that returns a `Finding`; nothing is changed on the machine.
"""

import dataclasses
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

MIN_FREE_DISK_BYTES = 2 * 1024**3
MIN_FREE_MEMORY_BYTES = 4 * 1024**3
PACKAGES = (
    "torch",
    "triton",
    "ray",
    "pyarrow",
    "polars",
    "transformers",
    "trl",
    "pillow",
    "av",
    "open-clip-torch",
)
DECORD_FLAVOURS = ("decord", "eva-decord", "decord2")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One check's outcome: `state` is ok, warn (works, but look) or fail (a run will not work)."""

    state: str
    what: str
    detail: str


def examine(console: Console) -> bool:
    """Run every check, print them as a table, and return whether none failed."""
    findings = list(_findings())
    table = Table("", "check", "found", box=None, pad_edge=False)
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    for finding in findings:
        table.add_row(f"[{colours[finding.state]}]{finding.state}[/]", finding.what, finding.detail)
    console.print(table)
    return all(finding.state != "fail" for finding in findings)


def _findings() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok" if sys.version_info >= (3, 11) else "fail", "Python", version)
    for name in PACKAGES:
        yield _package(name)
    yield _decord()
    yield _kernels()
    yield _torchvision()
    yield _accelerator()
    yield _disk()
    yield _memory()
    yield _threads()
    yield _ray_session()


def _package(name: str) -> Finding:
    try:
        return Finding("ok", name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding("fail", name, "not installed: run `make setup`")


def _decord() -> Finding:
    installed = [name for name in DECORD_FLAVOURS if _package(name).state == "ok"]
    if installed == ["decord2"]:
        return Finding("ok", "decord", f"decord2 {importlib.metadata.version('decord2')}")
    if not installed:
        return Finding("warn", "decord", "not installed: video is decoded by PyAV alone")
    return Finding(
        "fail", "decord", f"{', '.join(installed)} share one import name: uninstall all, install decord2 only"
    )


def _kernels() -> Finding:
    """Hugging Face's `kernels` package has the import name of our `kernels/` folder."""
    if _package("kernels").state == "ok":
        problem = "the Hugging Face package of this name hides ours: uninstall it (transformers below 5.25)"
        return Finding("fail", "kernels", problem)
    found = importlib.util.find_spec("kernels.msa")
    return Finding("ok", "kernels", str(Path(found.origin).parent) if found and found.origin else "ours")


def _torchvision() -> Finding:
    """A torchvision built for another torch breaks the import of every transformers model."""
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        return Finding(
            "fail", "torchvision", f"does not load beside this torch ({error}): install a matching pair"
        )
    return Finding("ok", "torchvision", torchvision.__version__)


def _accelerator() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("ok", "accelerator", torch.cuda.get_device_name())
    return Finding("ok", "accelerator", "none: training runs on the CPU")


def _disk() -> Finding:
    free = shutil.disk_usage(os.getcwd()).free
    state = "ok" if free >= MIN_FREE_DISK_BYTES else "warn"
    return Finding(state, "free disk here", f"{free / 1024**3:.1f} GiB")


def _memory() -> Finding:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return Finding("ok", "free memory", "not known on this system")
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    return Finding(
        "ok" if free >= MIN_FREE_MEMORY_BYTES else "warn", "free memory", f"{free / 1024**3:.1f} GiB"
    )


def _threads() -> Finding:
    """Two OpenMP threads on a busy machine can be ten times slower than one."""
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None:
        return Finding("warn", "OMP_NUM_THREADS", "not set: on a shared machine set it to 1")
    return Finding("ok", "OMP_NUM_THREADS", threads)


def _ray_session() -> Finding:
    running = os.environ.get("RAY_ADDRESS")
    if running:
        return Finding(
            "warn", "RAY_ADDRESS", f"{running}: local runs ignore it; name a cluster by `address` in the spec"
        )
    return Finding("ok", "Ray", "starts by itself on this machine")
