"""datatrove's MinHash dedupe on the benchmark's corpus, run by a Python that has datatrove.

It pins packages older than ours, so it lives in a virtual environment of its own (`tests.bench.dedupe` makes
it). Reads `{"texts": [...]}` from a JSON file, prints one line of JSON: seconds, peak memory, kept documents.

    PYTHON dedupe_datatrove.py CORPUS_JSON WORK_FOLDER NUM_WORKERS
"""

import gzip
import json
import os
import sys
import threading
import time
from pathlib import Path

import psutil
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.hashing import HashConfig

NUM_BUCKETS, HASHES_PER_BUCKET, NGRAM = 16, 8, 5


def write_input(texts: list[str], folder: Path, num_files: int) -> None:
    folder.mkdir(parents=True)
    for number in range(num_files):
        with gzip.open(folder / f"{number:05d}.jsonl.gz", "wt", compresslevel=1) as file:
            for i in range(number, len(texts), num_files):
                file.write(json.dumps({"text": texts[i], "id": str(i)}) + "\n")


def dedupe(folder: Path, num_workers: int) -> None:
    config = MinhashConfig(
        n_grams=NGRAM,
        num_buckets=NUM_BUCKETS,
        hashes_per_bucket=HASHES_PER_BUCKET,
        hash_config=HashConfig(precision=64),
    )
    names = ("signatures", "buckets", "remove_ids", "kept", "logs")
    signatures, buckets, remove_ids, kept, logs = (str(folder / name) for name in names)
    stages = [
        ([JsonlReader(str(folder / "input")), MinhashDedupSignature(signatures, config)], num_workers),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], NUM_BUCKETS),
        ([MinhashDedupCluster(buckets, remove_ids, config=config)], 1),
        (
            [JsonlReader(str(folder / "input")), MinhashDedupFilter(remove_ids), JsonlWriter(kept)],
            num_workers,
        ),
    ]
    for number, (pipeline, tasks) in enumerate(stages):
        LocalPipelineExecutor(
            pipeline, tasks=tasks, workers=num_workers, logging_dir=f"{logs}/{number}"
        ).run()


def read_kept(folder: Path) -> list[int]:
    kept = []
    for path in sorted((folder / "kept").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            kept += [int(json.loads(line)["id"]) for line in file]
    return sorted(kept)


def tree_bytes() -> int:
    """Return the memory of this process and those it started; pages they share count once (PSS)."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it has ended meanwhile
            continue
    return total


def main() -> None:
    texts, folder, num_workers = (
        json.loads(Path(sys.argv[1]).read_text())["texts"],
        Path(sys.argv[2]),
        int(sys.argv[3]),
    )
    write_input(texts, folder / "input", num_workers)
    texts.clear()
    before, peak, done = tree_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.2):
            peak = max(peak, tree_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, cpu_start = time.perf_counter(), sum(os.times()[:4])
    dedupe(folder, num_workers)
    seconds, cpu_seconds = time.perf_counter() - start, sum(os.times()[:4]) - cpu_start
    done.set()
    watcher.join()
    result = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_bytes": peak - before,
        "kept": read_kept(folder),
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
