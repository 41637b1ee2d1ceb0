"""The guard: whatever a call does, the others have their values, and the one says why it has none."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from datapipe import guard as guards
from datapipe.guard import Failure, Guard, Unguarded
from tests.datapipe import guarded

MEMORY_BYTES = 512 * 1024**2


@pytest.fixture(scope="module")
def guard() -> Iterator[Guard]:
    with Guard(60.0, MEMORY_BYTES) as made:
        yield made


@pytest.fixture(scope="module")
def hasty() -> Iterator[Guard]:
    with Guard(0.4, MEMORY_BYTES) as made:
        yield made


def test_values_come_in_order_also_when_there_are_more_than_a_batch(guard: Guard) -> None:
    assert guard.each(guarded.double, ((n,) for n in range(300))) == [2 * n for n in range(300)]
    assert guard.each(guarded.double, []) == []


@pytest.mark.parametrize(
    ("how", "failure"),
    [
        ("segfault", Failure("DecoderCrashed", "its process ended by SIGSEGV")),
        ("abort", Failure("DecoderCrashed", "its process ended by SIGABRT")),
        ("killed", Failure("DecoderCrashed", "its process ended by SIGKILL")),
        ("exit", Failure("DecoderCrashed", "its process ended by exit(3)")),
        ("memory", Failure("MemoryLimitExceeded", "it needs more memory than memory_limit_bytes allows")),
        (
            "memory in C",
            Failure("MemoryLimitExceeded", "it needs more memory than memory_limit_bytes allows"),
        ),
        (
            "memory of a library",
            Failure("MemoryLimitExceeded", "it needs more memory than memory_limit_bytes allows"),
        ),
        ("error", Failure("ValueError", "no good: <object object>")),
    ],
)
def test_what_fails_says_why_and_the_others_have_their_values(
    guard: Guard, how: str, failure: Failure
) -> None:
    calls = [("first",), ("second",), (how,), ("third",), ("fourth",)]
    assert guard.each(guarded.misbehave, calls) == ["first", "second", failure, "third", "fourth"]


@pytest.mark.parametrize("how", ["loop", "loop in C"])
def test_what_takes_too_long_is_given_up(hasty: Guard, how: str) -> None:
    late = Failure("TimeLimitExceeded", "it takes longer than 0.4 s")
    assert hasty.each(guarded.misbehave, [("first",), (how,), ("second",)]) == ["first", late, "second"]


def test_several_lost_calls_in_a_batch_are_each_told(hasty: Guard) -> None:
    calls = [("segfault",), ("a",), ("abort",), ("loop in C",), ("b",), ("error",), ("exit",)]
    found = [v if isinstance(v, str) else v.error_class for v in hasty.each(guarded.misbehave, calls)]
    assert found == [
        *("DecoderCrashed", "a", "DecoderCrashed", "TimeLimitExceeded", "b", "ValueError", "DecoderCrashed")
    ]


def test_a_value_that_does_not_pickle_is_a_failure(guard: Guard) -> None:
    (found,) = guard.each(guarded.misbehave, [("unpicklable",)])
    assert isinstance(found, Failure)


def test_a_call_that_does_not_pickle_is_a_mistake_of_the_caller(guard: Guard) -> None:
    with pytest.raises(Exception, match="pickle"):
        guard.each(lambda: None, [()])
    assert guard.each(guarded.double, [(4,)]) == [8]


def test_a_stream_keeps_what_came_before_its_end(guard: Guard) -> None:
    assert guard.collect(guarded.numbers, "", "", "") == [0, 1, 2]
    assert guard.collect(guarded.numbers, "", "error") == [
        0,
        Failure("ValueError", "no good: <object object>"),
    ]
    assert guard.collect(guarded.numbers, "", "", "segfault", "") == [
        *(0, 1, Failure("DecoderCrashed", "its process ended by SIGSEGV"))
    ]


def test_the_time_limit_is_for_each_call_and_each_value(hasty: Guard) -> None:
    assert hasty.each(guarded.work, [(0.15,)] * 6) == [0.15] * 6
    assert hasty.each(guarded.work, [(0.6,)], time_limit_s=30) == [0.6]
    assert hasty.collect(guarded.numbers, "work", "work", "work", "") == ["work", "work", "work", 3]
    assert hasty.collect(guarded.numbers, "long work", "", first_limit_s=30) == ["long work", 1]
    assert hasty.collect(guarded.numbers, "", "loop")[-1].error_class == "TimeLimitExceeded"


def test_waiting_counts_less_than_working_but_is_not_endless(hasty: Guard) -> None:
    assert hasty.each(time.sleep, [(0.8,)]) == [None]
    assert hasty.each(time.sleep, [(30,)]) == [Failure("TimeLimitExceeded", "it takes longer than 0.4 s")]


def test_more_bytes_have_more_time_and_do_not_give_it_to_others_of_their_batch(hasty: Guard) -> None:
    large = bytes(16 * 1024**2)
    found = hasty.each(guarded.work, [(0.6, b"small"), (0.6, large)])
    assert found == [Failure("TimeLimitExceeded", "it takes longer than 0.4 s"), 0.6]
    assert guards.limit_s(60, 1024**3) == 65 * 60


def test_long_bytes_go_both_ways_whole_and_in_one_copy(guard: Guard) -> None:
    sizes = [0, 10, 100_000, 20_000_000, 65_536]
    given = [(bytes(size) + b"0123456789",) for size in sizes]
    assert guard.each(guarded.length, given) == [(size + 10, b"0123456789") for size in sizes]
    for size, found in zip(sizes, guard.each(guarded.grow, [(size,) for size in sizes]), strict=True):
        assert found == {"data": bytes([7]) * size}
    child = psutil.Process(guard._running(guarded.length).process.pid)
    guard.each(guarded.length, [(bytes(1 << 28),)])
    held = child.memory_info().rss
    assert held < MEMORY_BYTES and guard._child is not None
    assert os.fstat(guard._child.channel.outgoing).st_size < 1 << 25  # given back


def test_what_a_call_is_given_and_returns_is_not_what_it_allocates() -> None:
    with Guard(60, 64 * 1024**2) as small:
        assert small.each(guarded.length, [(bytes(100 * 1024**2),)])[0][0] == 100 * 1024**2
        assert len(small.each(guarded.grow, [(50 * 1024**2,)])[0]["data"]) == 50 * 1024**2
        assert small.each(guarded.grow, [(70 * 1024**2,)])[0].error_class == "MemoryLimitExceeded"


def test_a_child_that_leaks_is_replaced(guard: Guard) -> None:
    (first,) = guard.each(guarded.leak, [(1 << 20,)])
    assert guard.each(guarded.leak, [(200 * 1024**2,)]) == [first]
    (other,) = guard.each(guarded.process_id, [()])
    assert other != first
    assert guard.each(guarded.process_id, [()]) == [other]


def test_a_child_that_was_killed_while_idle_is_replaced_and_nothing_blamed(guard: Guard) -> None:
    (first,) = guard.each(guarded.process_id, [()])
    os.kill(first, signal.SIGKILL)
    time.sleep(0.1)
    (other,) = guard.each(guarded.process_id, [()])
    assert other not in (first, os.getpid())


def test_a_child_that_is_killed_before_its_call_begins_is_replaced_and_nothing_blamed(guard: Guard) -> None:
    (child,) = guard.each(guarded.process_id, [()])
    assert guard.each(guarded.flushed, [(guarded.KillsWhenSent(child), 1), (None, 2)]) == [1, 2]
    (child,) = guard.each(guarded.process_id, [()])
    first, second = guard.collect(guarded.numbers, "", guarded.KillsWhenSent(child))
    assert first == 0 and isinstance(second, guarded.KillsWhenSent)


def test_a_child_that_is_killed_between_two_calls_of_a_batch_is_replaced_and_nothing_blamed(
    guard: Guard,
) -> None:
    (child,) = guard.each(guarded.process_id, [()])
    deadly = guarded.KillsWhenDropped(os.getpid())
    calls = [(None, 1), (deadly, 2), (None, 3), (None, 4)]
    assert guard.each(guarded.flushed, calls) == [1, 2, 3, 4]
    assert guard.each(guarded.process_id, [()]) != [child]


def test_an_idle_child_leaves_and_the_next_call_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with Guard(30, MEMORY_BYTES, idle_limit_s=0.1) as guard:
        (first,) = guard.each(guarded.process_id, [()])
        child = guard._child
        assert child is not None and child.process.wait(10) == 75
        monkeypatch.setattr(child, "is_usable", lambda: True)  # as if it left just when the call came
        (other,) = guard.each(guarded.process_id, [()])
        assert other != first
        (found,) = guard.each(os._exit, [(75,)])  # a library that leaves alike is not called for ever
        assert found == Failure("DecoderCrashed", "its process ended by exit(75)")


def test_new_credentials_for_s3_reach_the_child(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert guard.each(os.getenv, [("AWS_ENDPOINT_URL",)]) == ["http://127.0.0.1:1"]


def test_threads_share_one_child(guard: Guard) -> None:
    found: dict[int, list[int]] = {}

    def work(start: int) -> None:
        found[start] = guard.each(guarded.double, [(start + n,) for n in range(100)])

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {start: [2 * (start + n) for n in range(100)] for start in (0, 1000, 2000)}


def test_without_a_guard_the_values_are_the_same(guard: Guard) -> None:
    calls = [("a",), ("error",), ("b",)]
    assert Unguarded().each(guarded.misbehave, calls) == guard.each(guarded.misbehave, calls)
    assert Unguarded().collect(guarded.numbers, "", "error") == guard.collect(guarded.numbers, "", "error")


def test_a_script_without_a_main_guard_can_use_it_and_leaves_no_child(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        print("once")
        from datapipe import guard
        from tests.datapipe import guarded
        print(guard.shared(30, 2**29).each(guarded.process_id, [()])[0])
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.count("once") == 1
    assert not psutil.pid_exists(int(done.stdout.split()[-1]))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
def test_a_busy_child_ends_with_its_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from datapipe import guard
        from tests.datapipe import guarded
        shared = guard.shared(600, 2**29)
        print(shared.each(guarded.process_id, [()])[0], flush=True)
        shared.each(guarded.misbehave, [("loop",)])
        """)
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    child.wait(10)


