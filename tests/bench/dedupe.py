"""Near-duplicates among 20,000 texts: our dedupe step beside rensa, gaoya, datasketch and datatrove.

All with 5-word shingles; the peers with 128 permutations in 16 bands of 8, ours with the defaults of its
spec. Every contestant runs in a process of its own and times itself, in turns. Peers start from texts in
memory and end with duplicates in memory. Ours is the real step, run by the engine on two Ray workers: from
Arrow shards of documents on disk to marked shards on disk; Ray and its workers are up before, and the workers
run at the priority of the others (Ray would lower it). Memory is the peak of a process and all it started
(PSS: what they share counts once) above what they held before the work: the texts of the peers are not in it,
the mapped files of ours are.

    python -m tests.bench.dedupe [NUM_DOCUMENTS] [--without-datatrove]

datatrove pins old packages and goes into a virtual environment below ~/.cache/omniloom/bench.
"""

import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from schemas import shard
from tests.bench import dedupe_corpus, report
from tests.bench.dedupe_contestants import CACHE, PEERS, WATCH, Result
from tests.bench.dedupe_corpus import Corpus

ROWS_PER_PARTITION, ROWS_WHEN_SMALL, ROWS_WHEN_SHUFFLED = 2000, 64, 777
GROWTH = 8
NUM_ROUNDS, NUM_SLOW_ROUNDS = 5, 2
SLOW = ("datasketch",)
DATATROVE = ("datatrove[io,processing]==0.10.1", "spacy", "orjson", "psutil")
PACKAGES = ["rensa", "gaoya", "datasketch", "ray", "pyarrow", "numpy"]
GOAL_RECALL = 1127 / 1139  # what MinHash without comparison reaches on such a corpus
GOAL_BYTES_PER_DOCUMENT = 100e6 / 20_000

Row = dict[str, Any]


def main(num_documents: int, with_datatrove: bool) -> None:
    corpus = dedupe_corpus.corpus(num_documents, CACHE)
    whole, small, shuffled = steps(corpus)
    runs = in_turns(whole, num_documents)
    datatrove = run_datatrove(num_documents) if with_datatrove else "left out by --without-datatrove"
    if isinstance(datatrove, Result):
        runs["datatrove"] = [datatrove]
    others = {
        "1 worker": in_process("engine", whole, "1"),
        "3 workers": in_process("engine", whole, "3"),
        f"shuffled, {ROWS_WHEN_SHUFFLED} a partition": in_process("engine", shuffled, "2"),
        f"{ROWS_WHEN_SMALL} a partition": in_process("engine", small, "2"),
    }
    large = steps(dedupe_corpus.corpus(GROWTH * num_documents, CACHE))[0]
    grown = in_process("engine", large, "2")
    grown.peak_bytes = in_process("engine", large, "2", environment={WATCH: "1"}).peak_bytes
    rows = [
        *speeds(corpus, runs, others[f"{ROWS_WHEN_SMALL} a partition"]),
        *(
            [report.row("datatrove", 0, "documents/s", quality={"datatrove": datatrove})]
            if isinstance(datatrove, str)
            else []
        ),
        *recalls(corpus, runs),
        false_merges(corpus, runs),
        same_set(runs, others),
        *memory_and_growth(corpus, runs, grown),
    ]
    report.write("dedupe", rows, PACKAGES)


# ---- running


def steps(corpus: Corpus) -> tuple[str, str, str]:
    """Write the corpus as finished steps, if need be: as it is, in small partitions, and shuffled."""
    order = list(range(len(corpus.texts)))
    paths = []
    for kind, used, rows in (
        ("whole", order, ROWS_PER_PARTITION),
        ("small", order, ROWS_WHEN_SMALL),
        ("shuffled", random.Random(1).sample(order, len(order)), ROWS_WHEN_SHUFFLED),
    ):
        path = CACHE / f"dedupe-{len(order)}-{kind}"
        if not shard.is_finished(str(path)):
            dedupe_corpus.write_step(corpus.texts, used, rows, path)
        paths.append(str(path))
    return paths[0], paths[1], paths[2]


