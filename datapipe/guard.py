"""Work that may hang, eat memory or crash, done in a process of its own.

Owns that process: its start, its limits of time and memory, and its replacement after it was lost. What fails
comes back as a `Failure`, so one bad file is one row of a table. Knows nothing of files or formats.

A reader or decoder written in C can loop for ever, be killed for its memory or take its process down with a
segmentation fault; no `except` stops these. So the work runs in a child: started once by each process that
reads files, kept while it behaves, killed and replaced when it does not. Calls go to it in batches, for a
small picture takes hardly longer to decode than to hand over.

The child is a plain new program (no fork of a process with threads), and unlike that of `multiprocessing` or
of pools built on it, it does not import the main program again: a script without a `__main__` guard, a
notebook and a Ray worker can all start one.

A memory limit is met at the same allocation on every machine. A time limit is not: what hits it on a slow
machine may pass on a fast one, so it is meant for what would never end. It counts processor time, for on a
busy machine each process has only a part of a core; time in which the call uses none counts a quarter.
"""

import atexit
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Pipe
from typing import Any

from datapipe.errors import DecoderCrashed, TimeLimitExceeded
from datapipe.guard_process import (
    FLUSH_S,
    Channel,
    Done,
    Failure,
    Request,
    arena,
    outcome,
    outcomes,
)

BATCH_ITEMS = 64
BATCH_BYTES = 8 * 1024**2
BYTES_PER_LIMIT = 16 * 1024**2
START_LIMIT_S = 300.0  # a busy machine takes long to load the libraries of the readers
IDLE_LIMIT_S = 60.0
WAITING_FRAC = 0.25  # of a second in which a call uses no processor, counted as used
NUM_REPLACEMENTS = 2  # of a child that is lost before it begins; a call that ends the third is at fault
_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED of Linux; with the process id, the clock of another process
_GROWN_FRAC = 0.25  # of the memory limit; a child that keeps more than that leaks, and is replaced
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from datapipe.guard_process import serve; serve(*json.loads(sys.argv[2]))"
)


