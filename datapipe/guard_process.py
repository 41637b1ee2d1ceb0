"""The child of a guard: the program it runs, and the way between it and its parent.

Owns the messages, how long bytes pass without being copied into them, the memory limit, and that the child
ends with its parent. When a child is started, waited for and replaced, says `datapipe.guard`.
"""

import contextlib
import dataclasses
import fcntl
import functools
import io
import mmap
import os
import pickle
import re
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from datapipe.errors import MemoryLimitExceeded

FLUSH_S = 0.02  # values of short calls are sent together this often
IDLE_EXIT = 75  # code with which an unused child leaves
_BLOB_BYTES = 64 * 1024  # longer bytes bypass the pipe, which is slow
_KEPT_ARENA_BYTES = 16 * 1024**2


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


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # the border of one bad input: whatever it raises, the others go on
        return Failure.of(error)


def outcomes(function: Callable[..., Iterator[Any]], arguments: tuple[Any, ...]) -> Iterator[Any]:
    try:
        yield from function(*arguments)
    except Exception as error:  # as above
        yield Failure.of(error)


@dataclasses.dataclass(frozen=True)
class Request:
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
class Ready:
    """The child has loaded what a request needs and begins, or says why it cannot."""

    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Done:
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


class Channel:
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
            if not isinstance(value, Request):
                self.connection.send_bytes(b"")
        return value

    def close(self) -> None:
        self.connection.close()
        self._progress.close()
        for arena in (self.incoming, self.outgoing):
            os.close(arena)


def arena() -> int:
    """Return a file that lives in memory where the system can do that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("guard")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def serve(
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
    channel = Channel(Connection(pipe), incoming, outgoing, progress)
    with contextlib.suppress(ImportError):  # the request will say it better
        __import__(module)
    started_bytes = _data_bytes()
    channel.send(Ready())
    while channel.wait(idle_limit_s):
        _limit_memory(None)
        try:
            request = channel.receive()
        except EOFError:
            os._exit(0)
        except Exception as error:  # a function that is not there, for one
            channel.send(Ready(f"{type(error).__name__}: {error}"))
            continue
        channel.send(Ready())
        (_answer_stream if request.is_stream else _answer_calls)(channel, request, memory_limit_bytes)
        del request
        channel.send(Done(_data_bytes() - started_bytes))
    os._exit(IDLE_EXIT)  # without the exit handlers of libraries, which may hang


def _answer_stream(channel: Channel, request: Request, memory_limit_bytes: int) -> None:
    channel.begin(1)
    _limit_memory(memory_limit_bytes)
    for value in outcomes(request.function, request.arguments[0]):
        _send_answers(channel, [value])
        del value
        _limit_memory(memory_limit_bytes)


def _answer_calls(channel: Channel, request: Request, memory_limit_bytes: int) -> None:
    """Send what the calls return; short ones together, since each message wakes the parent."""
    answers, sent_s = [], time.monotonic()
    for number, given in enumerate(request.arguments):
        request.arguments[number] = ()  # its bytes are not needed any longer than the call
        channel.begin(number + 1)
        _limit_memory(memory_limit_bytes)
        answers.append(outcome(request.function, given))
        if time.monotonic() - sent_s > FLUSH_S:
            _send_answers(channel, answers)
            answers, sent_s = [], time.monotonic()
    if answers:
        _send_answers(channel, answers)


def _send_answers(channel: Channel, answers: list[Any]) -> None:
    """Send answers, or why they cannot be sent; wait until their long bytes have been read."""
    _limit_memory(None)
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


def _limit_memory(more_bytes: int | None) -> None:
    """Allow this process so much private memory on top of what it has; None lifts the limit, for messages.

    RLIMIT_DATA counts what can be written to, mapped memory included (Linux 4.7 and later); RLIMIT_AS would
    count libraries and mapped files too.
    """
    if data_bytes := _data_bytes():
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = hard if more_bytes is None else data_bytes + more_bytes
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
