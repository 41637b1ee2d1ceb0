"""Repair: how text is written from here on, and where a character of it has gone.

Owns mojibake, Unicode NFC, control characters and plain white space. Changes no quotation marks, ligatures or
character widths: what is right stays as it is. Repairing a repaired text changes nothing.

Only line ends and control characters change in `VERBATIM_ROLES`, where white space can mean something
(indentation, columns, a code block in a chat message) and a strange character may be the point.

Mojibake is undone by ftfy line by line, and only where that is sure:
- ftfy finds sequences that hardly occur but in UTF-8 read as another encoding;
- no ASCII character but white space changes by it, and no NUL comes of it;
- the line does not speak of mojibake, showing it between quotation marks (`you see “Ã©”`) or beside the
  letter that is meant (`Ã© instead of é`).
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator

import ftfy
import ftfy.bad_codecs  # registers the sloppy codecs below
from ftfy.badness import is_bad

VERBATIM_ROLES = frozenset(
    {"code", "table", "system", "user", "assistant", "thinking", "tool_call", "tool_result"}
)

_LINE_END = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Control characters but tab and newline, byte order mark, soft hyphen, and what is no character.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\ufeff\ufdd0-\ufdef\ufffe\uffff]")
_SPACES = re.compile(r"[^\S\n]+")
_SPACE_AT_LINE_END = re.compile(r" ?\n ?")
_BLANK_LINES = re.compile(r"\n{3,}")

# The encodings in which UTF-8 is taken for something else, as far as ftfy knows them.
_CODECS = (
    "latin-1",
    "sloppy-windows-1252",
    "sloppy-windows-1251",
    "sloppy-windows-1250",
    "sloppy-windows-1253",
    "sloppy-windows-1254",
    "sloppy-windows-1257",
    "iso-8859-2",
    "macroman",
    "cp437",
)


def _read_as(first: int, last: int) -> str:
    """Return what the bytes from `first` to `last` look like in any of the codecs, for a character class."""
    return re.escape("".join(sorted({bytes([b]).decode(c) for b in range(first, last + 1) for c in _CODECS})))


_LEAD, _CONTINUATION = _read_as(0xC2, 0xF4), _read_as(0x80, 0xBF)
# What mojibake cannot do without: the first byte of a character before a second, which may have become a
# space. A quick test, for ftfy's own takes longer than everything else here.
_MAY_BE_MOJIBAKE = re.compile(
    rf"[\x80-\x9f]|[{_LEAD}](?: ?[{_CONTINUATION}\ufffd])|[ÂÃ] |[ÂÃ]$", re.MULTILINE
)
_NEXT_LINE = re.compile("(?<![\x80-\xff])\x85")  # not the second byte of a character
_OTHER_C1 = re.compile("[\x80-\x84\x86-\x9f]")
_FTFY = ftfy.TextFixerConfig(explain=False)  # of which `fix_encoding` reads what concerns encodings

_QUOTES = "\"'“”„‟«»‹›‘’‚‛「」『』〝〞"
_ASCII_CHARACTER = re.compile(r"[!-~]")
_ASCII_CHARACTER_OR_NUL = re.compile(r"[!-~\0]")
_ASCII_OR_SPACE = re.compile(r"[ -~]")
_FORMAT = re.compile("[\u200b-\u200f\u202a-\u202e\u2066-\u2069]")  # invisible marks of direction

Change = tuple[int, int, int, int]  # start and end before, start and end after


def repaired(text: str, role: str) -> str:
    """Return a segment's text as it should be written; applying it again changes nothing."""
    *_, last = _versions(text, role)
    return last


def moved_span(start: int | None, end: int | None, text: str, role: str) -> tuple[int | None, int | None]:
    """Return where `repaired` has moved a span's characters to; a side left open stays open.

    The span grows over characters that the repair joined across its edge, and is empty (start >= end) if no
    character is left.
    """
    for number, (before, after) in enumerate(itertools.pairwise(_versions(text, role))):
        move = _edge_after_decoding if number % 2 == 0 else _edge_after_tidying
        start = None if start is None else move(start, "start", before, after, role)
        end = None if end is None else move(end, "end", before, after, role)
    return start, end


def _versions(text: str, role: str) -> Iterator[str]:
    """Yield a text before, between and after its repairs: decoded and tidied in turn, until it stays.

    It ends: decoding leaves fewer characters above ASCII, and tidying does not bring any.
    """
    yield text
    while True:
        decoded = text if role in VERBATIM_ROLES else _decoded(text)
        tidy = _tidy(decoded, role)
        yield decoded
        yield tidy
        if tidy == text:
            return
        text = tidy