class Guard:
    """A child process that calls functions under limits; started by the first call.

    Functions and arguments must pickle. A call is never repeated, but for those that stand behind a lost one
    in a batch and have not begun.

    Args:
        time_limit_s: processor time for each call of `each` and each value of `collect`; of a call that is
            given more than `BYTES_PER_LIMIT`, for each so many bytes begun (`limit_s`).
        memory_limit_bytes: what a call may allocate on top of what the child holds. Linux only.
        idle_limit_s: after it, an unused child ends and gives its memory back.
    """

    def __init__(
        self, time_limit_s: float, memory_limit_bytes: int, idle_limit_s: float = IDLE_LIMIT_S
    ) -> None:
        self.time_limit_s, self.memory_limit_bytes = time_limit_s, memory_limit_bytes
        self.idle_limit_s = idle_limit_s
        self._child: _Child | None = None
        self._num_begun = 0  # calls of its last request that a lost child had begun
        self._lock = threading.Lock()

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def each(
        self,
        function: Callable[..., Any],
        arguments: Iterable[tuple[Any, ...]],
        time_limit_s: float | None = None,
    ) -> list[Any]:
        """Call a function with each tuple of arguments; return its values, a `Failure` where it fails.

        Args:
            arguments: taken as the calls proceed, so a generator may load what they need.
            time_limit_s: another limit than the guard's own, whatever the calls are given.
        """
        found: list[Any] = []
        waiting = iter(arguments)
        with self._lock:
            while batch := _batch(waiting):
                found += self._each_of(function, batch, time_limit_s)
        return found

    def _each_of(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], time_limit_s: float | None
    ) -> list[Any]:
        """Return the outcomes of a batch. What a lost child had not answered is asked again, but for the call
        it was at.
        """
        found: list[Any] = []
        lost: dict[int, Failure] = {}  # by the number of the call
        while (done := len(found)) < len(calls):
            if done in lost:
                found.append(lost[done])
                continue
            end = min((number for number in lost if number > done), default=len(calls))
            asked = calls[done:end]
            limits = [time_limit_s or limit_s(self.time_limit_s, _num_bytes(call)) for call in asked]
            answers, failure = self._answers(Request(function, asked, limits))
            found += answers
            if failure is not None:
                lost[done + max(self._num_begun - 1, len(answers))] = failure
        return found

    def collect(
        self,
        function: Callable[..., Iterator[Any]],
        *arguments: Any,
        first_limit_s: float | None = None,
    ) -> list[Any]:
        """Return the values of a generator function; where it ends with an error, the last is a `Failure`.

        Args:
            first_limit_s: another time limit for the first value.
        """
        with self._lock:
            limits = [first_limit_s or self.time_limit_s, self.time_limit_s]
            answers, failure = self._answers(Request(function, [arguments], limits, is_stream=True))
            return answers if failure is None else [*answers, failure]

    def close(self) -> None:
        """End the child; the next call starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _answers(
        self, request: Request, num_replacements: int = NUM_REPLACEMENTS
    ) -> tuple[list[Any], Failure | None]:
        """Return the answers to a request, and how the child was lost before the last of them, if it was.

        Where it was lost between two calls, none is to blame: the answers so far come back without a failure.
        """
        answers: list[Any] = []
        child = self._running(request.function)
        try:
            child.channel.begin(0)
            child.channel.send(request)
            if not child.channel.wait(START_LIMIT_S):
                raise RuntimeError(f"the guarded process did not load the code within {START_LIMIT_S:g} s")
            problem = child.channel.receive().problem
            if problem:
                raise RuntimeError(f"the guarded call cannot be made: {problem}")
            while _waits(child, request, answers):
                answer = child.channel.receive()
                if isinstance(answer, Done):
                    if answer.grown_bytes > _GROWN_FRAC * self.memory_limit_bytes:
                        self.close()
                    return answers, None
                answers += answer
            limit_s = request.limit_s(child.channel.num_begun, len(answers))
            lost = Failure(TimeLimitExceeded.__name__, f"it takes longer than {limit_s:g} s")
        except (EOFError, ConnectionError):
            how, num_begun = child.how_it_ended(), child.channel.num_begun
            if num_begun == 0 and num_replacements:  # it left just now, or was killed while it waited
                self.close()
                return self._answers(request, num_replacements - 1)
            if 0 < num_begun <= len(answers) and not request.is_stream:
                self.close()
                return answers, None
            lost = Failure(DecoderCrashed.__name__, f"its process ended by {how}")
        except BaseException:  # an interrupt, or a call that does not pickle: what the child does is unknown
            self.close()
            raise
        self._num_begun = child.channel.num_begun
        self.close()
        return answers, lost

    def _running(self, function: Callable[..., Any]) -> "_Child":
        """Return a live child. One that a fork brought along belongs to another process."""
        if self._child is not None and self._child.owner != os.getpid():
            self._child.forget()
            self._child = None
        if self._child is not None and not self._child.is_usable():
            self.close()
        if self._child is None:
            self._child = _Child(self.memory_limit_bytes, self.idle_limit_s, function.__module__)
        return self._child


class Unguarded:
    """Stands in for a `Guard` and calls in this process, without limits: for debuggers and comparison."""

    def each(
        self,
        function: Callable[..., Any],
        arguments: Iterable[tuple[Any, ...]],
        time_limit_s: float | None = None,
    ) -> list[Any]:
        """As `Guard.each`."""
        del time_limit_s
        return [outcome(function, given) for given in arguments]

    def collect(
        self,
        function: Callable[..., Iterator[Any]],
        *arguments: Any,
        first_limit_s: float | None = None,
    ) -> list[Any]:
        """As `Guard.collect`."""
        del first_limit_s
        return list(outcomes(function, arguments))


_shared: Guard | None = None


def shared(time_limit_s: float, memory_limit_bytes: int) -> Guard:
    """Return the guard of this process, so that the child is started once; other limits make another."""
    global _shared
    wanted = (time_limit_s, memory_limit_bytes)
    if _shared is None or (_shared.time_limit_s, _shared.memory_limit_bytes) != wanted:
        if _shared is not None:
            _shared.close()
        _shared = Guard(*wanted)
    return _shared


@atexit.register
def _close_shared() -> None:
    if _shared is not None and (_shared._child is None or _shared._child.owner == os.getpid()):
        _shared.close()


def limit_s(time_limit_s: float, size_bytes: int) -> float:
    """Return the time limit for work on so many bytes."""
    return time_limit_s * (1 + size_bytes // BYTES_PER_LIMIT)


def _num_bytes(call: tuple[Any, ...]) -> int:
    return sum(len(value) for value in call if isinstance(value, bytes))


def _waits(child: "_Child", request: Request, answers: list[Any]) -> bool:
    """Wait for the next answers; return whether they came before the call at work has had its time."""
    spent_s, cpu_s = 0.0, child.cpu_s()
    while True:
        limit_s = request.limit_s(child.channel.num_begun, len(answers)) + 2 * FLUSH_S
        if spent_s > limit_s:
            return False
        step_s = min(limit_s / 4, 1.0)
        if child.channel.wait(step_s):
            return True
        before_s, cpu_s = cpu_s, child.cpu_s()
        used_s = step_s if cpu_s is None or before_s is None else cpu_s - before_s
        spent_s += max(used_s, WAITING_FRAC * step_s)


def _batch(waiting: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Take the calls that go together; one at least, however large."""
    batch, size = [], 0
    for call in waiting:
        batch.append(call)
        size += _num_bytes(call)
        if len(batch) == BATCH_ITEMS or size >= BATCH_BYTES:
            break
    return batch


class _Child:
    """The process at work, as its parent sees it."""

    def __init__(self, memory_limit_bytes: int, idle_limit_s: float, module: str) -> None:
        self.owner = os.getpid()
        self.credentials = _credentials()
        ours, theirs = Pipe()
        lifeline, self.lifeline = os.pipe()
        progress = arena()
        os.ftruncate(progress, mmap.PAGESIZE)
        self.channel = Channel(ours, arena(), arena(), progress)
        passed = (theirs.fileno(), self.channel.outgoing, self.channel.incoming, progress, lifeline)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", _CHILD, json.dumps(sys.path)),
                json.dumps([*passed, memory_limit_bytes, idle_limit_s, module]),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
        )
        theirs.close()
        os.close(progress)
        os.close(lifeline)
        try:
            if not self.channel.wait(START_LIMIT_S):
                raise RuntimeError(f"the guarded process did not start within {START_LIMIT_S:g} s")
            self.channel.receive()
        except BaseException as error:
            self.end()
            if isinstance(error, EOFError | ConnectionError):
                raise RuntimeError("the guarded process ended while it started") from error
            raise

    def cpu_s(self) -> float | None:
        """Return the processor time it has used; None where the system does not tell."""
        try:
            return time.clock_gettime((~self.process.pid << 3) | _PROCESS_CLOCK)
        except (AttributeError, OSError):
            return None

    def is_usable(self) -> bool:
        """Return whether it runs, and has the credentials for S3 that this process has by now."""
        return self.process.poll() is None and self.credentials == _credentials()

    def how_it_ended(self) -> str:
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            return "closing its pipe"
        return signal.Signals(-code).name if code < 0 else f"exit({code})"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.forget()

    def forget(self) -> None:
        """Let go of a child of another process."""
        self.channel.close()
        os.close(self.lifeline)


def _credentials() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
