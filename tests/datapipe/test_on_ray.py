"""The engine on a real Ray: same bytes for any number of workers, resume after SIGKILL, errors that keep
their words.
"""

import functools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest
import ray

from datapipe.errors import ClusterUnreachable, DatapipeError, TooManyDropped, WorkerLost
from datapipe.on_ray import Engine, finish
from schemas import shard
from tests.datapipe import ray_tasks


@pytest.fixture(scope="module")
def engine():
    with Engine(2, show_progress=False) as started:
        yield started


def contents(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def run(engine, root, task=ray_tasks.write_documents, num_partitions=5):
    made = ray_tasks.step(str(root))
    return made, finish(made, engine.run_phase(made, task, range(num_partitions)), "documents")


def test_a_step_counts_its_rows_and_commits_last(engine, tmp_path):
    made, manifest = run(engine, tmp_path)
    assert (manifest.rows_in, manifest.rows_out, manifest.dropped, manifest.metrics) == (
        20,
        15,
        {"first": 5},
        {"pages": 5},
    )
    assert shard.read_manifest(made.path) == manifest
    shard.verify(made.path, manifest.files)
    texts = [s[0]["text"] for s in shard.read_step_table(made.path, "documents")["segments"].to_pylist()]
    assert texts == [f"page {n} {i}" for n in range(5) for i in range(1, 4)]


def test_committed_partitions_are_skipped_and_missing_ones_made_again(engine, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    task = functools.partial(ray_tasks.write_slowly, str(notes))
    made, _ = run(engine, tmp_path / "steps", task, 3)
    before = contents(made.path)
    os.unlink(shard.join(made.path, "partition-00001.json"))
    os.unlink(shard.join(made.path, "documents-00002.arrow"))
    os.unlink(shard.join(made.path, "manifest.json"))
    run(engine, tmp_path / "steps", task, 3)
    assert contents(made.path) == before
    assert sorted(name.split("-")[1] for name in os.listdir(notes)) == ["0", "1", "1", "2", "2"]


def test_a_finished_step_needs_no_ray(engine, tmp_path):
    made, manifest = run(engine, tmp_path)
    other = Engine(1, show_progress=False)
    assert made.is_finished()
    assert finish(made, other.run_phase(made, ray_tasks.refuse, range(5)), "documents") == manifest
    assert not other._started


def test_a_killed_worker_is_replaced(engine, tmp_path):
    _, manifest = run(engine, tmp_path / "steps", functools.partial(ray_tasks.die_once, str(tmp_path)))
    assert (tmp_path / "died").exists()
    assert manifest == run(engine, tmp_path / "undisturbed")[1]


def test_the_end_of_rays_own_process_is_said_and_the_step_goes_on_after_it(engine, tmp_path):
    message = r"Ray's own process on this machine ended at partition [012]; .* goes on from there"
    with pytest.raises(WorkerLost, match=message):
        run(engine, tmp_path, ray_tasks.end_ray, 3)
    engine.stop()
    assert run(engine, tmp_path, num_partitions=3)[1].rows_out == 9


def test_a_task_error_comes_back_as_it_was_and_finished_partitions_stay(engine, tmp_path):
    made = ray_tasks.step(str(tmp_path))
    first = shard.join(made.path, "partition-00000.json")
    with pytest.raises(DatapipeError, match="partition 2 cannot be read") as caught:
        run(engine, tmp_path, functools.partial(ray_tasks.refuse, once_there=first), 8)
    assert str(caught.value) == "partition 2 cannot be read"
    assert not made.is_finished()
    assert shard.exists(first)
    assert run(engine, tmp_path, num_partitions=8)[1].rows_out == 24


def test_a_cluster_that_does_not_answer_is_said_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterUnreachable, match=f"address: nothing answers at '{address}'"):
            Engine(address=address).start()


def test_a_step_that_drops_too_much_is_not_committed(engine, tmp_path):
    made = ray_tasks.step(str(tmp_path))
    records = engine.run_phase(made, ray_tasks.write_documents, range(2))
    with pytest.raises(
        TooManyDropped, match=r"make: 2 of 8 documents dropped \({'first': 2}\), more than max_drop_frac 0.2"
    ):
        finish(made, records, "documents", max_drop_frac=0.2)
    assert not made.is_finished()


def test_a_run_killed_in_the_middle_goes_on_and_ends_with_the_same_bytes_for_one_worker(engine, tmp_path):
    engine.stop()
    notes = tmp_path / "notes"
    notes.mkdir()
    made = ray_tasks.step(str(tmp_path / "steps"))
    command = [sys.executable, "-m", "tests.datapipe.ray_tasks", str(tmp_path / "steps"), str(notes)]
    process = subprocess.Popen(command)
    while not shard.exists(shard.join(made.path, "partition-00003.json")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    committed = len(list(pathlib.Path(made.path).glob("partition-*.json")))
    assert 0 < committed < 12 and not made.is_finished()
    assert not ray.is_initialized()
    subprocess.run(command, check=True)
    ran = [name.split("-")[1] for name in os.listdir(notes)]
    assert len(set(ran)) == 12 and len(ran) < 24  # not everything was done again
    with Engine(1, show_progress=False) as alone:
        once, _ = run(alone, tmp_path / "alone", num_partitions=12)
    assert contents(once.path) == contents(made.path)
