"""The phases of mask_repeats over partitions, run in this process: how the corpus is cut does not matter."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datapipe.on_ray import Output, Step, _run_partition
from datapipe.spec import MaskRepeatsSpec
from jobs import mask
from jobs.spec import PrepareJob
from jobs.state import RunState
from schemas import document, shard
from tests import make
from tests.datapipe.test_mask_repeats import prose, site

Row = dict[str, Any]


class SerialEngine:
    """Runs the tasks of a phase one after the other, as a worker would."""

    def run_phase(
        self, step: Step, task: Callable[[Any], Output], arguments: Sequence[Any], phase: str = "partition"
    ) -> list[dict[str, Any]]:
        return [_run_partition(task, a, step.path, phase, index) for index, a in enumerate(arguments)]


def run(path: Path, rows: list[Row], rows_per_partition: int) -> str:
    """Run the step on these documents, and return its folder."""
    parts = [rows[i : i + rows_per_partition] for i in range(0, len(rows), rows_per_partition)]
    tables = [pa.Table.from_pylist(part, schema=document.SCHEMA) for part in parts]
    names = [str(path / "text-1" / shard.shard_name("documents", i)) for i in range(len(parts))]
    files = [shard.write_table(name, table) for name, table in zip(names, tables, strict=True)]
    shard.write_manifest(str(path / "text-1"), shard.Manifest("text-1", "1", {}, [], 0, 0, {}, {}, files))
    done: list[Step] = []

    def commit(step: Step, work: Callable[[], shard.Manifest]) -> None:
        work()
        done.append(step)

    state = RunState(SerialEngine(), str(path), {"mask_text": "text-1"}, commit)  # type: ignore[arg-type]
    job = PrepareJob.model_construct(mask_repeats=MaskRepeatsSpec(min_documents=5))  # type: ignore[call-arg]
    assert mask.mask_repeats_step(state, job, "mask_text") == "mask_repeats"
    return done[0].path


@pytest.mark.parametrize("rows_per_partition", [1, 4])
def test_any_partition_size_gives_the_same_rows_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_partition: int
) -> None:
    rows = site(count=20)
    for row in rows[3:6]:
        row["segments"][5]["text"] = prose(7)
    whole = run(tmp_path / "whole", rows, 100)
    # Small limits, so that a small corpus has several groups and buckets too.
    monkeypatch.setattr(mask, "GROUP_PARTITIONS", 2)
    monkeypatch.setattr(mask, "BUCKET_BYTES", 2000)
    monkeypatch.setattr(mask, "MAX_PENDING_ROWS", 10)
    parted = run(tmp_path / "parted", rows, rows_per_partition)
    assert (
        len(list(Path(parted).glob("repeated-*.arrow"))) > 2 < len(list(Path(parted).glob("counts-*.arrow")))
    )
    found = shard.read_step_table(parted, "documents").to_pylist()
    assert found == shard.read_step_table(whole, "documents").to_pylist()
    assert [row["doc_id"] for row in found] == [row["doc_id"] for row in rows]
    metrics = shard.read_manifest(parted).metrics
    assert metrics == {"masks_boilerplate": 80, "masks_duplicate_paragraph": 2}


def test_a_partition_reads_what_is_repeated_in_its_group_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a partition holds in memory does not grow with the corpus."""
    monkeypatch.setattr(mask, "GROUP_PARTITIONS", 2)
    monkeypatch.setattr(mask, "BUCKET_BYTES", 20_000)
    held = []
    for count in (40, 160):  # every paragraph stands in two documents of one group
        rows = [
            make.document_row([make.text(prose(number // 2 * 9 + n)) for n in range(5)], f"{number}")
            for number in range(count)
        ]
        path = run(tmp_path / str(count), rows, 4)
        num_buckets = len(list(Path(path).glob("repeated-*.arrow")))
        groups = range(len(list(Path(path).glob("counts-*.arrow"))))
        found = [mask._repeated_in(path, ["repeated"], num_buckets, group) for group in groups]
        held.append(max(table.num_rows for table in found))
        assert sum(table.num_rows for table in found) == 5 * count // 2
        metrics = shard.read_manifest(path).metrics
        assert metrics == {"masks_duplicate_paragraph": 5 * count // 2}
    assert held == [20, 20]
