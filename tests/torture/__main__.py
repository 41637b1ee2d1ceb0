"""The torture run: every file of six packages that collect odd files goes through the whole path, by the
command. No crash, no hang, and each file is accounted for in a table of outcomes.

    python -m tests.torture

Writes `outcomes.json` beside the run and a summary to `tests/bench/results/torture.json`. Ends with 1 where a
file is not accounted for, or an outcome is not the expected one.
"""

import fnmatch
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from datapipe.sources.files import list_source
from datapipe.spec import SourceSpec
from jobs.fetch import CACHE, fetch
from schemas import shard
from tests.bench import report
from tests.torture.expected import EXPECTED

PACKAGES = {
    "pillow": "sdist:pillow",
    "pypdf": "sdist:pypdf",
    "pikepdf": "sdist:pikepdf",
    "python-pptx": "sdist:python-pptx",
    "iscc-samples": "sdist:iscc-samples",
    "forensics-samples": "debian:forensics-samples-files",
}
OUTPUT = CACHE / "torture-run"


def main() -> int:
    sources = {name: str(fetch(corpus)[0]) for name, corpus in PACKAGES.items()}
    seconds = _run(sources)
    outcomes = {name: _outcomes(name) for name in sources}
    missing = {name: _unaccounted(name, path, outcomes[name]) for name, path in sources.items()}
    wrong = _wrong(outcomes)
    (OUTPUT / "outcomes.json").write_text(json.dumps(outcomes, indent=1, sort_keys=True, ensure_ascii=False))
    report.write(
        "torture",
        [_row(name, outcomes[name], missing[name]) for name in outcomes],
        ["pillow", "pypdfium2", "av"],
    )
    for line in wrong:
        print(line)
    print(
        f"{seconds:.0f} s; {sum(missing.values())} files not accounted for; {len(wrong)} unexpected outcomes"
    )
    return 1 if wrong or any(missing.values()) else 0


def _run(sources: dict[str, str]) -> float:
    """Run the command over all packages into an empty output; return its wall seconds."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    spec = {
        "kind": "prepare",
        "output": str(OUTPUT / "run"),
        "report": False,
        "sources": [
            {"path": path, "collection": name, "standalone_media": True} for name, path in sources.items()
        ],
        "tokenize": {"vocab_size": 4096},
    }
    path = OUTPUT / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "jobs.cli", "run", str(path)], check=True, timeout=3600)
    return time.monotonic() - started


def _ingest_path() -> str:
    return shard.join(
        str(OUTPUT / "run"), shard.read_json(str(OUTPUT / "run" / "run.json"))["steps"]["ingest"]
    )


def _outcomes(collection: str) -> dict[str, str]:
    """Return what became of each file of a package that is a document, or was one of a document's own."""
    step = _ingest_path()
    errors = {
        row["media_id"]: row["error"]
        for row in shard.read_step_table(step, "media", ["media_id", "error"]).to_pylist()
    }
    found: dict[str, list[str]] = {}
    columns = ["uri", "collection", "format", "segments"]
    for row in shard.read_step_table(step, "documents", columns).to_pylist():
        if row["collection"] == collection:
            found.setdefault(row["uri"].partition("#")[0], []).append(_document(row, errors))
    for row in shard.read_step_table(step, "quarantine").to_pylist():
        if row["collection"] == collection:
            found.setdefault(row["uri"].partition("#")[0], []).append(
                f"{row['error_class']}: {row['message']}"
            )
    return {uri: "; ".join(parts) for uri, parts in sorted(found.items())}


def _document(row: dict[str, Any], errors: dict[str, str | None]) -> str:
    kinds = Counter(segment["kind"] for segment in row["segments"])
    shown = {segment["media_id"] for segment in row["segments"] if segment["media_id"] is not None}
    broken = Counter(error.partition(":")[0] for medium in shown if (error := errors.get(medium)))
    parts = [f"{count} {kind}" for kind, count in sorted(kinds.items())]
    parts += [f"{count} media {error}" for error, count in sorted(broken.items())]
    return f"document: {row['format']}, {', '.join(parts)}"


def _unaccounted(collection: str, path: str, outcomes: dict[str, str]) -> int:
    """Return how many files of a folder are neither in the table nor counted as something else."""
    listing = list_source(SourceSpec(path=path, collection=collection, standalone_media=True))
    documents = {file.uri for file in listing.documents}
    num_files = sum(1 for file in Path(path).rglob("*") if file.is_file())
    return len(documents - set(outcomes)) + abs(num_files - sum(listing.counts.values()))


def _wrong(outcomes: dict[str, dict[str, str]]) -> list[str]:
    lines = []
    for package, pattern, start in EXPECTED:
        fitting = {uri: said for uri, said in outcomes[package].items() if fnmatch.fnmatch(uri, pattern)}
        if not fitting:
            lines.append(f"{package}: {pattern}: no such file, expected {start}")
        lines += [
            f"{package}: {uri}: {said}, expected {start}"
            for uri, said in fitting.items()
            if not said.startswith(start)
        ]
    return lines


def _row(package: str, outcomes: dict[str, str], missing: int) -> dict[str, Any]:
    kinds = Counter(
        ", ".join(said.split(",")[:1]) if said.startswith("document") else said.partition(":")[0]
        for said in outcomes.values()
    )
    return report.row(
        f"{package}: files in the table",
        len(outcomes),
        "files",
        quality={"not accounted for": missing, **dict(sorted(kinds.items()))},
    )


if __name__ == "__main__":
    sys.exit(main())
