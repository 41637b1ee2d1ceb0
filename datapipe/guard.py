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
machine may pass on a fast one, so it is meant for what would never end.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import functools
import io
import json
import mmap
import os
import pickle
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

from datapipe.errors import DecoderCrashed, MemoryLimitExceeded, TimeLimitExceeded

BATCH_ITEMS = 64
BATCH_BYTES = 8 * 1024**2
BYTES_PER_LIMIT = 16 * 1024**2
FLUSH_S = 0.02  # values of short calls are sent together this often
START_LIMIT_S = 300.0  # a busy machine takes long to load the libraries of the readers
IDLE_LIMIT_S = 60.0
_IDLE_EXIT = 75
_BLOB_BYTES = 64 * 1024  # longer bytes bypass the pipe, which is slow
_KEPT_ARENA_BYTES = 16 * 1024**2
_GROWN_FRAC = 0.25  # of the memory limit; a child that keeps more than that leaks, and is replaced
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from datapipe.guard import _serve; _serve(*json.loads(sys.argv[2]))"
)


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a call gave nothing: the name of the error's class, and its message."""

    error_class: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return what an exception says. Memory addresses, which differ from run to run, are left out.

        An error that was made from a `MemoryError` is one: decoders wrap what they catch.
        """
        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, MemoryError):
                return cls(
                    MemoryLimitExceeded.__name__, "it needs more memory than memory_limit_bytes allows"
                )
            seen = seen.__cause__ or seen.__context__
        return cls(type(error).__name__, re.sub(r" at 0x[0-9a-f]+", "", str(error)))


class Guard:
    """A child process that calls functions under limits; started by the first call.

    Functions and arguments must pickle. A call is never repeated, but for those that stand behind a lost one
    in a batch and have not begun.

    Args:
        time_limit_s: for each call of `each` and each value of `collect`; of a call that is given more than
            `BYTES_PER_LIMIT`, for each so many bytes begun (`limit_s`).
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
        outcomes: list[Any] = []
        waiting = iter(arguments)
        with self._lock:
            while batch := _batch(waiting):
                outcomes += self._outcomes(function, batch, time_limit_s)
        return outcomes

    def _outcomes(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], time_limit_s: float | None
    ) -> list[Any]:
        """Return the outcomes of a batch. Calls whose answer a lost child had not sent yet are made again."""
        outcomes: list[Any] = []
        lost: dict[int, Failure] = {}  # by the number of the call
        while (done := len(outcomes)) < len(calls):
            if done in lost:
                outcomes.append(lost[done])
                continue
            end = min((number for number in lost if number > done), default=len(calls))
            asked = calls[done:end]
            limits = [time_limit_s or limit_s(self.time_limit_s, _num_bytes(call)) for call in asked]
            answers, failure = self._answers(_Request(function, asked, limits))
            outcomes += answers
            if failure is not None:
                lost[done + max(self._num_begun - 1, len(answers))] = failure
        return outcomes

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
            answers, failure = self._answers(_Request(function, [arguments], limits, is_stream=True))
            return answers if failure is None else [*answers, failure]

    def close(self) -> None:
        """End the child; the next call starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _answers(self, request: "_Request", may_be_idle: bool = True) -> tuple[list[Any], Failure | None]:
        """Return the answers to a request, and how the child was lost before the last of them, if it was."""
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
            while _waits(child.channel, request, answers):
                answer = child.channel.receive()
                if isinstance(answer, _Done):
                    if answer.grown_bytes > _GROWN_FRAC * self.memory_limit_bytes:
                        self.close()
                    return answers, None
                answers += answer
            limit_s = request.limit_s(child.channel.num_begun, len(answers))
            lost = Failure(TimeLimitExceeded.__name__, f"it takes longer than {limit_s:g} s")
        except (EOFError, ConnectionError):
            how = child.how_it_ended()
            if how == f"exit({_IDLE_EXIT})" and may_be_idle:  # it left just now
                self.close()
                return self._answers(request, may_be_idle=False)
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
        return [_outcome(function, given) for given in arguments]

    def collect(
        self,
        function: Callable[..., Iterator[Any]],
        *arguments: Any,
        first_limit_s: float | None = None,
    ) -> list[Any]:
        """As `Guard.collect`."""
        del first_limit_s
        return list(_outcomes(function, arguments))


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


def _waits(channel: "_Channel", request: "_Request", answers: list[Any]) -> bool:
    """Wait for the next answers; return whether they came before the call at work has had its time."""
    waited_s, started_s = 0.0, time.monotonic()
    while True:
        limit_s = request.limit_s(channel.num_begun, len(answers)) + 2 * FLUSH_S
        if waited_s > limit_s:
            return False
        if channel.wait(limit_s - waited_s + 0.001):
            return True
        waited_s = time.monotonic() - started_s


def _batch(waiting: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Take the calls that go together; one at least, however large."""
    batch, size = [], 0
    for call in waiting:
        batch.append(call)
        size += _num_bytes(call)
        if len(batch) == BATCH_ITEMS or size >= BATCH_BYTES:
            break
    return batch


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # the border of one bad input: whatever it raises, the others go on
        return Failure.of(error)


