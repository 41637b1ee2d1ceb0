"""The dedupe_media step of a prepare job, phase by phase.

Owns how hashes are collected, how pairs are shared out to be compared, and how a compared medium is found in
the media shards; what a copy is, the stage says.
"""

import functools
from typing import Any

import pyarrow as pa

from datapipe.on_ray import Output, finish
from datapipe.spec import DedupeMediaSpec
from datapipe.stages import dedupe_media, media_candidates
from jobs.spec import PrepareJob
from jobs.state import RunState, partition_numbers, read_batches
from schemas import media, shard

OPEN_SHARDS = 16


def dedupe_media_step(run: RunState, job: PrepareJob) -> None:
    """Find copies among the media of `ingest`: the table `media_clusters` of the step `dedupe_media`."""
    spec = job.dedupe_media
    step = run.step("dedupe_media", dedupe_media.VERSION, spec, run.id_of("ingest", "dedupe_media"))
    media_path = run.path_of("ingest", "dedupe_media")

    def work() -> shard.Manifest:
        partitions = partition_numbers(media_path, "media")
        run.engine.run_phase(step, functools.partial(_hashes, media_path), partitions, "hashes")
        candidates = run.engine.run_phase(
            step, functools.partial(_candidates, spec, step.path), [len(partitions)], "candidates"
        )
        first = _slices(candidates[0], spec)
        compare = functools.partial(_same, spec, media_path, step.path)
        run.engine.run_phase(step, functools.partial(compare, "pairs", "same"), first, "compare")
        leaders = run.engine.run_phase(
            step, functools.partial(_leaders, spec, step.path), [len(first)], "leaders"
        )
        second = _slices(leaders[0], spec)
        run.engine.run_phase(step, functools.partial(compare, "checks", "checked"), second, "check")
        sizes = [(len(partitions), len(first), len(second))]
        records = run.engine.run_phase(step, functools.partial(_clusters, step.path), sizes)
        return finish(step, [{**candidates[0], "files": []}, *records], "media_clusters")

    run.commit(step, work)


def _hashes(media_path: str, index: int) -> Output:
    batches = [
        dedupe_media.hashes(batch, index, number)
        for number, batch in enumerate(read_batches(media_path, "media", index))
    ]
    return Output({"hashes": pa.Table.from_batches(batches)})


def _candidates(spec: DedupeMediaSpec, step_path: str, num_partitions: int) -> Output:
    hashes = _all(step_path, "hashes", num_partitions, dedupe_media.HASHES)
    nodes = dedupe_media.nodes(hashes)
    frames = dedupe_media.frames(hashes, nodes)
    pairs, counts = media_candidates.candidates(nodes, frames, spec)
    return Output({"nodes": nodes, "frames": frames, "pairs": pairs}, metrics=counts)


def _slices(record: dict[str, Any], spec: DedupeMediaSpec) -> list[tuple[int, int, int]]:
    """Return number, start and length of the parts of a table of pairs, from the record of who wrote it."""
    num_pairs = next(
        file["num_rows"] for file in record["files"] if shard.table_of(file["name"]) in ("pairs", "checks")
    )
    starts = range(0, num_pairs, spec.pairs_per_task)
    return [
        (number, start, min(spec.pairs_per_task, num_pairs - start)) for number, start in enumerate(starts)
    ]


def _same(
    spec: DedupeMediaSpec, media_path: str, step_path: str, pairs: str, name: str, part: tuple[int, int, int]
) -> Output:
    _, start, length = part
    nodes, frames, table = (_read(step_path, table) for table in ("nodes", "frames", pairs))
    chosen = table.slice(start, length)
    found = dedupe_media.same(chosen, nodes, frames, _Shards(media_path).load, spec)
    return Output({name: found})


def _leaders(spec: DedupeMediaSpec, step_path: str, num_parts: int) -> Output:
    nodes, frames = _read(step_path, "nodes"), _read(step_path, "frames")
    same = _all(step_path, "same", num_parts, dedupe_media.SAME)
    return Output({"checks": dedupe_media.leaders(nodes, frames, same, spec)})


def _clusters(step_path: str, sizes: tuple[int, int, int]) -> Output:
    hashes = _all(step_path, "hashes", sizes[0], dedupe_media.HASHES)
    nodes = _read(step_path, "nodes")
    same = [_all(step_path, name, n, dedupe_media.SAME) for name, n in zip(("same", "checked"), sizes[1:])]
    compared = pa.concat_tables(same)
    clusters = dedupe_media.cluster(hashes, nodes, compared)
    counts = {
        "media": len(set(hashes["media_id"].to_pylist())),
        "compared": compared.num_rows,
        "same": sum(compared["is_same"].to_pylist()),
        "clusters": len(set(clusters["cluster_id"].to_pylist())),
    }
    return Output({"media_clusters": clusters}, metrics=counts)  # no row leaves here


class _Shards:
    """The bytes of single media, read from the shards of `ingest` without reading the rest."""

    def __init__(self, media_path: str) -> None:
        self._media_path = media_path
        self._reader = functools.lru_cache(OPEN_SHARDS)(self._open)

    def load(self, partition: int, batch: int, row: int) -> bytes:
        """Return the bytes of a row of a record batch of a partition."""
        return self._reader(partition).get_batch(batch).column(0)[row].as_py()

    def _open(self, partition: int) -> pa.ipc.RecordBatchFileReader:
        path = shard.join(self._media_path, shard.shard_name("media", partition))
        options = pa.ipc.IpcReadOptions(included_fields=[media.SCHEMA.get_field_index("bytes")])
        return pa.ipc.open_file(shard.open_buffer(path), options=options)


def _read(step_path: str, table: str) -> pa.Table:
    return shard.read_table(shard.join(step_path, shard.shard_name(table, 0)))


def _all(step_path: str, table: str, num_parts: int, schema: pa.Schema) -> pa.Table:
    names = [shard.join(step_path, shard.shard_name(table, index)) for index in range(num_parts)]
    return pa.concat_tables([schema.empty_table(), *map(shard.read_table, names)])
