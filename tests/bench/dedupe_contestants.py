"""The contestants of the text dedupe benchmark, each run in a process of its own.

Owns how each peer is called, how our step is run, and how time and memory are measured. Every child prints
one line of JSON, a `Result`.

    python -m tests.bench.dedupe_contestants engine STEP_FOLDER NUM_WORKERS
    python -m tests.bench.dedupe_contestants pure STEP_FOLDER
    python -m tests.bench.dedupe_contestants peer NAME NUM_DOCUMENTS
"""

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from datapipe.on_ray import Engine
from datapipe.spec import DedupeTextSpec
from datapipe.stages import dedupe_media, dedupe_text
from jobs.dedupe import dedupe_text_step
from jobs.spec import PrepareJob
from jobs.state import RunState
from schemas import shard
from tests.bench import dedupe_corpus

CACHE = Path("~/.cache/omniloom/bench").expanduser()
SPEC = DedupeTextSpec()
WATCH = "OMNILOOM_BENCH_WATCH_MEMORY"
NUM_PERMUTATIONS, NUM_BANDS, SHINGLE_WORDS = 128, 16, 5

Hits = dict[int, list[int]]  # for each text, those before it that are called similar


@dataclasses.dataclass
class Result:
    """What one contestant did: its time, its memory, and either the pairs it found or what it kept."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    hits: Hits | None = None
    kept: list[int] | None = None
    cluster_of: dict[int, int] | None = None
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)


# ---- peers


def rensa_loop(texts: list[str]) -> Hits:
    from rensa import RMinHash, RMinHashLSH

    index, hits = RMinHashLSH(0.8, NUM_PERMUTATIONS, NUM_BANDS), {}
    for number, text in enumerate(texts):
        minhash = RMinHash(NUM_PERMUTATIONS, 1)
        minhash.update(shingles(text))
        hits[number] = index.query(minhash)
        index.insert(number, minhash)
    return hits


def rensa_batches(texts: list[str]) -> Hits:
    from rensa import RMinHash, RMinHashLSH

    index, hits = RMinHashLSH(0.8, NUM_PERMUTATIONS, NUM_BANDS), {}
    for start in range(0, len(texts), 1000):
        sets = [shingles(text) for text in texts[start : start + 1000]]
        for number, minhash in enumerate(RMinHash.from_token_sets(sets, NUM_PERMUTATIONS, 1), start):
            hits[number] = index.query(minhash)
            index.insert(number, minhash)
    return hits


def gaoya(texts: list[str]) -> Hits:
    from gaoya.minhash import MinHashStringIndex

    index = MinHashStringIndex(32, 0.8, NUM_BANDS, NUM_PERMUTATIONS // NUM_BANDS, None, "word", True, (5, 5))
    hits = {}
    for number, text in enumerate(texts):
        hits[number] = index.query(text)
        index.insert_document(number, text)
    return hits


def datasketch(texts: list[str]) -> Hits:
    from datasketch import MinHash, MinHashLSH

    rows = NUM_PERMUTATIONS // NUM_BANDS
    index, hits = MinHashLSH(num_perm=NUM_PERMUTATIONS, params=(NUM_BANDS, rows)), {}
    for number, text in enumerate(texts):
        minhash = MinHash(NUM_PERMUTATIONS)
        minhash.update_batch([shingle.encode() for shingle in shingles(text)])
        hits[number] = index.query(minhash)
        index.insert(number, minhash)
    return hits


def shingles(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[i : i + SHINGLE_WORDS]) for i in range(len(words) - SHINGLE_WORDS + 1)]


PEERS: dict[str, Callable[[list[str]], Hits]] = {
    "rensa loop": rensa_loop,
    "rensa in batches": rensa_batches,
    "gaoya": gaoya,
    "datasketch": datasketch,
}


def run_peer(name: str, corpus: dedupe_corpus.Corpus) -> Result:
    hits: list[Hits] = []
    PEERS[name](corpus.texts[:10])  # so that it is imported
    spent = measured(lambda: hits.append(PEERS[name](corpus.texts)))
    return Result(*spent, hits=hits[0])


def run_ours(corpus_step: Path, num_workers: int) -> Result:
    """Run the step by the engine; a small corpus first, so that the workers are there and have imported."""
    start = time.perf_counter()
    os.environ |= {"RAY_worker_niceness": "0"}
    with Engine(num_workers, show_progress=False) as engine, tempfile.TemporaryDirectory(dir=CACHE) as folder:
        small = Path(folder) / "clean-small"
        dedupe_corpus.write_step(["a text"] * num_workers, list(range(num_workers)), 1, small)
        warm_up(engine, num_workers, small)
        shutil.rmtree(Path(dedupe(engine, small)).parent)
        ready = time.perf_counter() - start
        root: list[str] = []
        spent = measured(lambda: root.append(dedupe(engine, corpus_step)))
        result = Result(*spent, notes={"Ray start and warm-up s": round(ready, 1)})
        tables = [pa.ipc.open_file(path).read_all() for path in sorted(Path(root[0]).glob("d*-*.arrow"))]
        collect(result, pa.concat_tables(tables))
        shutil.rmtree(Path(root[0]).parent)
    return result


def warm_up(engine: Engine, num_workers: int, small: Path) -> None:
    """Let every worker load what the step needs."""
    import ray

    engine.start()
    ray.get([ray.remote(num_cpus=1)(_loaded).remote(small) for _ in range(num_workers)])


def _loaded(small: Path) -> str:
    pure(small)
    time.sleep(2)  # long enough that no worker takes two
    return dedupe_text_step.__name__


def dedupe(engine: Engine, corpus_step: Path) -> str:
    """Run the step on a finished step of documents, and return its folder."""
    root = tempfile.mkdtemp(dir=CACHE)
    os.symlink(corpus_step, Path(root) / corpus_step.name)
    media_step = shard.join(root, "dedupe_media-none")
    no_media = shard.write_table(
        shard.join(media_step, shard.shard_name("media_clusters", 0)), dedupe_media.CLUSTERS.empty_table()
    )
    shard.write_manifest(media_step, shard.Manifest("dedupe_media", "", {}, [], 0, 0, {}, {}, [no_media]))
    done: list[str] = []

    def commit(step: Any, work: Callable[[], Any]) -> None:
        work()
        done.append(step.path)

    state = RunState(engine, root, {"clean": corpus_step.name, "dedupe_media": "dedupe_media-none"}, commit)
    job = PrepareJob.model_construct(dedupe_text=SPEC)  # type: ignore[call-arg]  # the step reads no other field
    dedupe_text_step(state, job, "clean")
    return done[0]


def run_pure(corpus_step: Path) -> Result:
    found: list[pa.Table] = []
    result = Result(*measured(lambda: found.append(pure(corpus_step))))
    collect(result, found[0])
    return result


def pure(corpus_step: Path) -> pa.Table:
    """Run the same functions in this process, without Ray, nothing written."""
    tables = [shard.read_table(str(path)) for path in sorted(corpus_step.glob("documents-*.arrow"))]
    signed = []
    for table in tables:
        batches = table.combine_chunks().to_batches(max_chunksize=256)
        signed.append(pa.Table.from_batches([dedupe_text.signatures(batch, SPEC) for batch in batches]))
    keys = [batch for table in signed for batch in dedupe_text.keys(table, SPEC, 1)]
    clusters = dedupe_text.cluster(dedupe_text.pairs(keys, signed, SPEC), signed, SPEC).combine_chunks()
    return pa.Table.from_batches(
        [dedupe_text.mark(batch, clusters) for table in tables for batch in table.to_batches()]
    )


def collect(result: Result, documents: pa.Table) -> None:
    """Fill in what stays and which cluster each document is in."""
    rows = documents.select(["doc_id", "uri", "cluster_id", "drop_reason"]).to_pylist()
    number = {row["doc_id"]: int(row["uri"]) for row in rows}
    result.kept = sorted(int(row["uri"]) for row in rows if row["drop_reason"] is None)
    result.cluster_of = {int(r["uri"]): number[r["cluster_id"]] for r in rows if r["cluster_id"]}


def measured(work: Callable[[], Any]) -> tuple[float, float, int]:
    """Return the seconds of some work, those of the processors, and the peak memory above that before it.

    Children are included. Memory is looked at only where `WATCH` is set, since that takes time.
    """
    peak, done, before = 0, threading.Event(), tree_bytes()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, tree_bytes())

    watcher = threading.Thread(target=watch)
    if WATCH in os.environ:
        watcher.start()
    start, cpu_start = time.perf_counter(), tree_cpu_seconds()
    work()
    seconds, cpu_seconds = time.perf_counter() - start, tree_cpu_seconds() - cpu_start
    done.set()
    if watcher.ident:
        watcher.join()
    return seconds, cpu_seconds, max(peak, tree_bytes()) - before


def tree_cpu_seconds() -> float:
    """Return the processor time this process and those it started have taken."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            total += sum(process.cpu_times()[:2])
    return total


def tree_bytes() -> int:
    """Return the memory of this process and those it started; pages they share count once (PSS)."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            total += process.memory_full_info().pss
    return total


def main(kind: str, *arguments: str) -> None:
    """Run a contestant and print what it did."""
    if kind == "engine":
        result = run_ours(Path(arguments[0]), int(arguments[1]))
    elif kind == "pure":
        result = run_pure(Path(arguments[0]))
    else:
        result = run_peer(arguments[0], dedupe_corpus.corpus(int(arguments[1]), CACHE))
    print("RESULT " + json.dumps(dataclasses.asdict(result)))


if __name__ == "__main__":
    main(*sys.argv[1:])
