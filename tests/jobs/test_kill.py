"""SIGKILL in every phase of every data step: of the driver, and of the workers. Nothing is lost, doubled or
torn: the shards end with the bytes of a run that nobody disturbed, for 1, 2 and 3 workers.
"""

import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from schemas import shard
from tests.jobs.make_corpus import write_corpus
from tests.jobs.test_cluster import manifests, spec

pytestmark = pytest.mark.slow


def start(folder: pathlib.Path, output: str, num_workers: int) -> subprocess.Popen[str]:
    overrides = [f"output={folder / output}", f"num_workers={num_workers}"]
    command = [sys.executable, "-m", "jobs.cli", "run", str(folder / "spec.yaml")]
    return subprocess.Popen(
        [*command, *(part for override in overrides for part in ("--set", override))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_corpus(folder / "corpus")
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec(str(folder / "corpus"), str(folder / "alone"))))
    finish(start(folder, "alone", 1))
    return folder


def phases(folder: pathlib.Path) -> list[str]:
    """The first marker of each phase of each step, in the order in which they were written."""
    markers = (folder / "alone" / "steps").rglob("*-00000.json")
    in_order = sorted(markers, key=lambda path: path.stat().st_mtime_ns)
    return [str(path.relative_to(folder / "alone")) for path in in_order]


def wait_for(path: pathlib.Path, process: subprocess.Popen[str]) -> bool:
    """Whether the file came before the process ended."""
    while not path.exists():
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    return True


def test_a_driver_killed_in_every_phase_ends_with_the_same_bytes(undisturbed):
    killed = []
    for marker in phases(undisturbed):
        process = start(undisturbed, "driver", 2)
        if wait_for(undisturbed / "driver" / marker, process):
            process.send_signal(signal.SIGKILL)
            killed.append(marker)
        process.communicate()
    assert len(killed) >= 8, killed
    finish(start(undisturbed, "driver", 2))
    assert manifests(str(undisturbed / "driver")) == manifests(str(undisturbed / "alone"))
    for path in shard.read_json(str(undisturbed / "driver" / "run.json"))["steps"].values():
        step = str(undisturbed / "driver" / path)
        shard.verify(step, shard.read_manifest(step).files)


def test_workers_killed_in_every_phase_are_replaced(undisturbed):
    process = start(undisturbed, "workers", 3)
    driver, killed = psutil.Process(process.pid), 0
    for marker in phases(undisturbed):
        if not wait_for(undisturbed / "workers" / marker, process):
            break
        busy = [child for child in driver.children(recursive=True) if is_worker(child)]
        if busy:
            busy[0].kill()
            killed += 1
    finish(process)
    assert killed >= 4
    assert manifests(str(undisturbed / "workers")) == manifests(str(undisturbed / "alone"))


def is_worker(process: psutil.Process) -> bool:
    """Whether it is one of Ray's workers, not an agent of Ray's, without which the node ends."""
    try:
        return any(part.startswith("ray::") and "Agent" not in part for part in process.cmdline()[:1])
    except psutil.Error:
        return False