def in_turns(whole: str, num_documents: int) -> dict[str, list[Result]]:
    """Run all contestants, every second round in reverse order, those that take minutes less often; and once
    more each to see its memory.
    """
    contestants = {
        "ours": ("engine", whole, "2"),
        "ours, one process": ("pure", whole),
        **{name: ("peer", name, str(num_documents)) for name in PEERS},
    }
    runs: dict[str, list[Result]] = {name: [] for name in contestants}
    for number in range(NUM_ROUNDS):
        for name in contestants if number % 2 else reversed(contestants):
            if number < NUM_SLOW_ROUNDS or name not in SLOW:
                runs[name].append(in_process(*contestants[name]))
    for name, arguments in contestants.items():
        watched = in_process(*arguments, environment={WATCH: "1"})
        for run in runs[name]:
            run.peak_bytes = watched.peak_bytes
    return runs


def in_process(*arguments: str, environment: dict[str, str] | None = None) -> Result:
    """Run one contestant in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.dedupe_contestants", *arguments]
    whole = os.environ | (environment or {})
    return _parsed(subprocess.run(command, capture_output=True, text=True, env=whole, check=False))


def run_datatrove(num_documents: int) -> Result | str:
    """Run datatrove once, or return why it could not be."""
    python = CACHE / "datatrove" / "bin" / "python"
    if not python.exists():
        uv = shutil.which("uv") or ".uv/bin/uv"
        environment = os.environ | {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
        for command in (
            [uv, "venv", "--quiet", "--python", sys.executable, str(CACHE / "datatrove")],
            [uv, "pip", "install", "--quiet", "--python", str(python), *DATATROVE],
        ):
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                shutil.rmtree(CACHE / "datatrove", ignore_errors=True)
                return f"could not be installed: {done.stderr.strip().splitlines()[-1]}"
    script = Path(__file__).with_name("dedupe_datatrove.py")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        corpus = CACHE / f"dedupe-{num_documents}.json"
        started = [str(python), str(script), str(corpus), f"{folder}/work", "2"]
        return _parsed(subprocess.run(started, capture_output=True, text=True, check=False))


def _parsed(done: subprocess.CompletedProcess[str]) -> Result:
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(done.args)} failed:\n{done.stderr[-3000:]}")
    value = json.loads(lines[-1].removeprefix("RESULT "))
    for name in ("hits", "cluster_of"):
        if value.get(name) is not None:
            value[name] = {int(key): found for key, found in value[name].items()}
    return Result(**value)


# ---- what was found


def found(result: Result, corpus: Corpus) -> dict[str, tuple[int, int]]:
    """Return, by similarity of the planted pairs, how many were found, of how many.

    Where a contestant names pairs: how many of these it names. Where it keeps documents: of how many not both
    stay; for those below 0.6, how many share a cluster, since each may leave for another one's sake.
    """
    kept, cluster_of = set(result.kept or ()), result.cluster_of or {}
    counts = {}
    for name, numbers in corpus.bins().items():
        pairs = [corpus.planted[number][:2] for number in numbers]
        if result.hits is not None:
            hit = [left in result.hits[right] for left, right in pairs]
        elif name == "below 0.6":
            hit = [cluster_of.get(left, -1) == cluster_of.get(right, -2) for left, right in pairs]
        else:
            hit = [left not in kept or right not in kept for left, right in pairs]
        counts[name] = (sum(hit), len(pairs))
    return counts


def least_similarity(result: Result, corpus: Corpus) -> float:
    """Return the lowest similarity of a document that left and the one that stayed for it."""
    return min(
        dedupe_corpus.similarity(corpus.texts[number], corpus.texts[stays])
        for number, stays in (result.cluster_of or {}).items()
    )


def kept_hash(result: Result) -> str:
    return hashlib.sha256(json.dumps(result.kept).encode()).hexdigest()[:16]


# ---- rows of the report


def speeds(corpus: Corpus, runs: dict[str, list[Result]], small: Result) -> list[Row]:
    count = len(corpus.texts)
    speed = {name: count / statistics.median(run.seconds for run in each) for name, each in runs.items()}
    rows = [
        report.row(
            f"{count:,} texts, 2 Ray workers, shards to shards",
            speed["ours"],
            "documents/s",
            peer=speed[peer],
            peer_name=peer,
            goal_ratio=1.0 if peer == "rensa loop" else None,
            quality={
                "ours found": _shown(found(runs["ours"][0], corpus)),
                "peer found": _shown(found(runs[peer][0], corpus)),
                **(runs["ours"][0].notes if peer == "rensa loop" else {}),
            },
        )
        for peer in runs
        if not peer.startswith("ours")
    ]
    by_cpu = {name: count / statistics.median(run.cpu_seconds for run in each) for name, each in runs.items()}
    for work, ours, unit, peers in (
        ("one process, memory to memory", speed["ours, one process"], "documents/s", speed),
        (f"2 Ray workers, partitions of {ROWS_WHEN_SMALL}", count / small.seconds, "documents/s", speed),
        ("2 Ray workers, processor time", by_cpu["ours"], "documents/CPU s", by_cpu),
        ("one process, processor time", by_cpu["ours, one process"], "documents/CPU s", by_cpu),
    ):
        peer = peers["rensa loop"]
        rows.append(report.row(f"{count:,} texts, {work}", ours, unit, peer=peer, peer_name="rensa loop"))
    return rows


def recalls(corpus: Corpus, runs: dict[str, list[Result]]) -> list[Row]:
    counts = {name: found(each[0], corpus) for name, each in runs.items()}
    return [
        report.row(
            f"planted pairs found, similarity {name}",
            counts["ours"][name][0] / counts["ours"][name][1],
            "share",
            peer=counts["rensa loop"][name][0] / counts["rensa loop"][name][1],
            peer_name="rensa loop",
            goal=goal,
            quality={contestant: _shown({name: each[name]}) for contestant, each in counts.items()},
        )
        for name, goal in (("from 0.9", 1.0), ("0.8 to 0.9", GOAL_RECALL))
    ]


def false_merges(corpus: Corpus, runs: dict[str, list[Result]]) -> Row:
    counts = {
        name: found(each[0], corpus)["below 0.6"][0]
        for name, each in runs.items()
        if each[0].hits is not None or each[0].cluster_of is not None
    }
    least = least_similarity(runs["ours"][0], corpus)
    return report.row(
        "planted pairs below 0.6 that merged",
        counts["ours"],
        "pairs",
        peer=counts["gaoya"],
        peer_name="gaoya",
        better="lower",
        goal_ratio=1.0,
        quality={**counts, "ours: least similarity to the one that stays": round(least, 3)},
    )


def same_set(runs: dict[str, list[Result]], others: dict[str, Result]) -> Row:
    all_runs = {
        "2 workers": runs["ours"][0],
        "one process": runs["ours, one process"][0],
        **others,
    }
    hashes = {name: kept_hash(result) for name, result in all_runs.items()}
    kept = {name: len(each[0].kept) for name, each in runs.items() if each[0].kept is not None}
    return report.row(
        "different sets of kept documents, by workers, order and partitions",
        len(set(hashes.values())),
        "sets",
        better="lower",
        goal=1,
        quality={**hashes, "kept": kept},
    )


def memory_and_growth(corpus: Corpus, runs: dict[str, list[Result]], grown: Result) -> list[Row]:
    count = len(corpus.texts)
    peak = {name: each[0].peak_bytes / 1e6 for name, each in runs.items()}
    speed = count / statistics.median(run.seconds for run in runs["ours"])
    return [
        report.row(
            f"{count:,} texts, peak memory over the start",
            peak["ours"],
            "MB",
            peer=peak["rensa loop"],
            peer_name="rensa loop",
            better="lower",
            goal=GOAL_BYTES_PER_DOCUMENT * count / 1e6,
            quality={name: round(value) for name, value in peak.items()},
        ),
        report.row(
            f"{GROWTH * count:,} texts, 2 Ray workers, shards to shards",
            GROWTH * count / grown.seconds,
            "documents/s",
            quality={
                f"of the speed at {count:,}": round(GROWTH * count / grown.seconds / speed, 2),
                "peak memory over the start, MB": round(grown.peak_bytes / 1e6),
            },
        ),
    ]


def _shown(counts: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name}: {part}/{whole}" for name, (part, whole) in counts.items())


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    main(numbers[0] if numbers else 20_000, "--without-datatrove" not in sys.argv)
