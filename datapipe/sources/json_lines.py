"""JSON and JSON lines: bytes to plain Python values.

Owns line numbers, limits, and what of JSON's freedom is refused, so that one broken line is one error. Knows
nothing of what the values mean.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from datapipe.errors import FileTooLarge, MalformedMarkup

MAX_LINE_BYTES = 1 << 28  # a session with its screenshots inline; longer lines are refused, and not kept
_CHUNK_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")


def lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the number (from 1) and the bytes of each line that is not blank.

    Of a line over `MAX_LINE_BYTES`, only a beginning longer than that is yielded; `parse` refuses it.
    """
    file.seek(0)
    pieces: list[bytes] = []
    number = 1
    while chunk := file.read(_CHUNK_BYTES):
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            pieces.append(piece)
            if line := _joined(pieces, number):
                yield number, line
            pieces, number = [], number + 1
        if len(pieces) * _CHUNK_BYTES <= MAX_LINE_BYTES + 2 * _CHUNK_BYTES:
            pieces.append(rest)
    if line := _joined(pieces, number):
        yield number, line


def count_lines(file: BinaryIO) -> int:
    """Return how many lines are not blank."""
    return sum(1 for _ in lines(file))


def _joined(pieces: list[bytes], number: int) -> bytes:
    line = b"".join(pieces)
    if number == 1:
        line = line.removeprefix(_BYTE_ORDER_MARK)
    return line.strip()


def parse(data: bytes) -> Any:
    """Return the value of a JSON text. Its strings may hold half surrogate pairs (see `tidy`).

    Raises:
        FileTooLarge: it is longer than `MAX_LINE_BYTES`.
        MalformedMarkup: it is no JSON, or nests deeper than can be read.
    """
    if len(data) > MAX_LINE_BYTES:
        raise FileTooLarge(f"more than {MAX_LINE_BYTES} bytes of JSON")
    try:
        value = json.loads(data.removeprefix(_BYTE_ORDER_MARK))
    except json.JSONDecodeError as error:
        raise MalformedMarkup(f"no JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, a number too long, or nested too deep
        raise MalformedMarkup(f"no JSON: {error}") from error
    return value


def tidy(text: str) -> str:
    """Return text without half surrogate pairs, which JSON can write and UTF-8 cannot.

    >>> tidy("a" + chr(0xD83D) + "b") == "a" + chr(0xFFFD) + "b"
    True
    """
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def canonical(value: Any) -> str:
    """Return a value as JSON on one line, keys sorted, the same for equal values."""
    try:
        return tidy(json.dumps(value, ensure_ascii=False, sort_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedMarkup(f"no JSON value: {error}") from error
