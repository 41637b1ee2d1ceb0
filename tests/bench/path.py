"""The whole path from files to token shards: documents a second, and how time and memory grow with the input.

Pages of text with captioned pictures, all made by code, 1, 2, 4 and 8 times as many; each run is the command
itself, on two workers, into an empty output. Memory is the sum of the proportional set sizes of all processes
of the run, the largest of one sample a second. A run over a single page tells what starting costs; growth is
judged without it.

    python -m tests.bench.path [NUM_PAGES]
"""

import io
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from PIL import Image

from tests.bench import report
from tests.jobs.make_corpus import sentence

GROWTH = (1, 2, 4, 8)
GOAL_TIME, GOAL_MEMORY = 1.2, 1.25  # of 8 times the input, for each document and in all
WORKERS = 2


def write_pages(folder: Path, count: int) -> None:
    """Write pages of about 400 words with two pictures of 320 x 240; one in ten repeats another."""
    folder.mkdir(parents=True)
    rng = random.Random(1)
    for number in range(count):
        source = rng.randrange(number) if number and rng.random() < 0.1 else number
        own = random.Random(source)
        body = "".join(
            f"<p>{' '.join(sentence(own) for _ in range(12))} Part {source}-{part}.</p>"
            f'<figure><img src="{source}-{part}.jpg" alt="a view">'
            f"<figcaption>View {source}</figcaption></figure>"
            for part in range(2)
        )
        (folder / f"{number:05}.html").write_text(
            f'<html lang="en"><title>Page {number}</title><body><h1>Page {source}</h1>{body}</body></html>'
        )
        for part in range(2):
            (folder / f"{number}-{part}.jpg").write_bytes(_picture(2 * number + part))


def _picture(seed: int) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((320, 240), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def run(folder: Path, pages: str, output: str) -> tuple[float, float]:
    """Run the command; return its wall seconds and its peak memory in MiB."""
    spec = {
        "kind": "prepare",
        "output": str(folder / output),
        "report": False,
        "num_workers": WORKERS,
        "sources": [{"path": str(folder / pages), "collection": "made"}],
    }
    path = folder / f"{output}.yaml"
    path.write_text(yaml.safe_dump(spec))
    started, peak = time.monotonic(), 0.0
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.cli", "run", str(path)], stdout=subprocess.DEVNULL
    )
    while process.poll() is None:
        peak = max(peak, _memory_mib(process.pid))
        time.sleep(1)
    assert process.returncode == 0
    return time.monotonic() - started, peak


def _memory_mib(pid: int) -> float:
    total = 0
    try:
        for child in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            total += child.memory_full_info().pss
    except psutil.Error:  # a process ended while it was looked at
        pass
    return total / 2**20


def main(num_pages: int) -> None:
    sizes = {"start": 1, **{f"{times}x": times * num_pages for times in GROWTH}}
    folder = Path(tempfile.mkdtemp(prefix="path-"))
    seconds: dict[str, list[float]] = {name: [] for name in sizes}
    memory: dict[str, list[float]] = {name: [] for name in sizes}
    try:
        for name, count in sizes.items():
            write_pages(folder / name, count)
        for number in range(3):
            for name in list(sizes) if number % 2 else reversed(sizes):
                wall, peak = run(folder, name, f"out-{name}")
                seconds[name].append(wall)
                memory[name].append(peak)
                shutil.rmtree(folder / f"out-{name}")
    finally:
        shutil.rmtree(folder)
    wall_s = {name: statistics.median(values) for name, values in seconds.items()}
    peak_mib = {name: statistics.median(values) for name, values in memory.items()}
    report.write("path", _rows(sizes, wall_s, peak_mib), ["ray", "pyarrow", "pillow", "tokenizers"])


def _rows(
    sizes: dict[str, int], wall_s: dict[str, float], peak_mib: dict[str, float]
) -> list[dict[str, Any]]:
    first, last = f"{GROWTH[0]}x", f"{GROWTH[-1]}x"
    per_document = {name: (wall_s[name] - wall_s["start"]) / count for name, count in sizes.items()}
    return [
        *(
            report.row(
                f"{count:,} pages with {2 * count:,} pictures",
                count / wall_s[name],
                "documents/s",
                quality={"wall s": round(wall_s[name], 1), "peak MiB": round(peak_mib[name])},
            )
            for name, count in sizes.items()
        ),
        report.row(
            f"time for each document of {last} over {first}, without the start",
            per_document[last] / per_document[first],
            "ratio",
            better="lower",
            goal=GOAL_TIME,
        ),
        report.row(
            f"peak memory of {last} over {first}",
            peak_mib[last] / peak_mib[first],
            "ratio",
            better="lower",
            goal=GOAL_MEMORY,
        ),
    ]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 250)
