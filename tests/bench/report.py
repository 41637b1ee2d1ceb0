"""What every benchmark writes: one JSON file with the machine, its load, the versions, and a row a measure.

Owns the shape of `results/<subject>.json` and how contestants are timed. A benchmark imports `in_turn`, `row`
and `write`, and measures; it holds no code for files or tables.

    seconds = report.in_turn({"ours": ours, "theirs": theirs})
    rows = [report.row("20,000 documents", 20_000 / median(seconds["ours"]), "documents/s",
                       peer=20_000 / median(seconds["theirs"]), peer_name="theirs", goal_ratio=1.0,
                       quality={"recall": 0.99, "recall of the peer": 0.97})]
    report.write("dedupe", rows, ["theirs"])
"""

import gc
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
_CPU_INFO = Path("/proc/cpuinfo")
_LOAD_AT_START = os.getloadavg()


def in_turn(contestants: Mapping[str, Callable[[], Any]], rounds: int = 5) -> dict[str, list[float]]:
    """Return the wall seconds of each contestant in each round, after one round that is not counted.

    They take turns, every second round in reverse order, so that a change of the machine's load meets all.
    """
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names if number % 2 else reversed(names):
            gc.collect()
            start = time.perf_counter()
            contestants[name]()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def row(
    work: str,
    ours: float,
    unit: str,
    *,
    peer: float | None = None,
    peer_name: str | None = None,
    better: Literal["higher", "lower"] = "higher",
    goal: float | None = None,
    goal_ratio: float | None = None,
    quality: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return one measure.

    Args:
        work: what was done, with its size.
        goal: what `ours` has to reach, in `unit`.
        goal_ratio: the same as a multiple of the peer: 1.5 asks for one and a half times as good.
        quality: what was right or wrong in the same run: no speed without it.

    The row's `ratio` says how many times as good ours is: over 1 is better, whether higher or lower counts.
    """
    if goal_ratio is not None:
        if peer is None or goal is not None:
            raise ValueError("goal_ratio: needs a peer, and no goal beside it")
        goal = peer * goal_ratio if better == "higher" else peer / goal_ratio
    ratio = None
    if peer is not None:
        above, below = (ours, peer) if better == "higher" else (peer, ours)
        ratio = _rounded(above / below) if below else None
    return {
        "work": work,
        "ours": _rounded(ours),
        "peer": _rounded(peer),
        "peer_name": peer_name,
        "unit": unit,
        "ratio": ratio,
        "goal": _rounded(goal),
        "better": better,
        "quality": dict(quality or {}),
    }


def write(subject: str, rows: Sequence[Mapping[str, Any]], packages: Sequence[str] = ()) -> Path:
    """Write `results/<subject>.json`, show it as a table, and return its path.

    Args:
        packages: distributions whose versions the figures depend on, as pip names them.
    """
    result = {
        "host": host(),
        "load": {"before": _rounded_all(_LOAD_AT_START), "after": _rounded_all(os.getloadavg())},
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "rows": [dict(row) for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{subject}.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    show(subject, result)
    return path


def show(subject: str, result: Mapping[str, Any]) -> None:
    """Print a result as a table."""
    load = ", ".join(f"{value:.1f}" for value in result["load"]["after"])
    table = Table(title=f"{subject}: {result['host']}, load {load}")
    for column in ("work", "ours", "peer", "unit", "times as good", "goal", "quality"):
        table.add_column(column, overflow="fold")
    for line in result["rows"]:
        quality = "\n".join(f"{name}: {value}" for name, value in line["quality"].items())
        peer = "" if line["peer"] is None else f"{_shown(line['peer'])} {line['peer_name']}"
        goal = (
            "" if line["goal"] is None else _shown(line["goal"]) + (" reached" * reached(line) or " MISSED")
        )
        table.add_row(
            line["work"], _shown(line["ours"]), peer, line["unit"], _shown(line["ratio"]), goal, quality
        )
    Console(width=150).print(table)


def reached(line: Mapping[str, Any]) -> bool:
    """Return whether a row reaches its goal; one without a goal does."""
    if line["goal"] is None:
        return True
    return bool(line["ours"] >= line["goal"] if line["better"] == "higher" else line["ours"] <= line["goal"])


def host() -> str:
    """Return the processor's name and how many cores this process may use."""
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model or platform.machine()}, {cores} cores"


def _rounded(value: float | None) -> float | None:
    """Return a figure with four significant digits."""
    return None if value is None else float(f"{value:.4g}")


def _rounded_all(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
