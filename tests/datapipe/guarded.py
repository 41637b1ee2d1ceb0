"""What a guard has to survive: functions that hang, crash, fill the memory or return what does not pickle.

They run in the guard's child, which imports them by this module's name.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from typing import Any


def double(number: int) -> int:
    """Behave."""
    return 2 * number


def length(data: bytes) -> tuple[int, bytes]:
    """Return how long bytes are, and their last ten."""
    return len(data), data[-10:]


def grow(size_bytes: int) -> dict[str, bytes]:
    """Return many bytes, inside of something."""
    return {"data": bytes([7]) * size_bytes}


def misbehave(how: str) -> Any:
    """Do what no `except` stops, and some of what one does."""
    match how:
        case "loop":
            while True:
                pass
        case "loop in C":
            ctypes.CDLL(None).pause()
        case "work":
            work(0.2)
        case "long work":
            work(0.6)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "memory":
            return len(bytearray(1 << 31))
        case "memory of a library":
            try:
                bytearray(1 << 31)
            except MemoryError as error:
                raise ValueError("a damaged picture") from error
        case "error":
            raise ValueError(f"no good: {object()}")
        case "unpicklable":
            return lambda: None
        case "memory in C":
            libc = ctypes.CDLL(None)
            libc.malloc.restype = ctypes.c_void_p
            if libc.malloc(ctypes.c_size_t(1 << 31)) is None:
                raise MemoryError
    return how


def leak(size_bytes: int) -> int:
    """Keep memory that nobody will free, and return who did."""
    _kept.append(bytearray(size_bytes))
    return os.getpid()


_kept: list[bytearray] = []


def process_id() -> int:
    """Return which process works."""
    return os.getpid()


class KillsWhenSent:
    """An argument that kills the child while the parent packs the call for it."""

    def __init__(self, child: int) -> None:
        self.child = child

    def __reduce__(self) -> tuple[Any, ...]:
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitid(os.P_PID, self.child, os.WEXITED | os.WNOWAIT)
            self.child = 0
        return KillsWhenSent, (0,)


class KillsWhenDropped:
    """An argument that kills the process it came to once the call it was given to is over."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __del__(self) -> None:
        if os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)


def flushed(argument: Any, number: int) -> int:
    """Return a number, late enough that it is sent at once."""
    del argument
    time.sleep(0.05)
    return number


def numbers(*ends: str) -> Iterator[Any]:
    """Yield numbers, misbehaving where told."""
    for number, end in enumerate(ends):
        yield number if end == "" else misbehave(end)


def work(seconds: float, data: bytes = b"") -> float:
    """Use the processor for a while."""
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass
    return seconds


def faulty(function: Any, *arguments: Any) -> Any:
    """Call a function, unless bytes it is given tell this process to crash."""
    if any(isinstance(value, bytes) and b"SEGFAULT" in value for value in arguments):
        ctypes.string_at(0)
    return function(*arguments)


def faulty_stream(function: Any, *arguments: Any) -> Iterator[Any]:
    """Yield what a function that reads a web archive yields, with a reader that crashes on one page."""
    from datapipe.sources import warc  # only here: the others need a child that starts fast

    read = warc._read

    def crash(format: str, content: bytes, *rest: Any) -> Any:
        return faulty(read, format, content, *rest)

    warc._read = crash  # type: ignore[assignment]
    try:
        yield from function(*arguments)
    finally:
        warc._read = read


def in_a_worker(number: int) -> Any:
    """Use the guard in a worker of Ray; a task for its engine."""
    del number
    from datapipe import guard
    from datapipe.on_ray import Output

    shared = guard.shared(2.0, 1 << 29)
    calls = [("2",), ("segfault",), ("loop in C",), ("4",)]
    values = [v if isinstance(v, str) else v.error_class for v in shared.each(misbehave, calls)]
    (child,) = shared.each(process_id, [()])
    return Output(metrics={"values": values, "worker": os.getpid(), "child": child})
