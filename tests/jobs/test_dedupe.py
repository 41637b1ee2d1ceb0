"""The phases of text dedupe over partitions, run in this process: how the corpus is cut does not matter."""

import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from datapipe.on_ray import Output, Step, _run_partition
from datapipe.spec import DedupeTextSpec
from datapipe.stages.dedupe_media import CLUSTERS
from jobs import dedupe
from jobs.spec import PrepareJob
from jobs.state import RunState
from schemas import document, shard
from tests import make, s3

STEPS = {"clean": "clean-1", "dedupe_media": "dedupe_media-1"}

Row = dict[str, Any]


class SerialEngine:
    """Runs the tasks of a phase one after the other, as a worker would."""

    def run_phase(
        self, step: Step, task: Callable[[Any], Output], arguments: Sequence[Any], phase: str = "partition"
    ) -> list[dict[str, Any]]:
        return [_run_partition(task, a, step.path, phase, index) for index, a in enumerate(arguments)]


def words(seed: int, count: int) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(3000)}" for _ in range(count))


def corpus() -> list[Row]:
    """40 alone, 40 in pairs that differ by a few words, 20 in pairs that differ by a picture."""
    rows = [make.document_row([make.text(words(i, 80))], f"alone{i}") for i in range(40)]
    for i in range(20):
        text = words(100 + i, 120)
        rows += [
            make.document_row([make.text(text)], f"long{i}"),
            make.document_row([make.text(" ".join(text.split()[:110]))], f"short{i}"),
        ]
    for i in range(10):
        for side in "ab":
            segments = [make.text(words(200 + i, 40)), make.picture_segment(f"{side}{i}")]
            rows.append(make.document_row(segments, f"shown{i}{side}"))
    return rows


def cut(rows: list[Row], rows_per_partition: int) -> list[list[Row]]:
    return [rows[start : start + rows_per_partition] for start in range(0, len(rows), rows_per_partition)]


def run(path: str | Path, partitions: list[list[Row]], clusters: pa.Table | None = None) -> tuple[str, Step]:
    """Run the step on these documents and media clusters, and return its folder and the step."""
    source, files = shard.join(str(path), "clean-1"), []
    for number, rows in enumerate(partitions):
        table = pa.Table.from_pylist(rows, schema=document.SCHEMA)
        files.append(shard.write_table(shard.join(source, shard.shard_name("documents", number)), table))
    shard.write_manifest(source, shard.Manifest("clean-1", "1", {}, [], 0, 0, {}, {}, files))
    media, clusters = shard.join(str(path), "dedupe_media-1"), clusters or CLUSTERS.empty_table()
    file = shard.write_table(shard.join(media, shard.shard_name("media_clusters", 0)), clusters)
    shard.write_manifest(media, shard.Manifest("dedupe_media-1", "1", {}, [], 0, 0, {}, {}, [file]))
    done: list[Step] = []

    def commit(step: Step, work: Callable[[], shard.Manifest]) -> None:
        work()
        done.append(step)

    state = RunState(SerialEngine(), str(path), STEPS, commit)  # type: ignore[arg-type]
    job = PrepareJob.model_construct(dedupe_text=DedupeTextSpec())  # type: ignore[call-arg]
    assert dedupe.dedupe_text_step(state, job, "clean") == "dedupe_text"
    return done[0].path, done[0]


def rows_of(step_path: str, table: str) -> list[Row]:
    return shard.read_step_table(step_path, table).to_pylist()


@pytest.mark.parametrize("rows_per_partition", [9, 40])
def test_any_partition_size_gives_the_same_rows_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_partition: int
) -> None:
    rows = corpus()
    whole, _ = run(tmp_path / "whole", [rows])
    # Small limits, so that a small corpus has several groups, batches and buckets too.
    monkeypatch.setattr(dedupe, "MIN_GROUP_BYTES", 20_000)
    monkeypatch.setattr(dedupe, "BATCH_ROWS", 7)
    monkeypatch.setattr(dedupe, "SHARED_KEYS", 300)
    parted, _ = run(tmp_path / "parted", cut(rows, rows_per_partition))
    assert len(list(Path(parted).glob("signatures-*.arrow"))) > 2
    assert len(list(Path(parted).glob("pairs-*.arrow"))) > 2
    for table in ("documents", "dropped"):
        assert rows_of(parted, table) == rows_of(whole, table)
    manifest = shard.read_manifest(parted)
    assert manifest.dropped == {"duplicate_near": 20} and manifest.metrics == {"clusters": 20}
    assert {shard.table_of(file.name) for file in manifest.files} == {"documents", "dropped"}
    assert sorted(row["uri"] for row in rows_of(parted, "dropped")) == sorted(f"short{i}" for i in range(20))


def test_media_clusters_of_an_earlier_step_say_which_pictures_are_equal(tmp_path: Path) -> None:
    clusters = pa.table(
        {
            "media_id": [f"{side}{i}" for i in range(10) for side in "ab"],
            "kind": ["image"] * 20,
            "cluster_id": [f"a{i}" for i in range(10) for _ in "ab"],
            "cluster_size": pa.array([2] * 20, pa.int32()),
        }
    )
    path, step = run(tmp_path, cut(corpus(), 30), clusters)
    assert shard.read_manifest(path).dropped == {"duplicate_exact": 10, "duplicate_near": 20}
    assert step.inputs == ("clean-1", "dedupe_media-1")


@pytest.mark.slow
def test_on_s3_the_same_documents_stay(tmp_path: Path) -> None:
    local, _ = run(tmp_path, cut(corpus(), 40))
    with s3.server() as bucket:
        remote, _ = run(f"{bucket}/run", cut(corpus(), 40))
        for table in ("documents", "dropped"):
            assert rows_of(remote, table) == rows_of(local, table)
    assert list(Path(tempfile.gettempdir()).glob("omniloom-*")) == []  # copies are gone


def test_partitions_without_documents_are_no_trouble(tmp_path: Path) -> None:
    path, _ = run(tmp_path / "none", [])
    assert shard.read_manifest(path).files == []
    long, short = corpus()[40:42]
    path, _ = run(tmp_path / "some", [[], [short], [], [long], []])
    assert [row["uri"] for row in rows_of(path, "documents")] == ["long0"]
    assert [row["uri"] for row in rows_of(path, "dropped")] == ["short0"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells what is resident")
def test_of_mapped_tables_no_more_is_resident_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedupe, "WARM_BYTES", 5_000_000)
    values = pa.table({"value": np.arange(250_000)})  # 2 MB
    for number in range(8):
        shard.write_table(str(tmp_path / shard.shard_name("signatures", number)), values)

    def resident_bytes() -> int:
        maps = psutil.Process().memory_maps(grouped=False)
        return sum(one.rss for one in maps if one.path.startswith(str(tmp_path)))

    with dedupe._MappedTables(str(tmp_path), "signatures", 8) as tables:
        for index in [*range(8), 0, 7, 3]:
            assert tables[index]["value"].to_numpy().sum() == sum(range(250_000))
            assert 1_900_000 < resident_bytes() < 5_500_000
    assert resident_bytes() == 0