def _tidy(text: str, role: str) -> str:
    """Return a text with plain line ends and white space, without control characters, in NFC."""
    text = _composed(_LINE_END.sub("\n", text))
    if role in VERBATIM_ROLES:
        return text if text.strip() else ""
    text = _SPACE_AT_LINE_END.sub("\n", _SPACES.sub(" ", text))
    return _BLANK_LINES.sub("\n\n", text).strip()


# ---- mojibake


def _decoded(text: str) -> str:
    """Return a text whose lines of mojibake are decoded."""
    if text.isascii() or _MAY_BE_MOJIBAKE.search(text) is None:
        return text
    return "\n".join(_decoded_line(line) for line in _lines(text))


def _lines(text: str) -> list[str]:
    """Return the lines of a text; U+0085 ends one too where it cannot be a byte of something else."""
    if _OTHER_C1.search(text) is None:
        text = _NEXT_LINE.sub("\n", text)
    return text.split("\n")


def _decoded_line(line: str) -> str:
    if _MAY_BE_MOJIBAKE.search(line) is None or not is_bad(line):
        return line
    fixed = ftfy.fix_encoding(line, _FTFY)
    is_sure = _ASCII_CHARACTER_OR_NUL.findall(line) == _ASCII_CHARACTER_OR_NUL.findall(fixed)
    return fixed if is_sure and not _speaks_of_mojibake(line, fixed) else line


def _speaks_of_mojibake(line: str, fixed: str) -> bool:
    """Return whether a changed part stands alone between quotation marks, or is a letter the line has too."""
    changes = list(_changes(line, fixed))
    ends = [0, *(last for _, last, _, _ in changes)]
    starts = [*(first for first, _, _, _ in changes), len(line)]
    unchanged = "".join(line[left:right] for left, right in zip(ends, starts, strict=True))
    for first, last, start, end in changes:
        left, right = _FORMAT.sub("", line[:first]).rstrip()[-1:], _FORMAT.sub("", line[last:]).lstrip()[:1]
        if left and right and left in _QUOTES and right in _QUOTES:
            return True
        meant = fixed[start:end]
        if len(meant) == 1 and meant.isalpha() and meant in unchanged:
            return True
    return False


def _changes(line: str, fixed: str) -> Iterator[Change]:
    """Yield the parts of a line that decoding changed, as narrow as can be told, in order."""
    for first, last, start, end in _between_ascii(line, fixed):
        if line[first:last] != fixed[start:end]:
            while first < last and start < end and line[first] == fixed[start]:
                first, start = first + 1, start + 1
            while first < last and start < end and line[last - 1] == fixed[end - 1]:
                last, end = last - 1, end - 1
            yield first, last, start, end


def _between_ascii(line: str, fixed: str) -> Iterator[Change]:
    """Yield the stretches between the ASCII characters, which are the same before and after."""
    pattern = _ASCII_OR_SPACE
    if pattern.findall(line) != pattern.findall(fixed):
        pattern = _ASCII_CHARACTER
    first = start = 0
    for left, right in zip(pattern.finditer(line), pattern.finditer(fixed), strict=True):
        yield first, left.start(), start, right.start()
        first, start = left.end(), right.end()
    yield first, len(line), start, len(fixed)


# ---- where characters went


def _edge_after_decoding(edge: int, side: str, before: str, after: str, role: str) -> int:
    """Return a span's edge in the decoded text, moved outwards where it lies in what was decoded."""
    if before == after:
        return edge
    shift = 0
    for first, last, start, end in _changes_of_lines(before, after):
        if edge <= first:
            return edge + start - first
        if edge < last:
            return start if side == "start" else end
        shift = end - last
    return edge + shift


def _changes_of_lines(before: str, after: str) -> Iterator[Change]:
    """Yield the changes of all lines, in characters of the whole text."""
    position = place = 0
    for line, fixed in zip(_lines(before), after.split("\n"), strict=True):
        if line != fixed:
            for first, last, start, end in _changes(line, fixed):
                yield first + position, last + position, start + place, end + place
        position, place = position + len(line) + 1, place + len(fixed) + 1


def _edge_after_tidying(edge: int, side: str, before: str, after: str, role: str) -> int:
    """Return a span's edge in the tidied text, moved outwards where characters were joined across it."""
    step = -1 if side == "start" else 1
    while 0 < edge < len(before) and not _is_boundary(before, edge):
        edge += step
    moved = min(len(_tidy(before[:edge], role)), len(after))
    if side == "start" and not before[edge : edge + 1].isspace():
        while moved < len(after) and after[moved].isspace():
            moved += 1
    return moved


def _is_boundary(text: str, edge: int) -> bool:
    """Return whether composition (NFC) does not reach across this place."""
    left, right, whole = map(_composed, (text[:edge], text[edge:], text))
    return whole == left + right


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", _CONTROL.sub("", text))
