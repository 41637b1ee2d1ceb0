"""The ingest step over partitions: they are cut by bytes, and the number of workers does not matter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datapipe.on_ray import Engine, Step
from jobs.ingest import ingest_step
from jobs.spec import PrepareJob
from jobs.state import RunState
from schemas import shard
from tests import make


def ingested(corpus: Path, output: Path, num_workers: int, **limits: Any) -> tuple[str, dict[str, int]]:
    """Ingest a folder; return the manifest without its place, and how many documents each partition has."""
    done: list[Step] = []

    def commit(step: Step, work: Callable[[], shard.Manifest]) -> None:
        work()
        done.append(step)

    job = PrepareJob.model_validate(
        {"sources": [{"path": str(corpus), "standalone_media": True}], "ingest": limits}
    )
    with Engine(num_workers, show_progress=False) as engine:
        ingest_step(RunState(engine, str(output), {}, commit), job)
    manifest = shard.read_manifest(done[0].path)
    rows = {file.name: file.num_rows for file in manifest.files if shard.table_of(file.name) == "documents"}
    return repr(manifest), rows


@pytest.mark.slow
def test_partitions_cut_by_bytes_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    pictures = {f"p{n}.png": make.picture(64, 64, seed=n) for n in range(9)}
    pages = {f"{n}.md": f"Page {n}\n\n![](p{n}.png)" for n in range(6)}
    corpus = tmp_path / "corpus"
    make.folder(corpus, {**pictures, **pages})
    max_bytes = 2 * max(map(len, pictures.values())) + 100
    found = [
        ingested(corpus, tmp_path / str(num_workers), num_workers, bytes_per_partition=max_bytes)
        for num_workers in (1, 2, 3)
    ]
    assert found[0] == found[1] == found[2]
    assert list(found[0][1].values()) == [2, 2, 2, 2, 1]
