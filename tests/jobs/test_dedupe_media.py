"""The phases of media dedupe over shards, run in this process: how media are cut does not matter."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datapipe.on_ray import Step
from datapipe.spec import DedupeMediaSpec
from jobs.dedupe_media import dedupe_media_step
from jobs.spec import PrepareJob
from jobs.state import RunState
from schemas import media, shard
from tests import s3
from tests.datapipe.test_dedupe_media import POOL
from tests.jobs.test_dedupe import SerialEngine

Row = dict[str, Any]


def run(path: str, partitions: list[list[Row]], pairs_per_task: int = 256) -> Step:
    """Run the step on these media, and return it."""
    source, files = shard.join(path, "ingest-1"), []
    for number, rows in enumerate(partitions):
        table = pa.Table.from_pylist(rows, schema=media.SCHEMA)
        files.append(shard.write_table(shard.join(source, shard.shard_name("media", number)), table))
    shard.write_manifest(source, shard.Manifest("ingest-1", "1", {}, [], 0, 0, {}, {}, files))
    done: list[Step] = []

    def commit(step: Step, work: Any) -> None:
        work()
        done.append(step)

    state = RunState(SerialEngine(), path, {"ingest": "ingest-1"}, commit)  # type: ignore[arg-type]
    spec = DedupeMediaSpec(pairs_per_task=pairs_per_task)
    dedupe_media_step(state, PrepareJob.model_construct(dedupe_media=spec))  # type: ignore[call-arg]
    return done[0]


def clusters(step: Step) -> bytes:
    with shard.open_buffer(shard.join(step.path, shard.shard_name("media_clusters", 0))) as source:
        return source.read()


def joined(parts: list[list[Row]]) -> list[Row]:
    return [row for part in parts for row in part]


def test_any_cut_of_media_and_of_pairs_gives_the_same_bytes(tmp_path: Path) -> None:
    whole = run(str(tmp_path / "whole"), [joined(POOL)])
    table = shard.read_step_table(whole.path, "media_clusters")
    assert sorted(table["cluster_size"].to_pylist()) == [2, 2, 2, 2, 4, 4, 4, 4]
    manifest = shard.read_manifest(whole.path)
    assert manifest.metrics["clusters"] == 3 and manifest.rows_out == 8
    assert manifest.metrics["pictures_in_crowds"] == manifest.metrics["frames_in_crowds"] == 0
    for number, (size, pairs_per_task) in enumerate([(1, 1), (4, 2)]):
        cut = [joined(POOL[start : start + size]) for start in range(0, len(POOL), size)]
        parted = run(str(tmp_path / str(number)), cut, pairs_per_task)
        assert clusters(parted) == clusters(whole)


def test_a_corpus_without_media_has_no_clusters(tmp_path: Path) -> None:
    step = run(str(tmp_path), [[], []])
    assert shard.read_step_table(step.path, "media_clusters").num_rows == 0


def test_media_are_found_by_row_in_large_shards(tmp_path: Path) -> None:
    filler = [{**POOL[7][0], "media_id": f"broken {n}", "bytes": None} for n in range(150)]
    step = run(str(tmp_path), [[*POOL[4], *filler, *POOL[5]]])
    assert shard.read_step_table(step.path, "media_clusters").num_rows == 2


@pytest.mark.slow
def test_media_on_s3_are_compared_there() -> None:
    with s3.server() as bucket:
        step = run(f"{bucket}/run", [joined(POOL[:3]), joined(POOL[3:])])
        assert shard.read_step_table(step.path, "media_clusters").num_rows == 8