def _outcomes(function: Callable[..., Iterator[Any]], arguments: tuple[Any, ...]) -> Iterator[Any]:
    try:
        yield from function(*arguments)
    except Exception as error:  # as above
        yield Failure.of(error)


@dataclasses.dataclass(frozen=True)
class _Request:
    """Calls of one function, in order; `is_stream` asks for all values of the generator it returns.

    `limits` are the time limits of the calls; of a stream, that of the first value and that of the others.
    """

    function: Callable[..., Any]
    arguments: list[tuple[Any, ...]]
    limits: list[float]
    is_stream: bool = False

    def limit_s(self, num_begun: int, num_answers: int) -> float:
        """Return the limit of the call at work; it may be further than the answers that came."""
        number = num_answers if self.is_stream else max(num_begun - 1, num_answers)
        return self.limits[min(number, len(self.limits) - 1)]


@dataclasses.dataclass(frozen=True)
class _Ready:
    """The child has loaded what a request needs and begins, or says why it cannot."""

    problem: str = ""


@dataclasses.dataclass(frozen=True)
class _Done:
    """The child has answered a whole request."""

    grown_bytes: int


class _Pickler(pickle.Pickler):
    """Puts long bytes aside instead of copying them into the pickle."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.blobs: list[bytes] = []
        self.size = 0

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        if type(value) is not bytes or len(value) < _BLOB_BYTES:
            return None
        place = self.size, len(value)
        self.blobs.append(value)
        self.size += len(value)
        return place


class _Unpickler(pickle.Unpickler):
    """Takes the long bytes from the arena."""

    def __init__(self, data: bytes, arena: int) -> None:
        super().__init__(io.BytesIO(data))
        self.arena = arena
        self.has_blobs = False

    def persistent_load(self, place: Any) -> bytes:
        self.has_blobs = True
        offset, size = place
        parts = []
        while size > 0:  # one call reads 2 GiB at most
            parts.append(os.pread(self.arena, size, offset))
            offset, size = offset + len(parts[-1]), size - len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Channel:
    """One end of the way between parent and child: a pipe for messages, two files in memory (arenas) for
    the long bytes in them, and a number that tells how far the child has come. A message's arena is free
    again once the other side has said so.
    """

    def __init__(self, connection: Connection, incoming: int, outgoing: int, progress: int) -> None:
        self.connection, self.incoming, self.outgoing = connection, incoming, outgoing
        self._progress = mmap.mmap(progress, mmap.PAGESIZE)
        self.poll = select.poll()
        self.poll.register(connection.fileno(), select.POLLIN)

    @property
    def num_begun(self) -> int:
        """How many calls of the last request the child has begun."""
        return int.from_bytes(self._progress[:8], "little")

    def begin(self, number: int) -> None:
        """Note that the child begins its call `number`, from 1."""
        self._progress[:8] = number.to_bytes(8, "little")

    def wait(self, limit_s: float) -> bool:
        """Return whether there is something to receive, or the other side is gone, within a time."""
        return bool(self.poll.poll(1000 * limit_s))

    def send(self, value: Any) -> bool:
        """Send a value and return whether it needs the arena until the other side has read it."""
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        pickler.dump(value)
        offset = 0
        for blob in pickler.blobs:
            rest = memoryview(blob)
            while len(rest):
                written = os.pwrite(self.outgoing, rest, offset)
                offset, rest = offset + written, rest[written:]
        self.connection.send_bytes(buffer.getbuffer())
        return offset > 0

    def receive(self) -> Any:
        """Return the next value, and tell the other side if its arena is free again.

        Raises:
            EOFError, ConnectionError: the other side is gone.
        """
        unpickler = _Unpickler(self.connection.recv_bytes(), self.incoming)
        value = unpickler.load()
        if unpickler.has_blobs:
            if os.fstat(self.incoming).st_size > _KEPT_ARENA_BYTES:
                os.ftruncate(self.incoming, 0)
            if not isinstance(value, _Request):
                self.connection.send_bytes(b"")
        return value

    def close(self) -> None:
        self.connection.close()
        self._progress.close()
        for arena in (self.incoming, self.outgoing):
            os.close(arena)


class _Child:
    """The process at work, as its parent sees it."""

    def __init__(self, memory_limit_bytes: int, idle_limit_s: float, module: str) -> None:
        self.owner = os.getpid()
        self.credentials = _credentials()
        ours, theirs = Pipe()
        lifeline, self.lifeline = os.pipe()
        progress = _arena()
        os.ftruncate(progress, mmap.PAGESIZE)
        self.channel = _Channel(ours, _arena(), _arena(), progress)
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


def _arena() -> int:
    """Return a file that lives in memory where the system can do that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("guard")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _serve(
    pipe: int,
    incoming: int,
    outgoing: int,
    progress: int,
    lifeline: int,
    memory_limit_bytes: int,
    idle_limit_s: float,
    module: str,
) -> None:
    """The child's life: answer requests until the parent closes the pipe, or for a while sends nothing."""
    _die_with_parent(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = _Channel(Connection(pipe), incoming, outgoing, progress)
    with contextlib.suppress(ImportError):  # the request will say it better
        __import__(module)
    started_bytes = _data_bytes()
    channel.send(_Ready())
    while channel.wait(idle_limit_s):
        try:
            request = channel.receive()
        except EOFError:
            os._exit(0)
        except Exception as error:  # a function that is not there, for one
            channel.send(_Ready(f"{type(error).__name__}: {error}"))
            continue
        channel.send(_Ready())
        (_answer_stream if request.is_stream else _answer_calls)(channel, request, memory_limit_bytes)
        del request
        channel.send(_Done(_data_bytes() - started_bytes))
    os._exit(_IDLE_EXIT)  # without the exit handlers of libraries, which may hang


def _answer_stream(channel: _Channel, request: _Request, memory_limit_bytes: int) -> None:
    _limit_memory(memory_limit_bytes)
    for value in _outcomes(request.function, request.arguments[0]):
        _send_answers(channel, [value])
        del value
        _limit_memory(memory_limit_bytes)


def _answer_calls(channel: _Channel, request: _Request, memory_limit_bytes: int) -> None:
    """Send what the calls return; short ones together, since each message wakes the parent."""
    answers, sent_s = [], time.monotonic()
    for number, given in enumerate(request.arguments):
        request.arguments[number] = ()  # its bytes are not needed any longer than the call
        channel.begin(number + 1)
        _limit_memory(memory_limit_bytes)
        answers.append(_outcome(request.function, given))
        if time.monotonic() - sent_s > FLUSH_S:
            _send_answers(channel, answers)
            answers, sent_s = [], time.monotonic()
    if answers:
        _send_answers(channel, answers)


def _send_answers(channel: _Channel, answers: list[Any]) -> None:
    """Send answers, or why they cannot be sent; wait until their long bytes have been read."""
    try:
        needs_arena = channel.send(answers)
    except (MemoryError, pickle.PicklingError, TypeError, AttributeError) as error:
        needs_arena = channel.send([Failure.of(error)] * len(answers))
    if needs_arena:
        channel.connection.recv_bytes()


def _die_with_parent(lifeline: int) -> None:
    """Have the system end this process when its parent ends, however busy it is; and before the parent when
    memory runs out.

    The parent holds the other end of the lifeline, a pipe in which nothing is ever written; the system
    closes it with the parent, and signals that. (What Linux offers for the purpose, PR_SET_PDEATHSIG, goes
    by the thread that started the child.)
    """
    if not sys.platform.startswith("linux"):
        return
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it ended already
        os._exit(0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


@functools.cache
def _statm() -> int | None:
    """Return Linux's open file of this process's memory sizes."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return None


def _data_bytes() -> int:
    """Return the size of this process's private memory; 0 where the system does not tell."""
    file = _statm()
    return 0 if file is None else int(os.pread(file, 256, 0).split()[5]) * resource.getpagesize()


def _limit_memory(more_bytes: int) -> None:
    """Allow this process so much private memory on top of what it has.

    RLIMIT_DATA counts what can be written to, mapped memory included (Linux 4.7 and later); RLIMIT_AS would
    count libraries and mapped files too.
    """
    if data_bytes := _data_bytes():
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = data_bytes + more_bytes
        resource.setrlimit(
            resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
        )