def test_a_forked_process_has_a_child_of_its_own(guard: Guard) -> None:
    (ours,) = guard.each(guarded.process_id, [()])
    reading, writing = os.pipe()
    if (forked := os.fork()) == 0:
        os.write(writing, str(guard.each(guarded.process_id, [()])[0]).encode())
        guard.close()
        os._exit(0)
    os.waitpid(forked, 0)
    assert int(os.read(reading, 100)) != ours
    assert guard.each(guarded.process_id, [()]) == [ours]


def test_the_shared_guard_is_one_for_the_same_limits() -> None:
    first = guards.shared(30, MEMORY_BYTES)
    assert guards.shared(30, MEMORY_BYTES) is first
    assert guards.shared(31, MEMORY_BYTES) is not first


@pytest.mark.slow
def test_workers_of_ray_have_a_child_each_which_ends_with_them(tmp_path: Path) -> None:
    from datapipe.on_ray import Engine
    from tests.datapipe import ray_tasks

    with Engine(2, show_progress=False) as engine:
        step = ray_tasks.step(str(tmp_path))
        records = engine.run_phase(step, guarded.in_a_worker, range(6))
        found = [record["metrics"] for record in records]
        assert all(one["values"] == ["2", "DecoderCrashed", "TimeLimitExceeded", "4"] for one in found)
        workers = {one["worker"]: one["child"] for one in found}
        assert len(set(workers.values())) == len(workers)
        children = {worker: psutil.Process(child) for worker, child in workers.items()}
        killed = next(iter(workers))
        psutil.Process(killed).kill()
        children[killed].wait(30)
    assert not psutil.wait_procs(children.values(), 30)[1]
