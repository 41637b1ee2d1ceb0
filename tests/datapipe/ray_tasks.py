"""Tasks for the tests of the engine, and the program that a test kills in the middle."""

import functools
import os
import signal
import sys
import time

import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.on_ray import Engine, Output, Step, finish
from schemas import document
from tests import make


def write_documents(number: int) -> Output:
    """Four documents, one of which is dropped."""
    rows = [make.document_row([make.text(f"page {number} {i}")], uri=f"{number}-{i}") for i in range(4)]
    table = pa.Table.from_pylist(rows, schema=document.SCHEMA)
    return Output(
        {"documents": table.slice(1), "dropped": table.slice(0, 1)},
        rows_in=4,
        dropped={"first": 1},
        metrics={"pages": 1},
    )


def write_slowly(folder: str, number: int) -> Output:
    """As above, after leaving a note that this partition ran."""
    with open(os.path.join(folder, f"ran-{number}-{os.getpid()}-{time.monotonic_ns()}"), "w"):
        pass
    time.sleep(0.3)
    return write_documents(number)


def die_once(folder: str, number: int) -> Output:
    """Kill the worker the first time partition 1 runs."""
    note = os.path.join(folder, "died")
    if number == 1 and not os.path.exists(note):
        with open(note, "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return write_documents(number)


def end_ray(number: int) -> Output:
    """At partition 1, kill Ray's own process on this machine, the parent of its workers, and the worker."""
    if number == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return write_documents(number)


def refuse(number: int, once_there: str | None = None) -> Output:
    """Fail on one partition with an error of ours, once a file is there."""
    if number == 2:
        while once_there is not None and not os.path.exists(once_there):
            time.sleep(0.01)
        raise DatapipeError("partition 2 cannot be read")
    return write_documents(number)


def step(root: str, name: str = "make") -> Step:
    """The step under test."""
    return Step(name, "1", {"documents": 4}, ("input",), root)


if __name__ == "__main__":
    steps_root, notes = sys.argv[1:]
    with Engine(2, show_progress=False) as engine:
        made = step(steps_root)
        finish(made, engine.run_phase(made, functools.partial(write_slowly, notes), range(12)), "documents")
