"""The text of a line: words from left to right as they are read.

Owns spaces, fonts of one width, and the logical order of scripts that run from the right. Which words make a
line is `pdf_rows`'s business.
"""

import dataclasses
import itertools
import statistics
import unicodedata

from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_words import ASCENT, DESCENT, Style, Word

_SPACE = 0.15  # of the size; words that were not drawn one after the other are parted by wider gaps
_NO_SPACE = 0.08  # of the size; no space is narrower
_WIDE_SPACE = 0.25  # of the size; as wide a gap is a space even where pdfium saw none
_MONO_SPACE = 0.4  # of a character's width, in fonts of one width


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Words that are read one after the other. `style` is that of most of its letters."""

    text: str
    box: Box
    baseline: float
    style: Style
    num_words: int
    body_x0: float  # where its second word begins; a bullet or number may be the first
    is_bold: bool  # all of it
    is_mono: bool  # all of it
    char_width: float  # mean width of a character
    math_frac: float  # of its characters that are in fonts for formulas


def line(words: list[Word]) -> Line:
    """Return words from left to right as a line."""
    box = Box(
        words[0].x0,
        min(w.baseline - ASCENT * w.style.size for w in words),
        max(w.x1 for w in words),
        max(w.baseline + DESCENT * w.style.size for w in words),
    )
    lengths: dict[Style, int] = {}
    for word in words:
        lengths[word.style] = lengths.get(word.style, 0) + len(word.text)
    style = max(lengths, key=lambda s: (lengths[s], s))
    baselines = [w.baseline for w in words if w.style.size == style.size] or [words[0].baseline]
    num_chars = sum(lengths.values())
    widths = sum(w.x1 - w.x0 for w in words) / max(1, num_chars)
    is_mono = all(s.mono for s in lengths)
    return Line(
        _joined_mono(words, widths) if is_mono else joined(words),
        box,
        statistics.median_low(baselines),
        style,
        len(words),
        words[1].x0 if len(words) > 1 else words[0].x0,
        all(s.bold for s in lengths),
        is_mono,
        widths,
        sum(lengths[s] for s in lengths if s.math) / max(1, num_chars),
    )


def joined(words: list[Word]) -> str:
    """Return the text of words from left to right, spaces where the page has them, in logical order."""
    if not all(word.text.isascii() for word in words) and any(is_right_to_left(w.text) for w in words):
        words = _logical(words)
    last = words[0]
    text = [last.text]
    for word in words[1:]:
        if _is_parted(last, word):
            text.append(" ")
        text.append(word.text)
        last = word
    return "".join(text)


def _is_parted(first: Word, second: Word) -> bool:
    gap = second.x0 - first.x1
    if gap < 0:
        gap = max(gap, first.x0 - second.x1)
    size = min(first.style.size, second.style.size)
    if gap < _NO_SPACE * size:
        return False  # pdfium takes raised words for new ones
    step = second.number - first.number
    if step == 1 or step == -1:
        return (second if step == 1 else first).spaced or gap > _WIDE_SPACE * size
    return gap > _SPACE * size


def _joined_mono(words: list[Word], char_width: float) -> str:
    """Return the text of words of a font of one width, with as many spaces as would fill the gaps."""
    text = words[0].text
    for first, second in itertools.pairwise(words):
        gap = (second.x0 - first.x1) / char_width if char_width > 0 else 1.0
        text += " " * min(max(round(gap), int(gap > _MONO_SPACE)), 200) + second.text
    return text


def is_right_to_left(text: str) -> bool:
    """Return whether a text holds letters that run from the right."""
    return not text.isascii() and any(unicodedata.bidirectional(c) in ("R", "AL") for c in text)


def _is_left_to_right(text: str) -> bool:
    return any(unicodedata.bidirectional(c) == "L" for c in text)


def _logical(words: list[Word]) -> list[Word]:
    """Return words as seen from left to right in the order they are read, where some run from the right.

    pdfium turns the letters within a word. Numbers and marks between two words go with the words around them;
    the line runs as most of its letters do.
    """
    kinds = ["R" if is_right_to_left(w.text) else "L" if _is_left_to_right(w.text) else "" for w in words]
    num_right = sum(len(w.text) for w, kind in zip(words, kinds, strict=True) if kind == "R")
    base = "R" if 2 * num_right > sum(len(w.text) for w in words) else "L"
    for i, kind in enumerate(kinds):
        if not kind:
            before = next((k for k in reversed(kinds[:i]) if k), base)
            after = next((k for k in kinds[i + 1 :] if k), base)
            kinds[i] = before if before == after else base
    runs: list[tuple[str, list[Word]]] = []
    for word, kind in zip(words, kinds, strict=True):
        if not runs or runs[-1][0] != kind:
            runs.append((kind, []))
        runs[-1][1].append(word)
    ordered = reversed(runs) if base == "R" else runs
    return [word for kind, run in ordered for word in (reversed(run) if kind == "R" else run)]
