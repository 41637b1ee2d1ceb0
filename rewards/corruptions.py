"""Corrupted copies of text: what a quality scorer has to tell from the natural original.

Each kind imitates a fault that crawled text really has. How much of the text it touches varies from copy to
copy.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")
_MENU = (
    "Home",
    "Next",
    "Previous",
    "Contents",
    "Log in",
    "Sign up",
    "Share",
    "Search",
    "Read more",
    "Contact us",
    "Terms of service",
    "Privacy policy",
    "Accept all cookies",
    "Back to top",
    "Show more",
    "Subscribe to our newsletter",
    "All rights reserved",
    "Skip to content",
    "Print this page",
    "Follow us",
    "Related links",
)
_NOISE = "abcdefghijklmnopqrstuvwxyz0123456789#@%&*~^|<>\\/_�Ã©â€œ"


def corrupt(kind: str, text: str, others: Sequence[str], rng: np.random.Generator) -> str:
    """Return a corrupted copy of about the same length.

    Args:
        kind: one of `KINDS`.
        others: texts of other documents, which some kinds draw from; at least one.
    """
    return _CORRUPTIONS[kind](text, others, rng)


def _word_shuffle(text: str, others: Sequence[str], rng: np.random.Generator) -> str:
    """A stretch of at least half of the words in random order. In text without spaces, characters take words'
    place.
    """
    parts = text.split(" ") if text.count(" ") * 12 > len(text) else list(text)
    length = int(len(parts) * rng.uniform(0.5, 1))
    start = int(rng.integers(0, len(parts) - length + 1))
    order = start + rng.permutation(length)
    shuffled = parts[:start] + [parts[i] for i in order] + parts[start + length :]
    return (" " if len(parts) < len(text) else "").join(shuffled)


def _sentence_salad(text: str, others: Sequence[str], rng: np.random.Generator) -> str:
    """Whole sentences, each from another document."""
    chosen: list[str] = []
    while sum(map(len, chosen)) < len(text) and len(chosen) < 200:
        chosen.append(_pick(sentences(others[int(rng.integers(len(others)))]), rng))
    return " ".join(chosen)[: len(text)]


def _repeated_lines(text: str, others: Sequence[str], rng: np.random.Generator) -> str:
    """Some sentences over and over, after the beginning of the text."""
    kept = text[: int(len(text) * rng.uniform(0.1, 0.6))]
    lines = [_pick(sentences(text), rng)[:200] for _ in range(int(rng.integers(1, 3)))]
    repeated: list[str] = []
    while sum(map(len, repeated)) < len(text) - len(kept) and len(repeated) < 1000:
        repeated.append(lines[len(repeated) % len(lines)] + "\n")
    return (kept + "\n" + "".join(repeated))[: len(text)]


def _truncated_words(text: str, others: Sequence[str], rng: np.random.Generator) -> str:
    """Words that lost their end, as at the edge of a column."""
    frac = rng.uniform(0.2, 0.7)
    return " ".join(
        word[: int(rng.integers(1, len(word)))] if len(word) > 3 and rng.random() < frac else word
        for word in text.split(" ")
    )


def _boilerplate(text: str, others: Sequence[str], rng: np.random.Generator) -> str:
    """Menus and lists of links, their labels taken from other documents."""
    separator = _pick([" | ", "\n", " · ", " » ", ", "], rng)
    items: list[str] = []
    while sum(map(len, items)) < len(text) and len(items) < 1000:
        label = " ".join(_some_words(others[int(rng.integers(len(others)))], rng))
        address = f"https://www.{''.join(label.lower().split())[:12]}.com/{int(rng.integers(1000))}"
        items.append(_pick([_pick(_MENU, rng), label, label, f"{label} {address}"], rng))
    return separator.join(items)[: len(text)]


def _char_noise(text: str, others: Sequence[str], rng: np.random.Generator) -> str:
    """Characters replaced, lost or doubled, as by bad optical recognition or a wrong encoding."""
    frac, noisy = rng.uniform(0.05, 0.3), []
    for character in text:
        change = int(rng.integers(3)) if rng.random() < frac else 3
        noisy.append((_NOISE[int(rng.integers(len(_NOISE)))], "", character * 2, character)[change])
    return "".join(noisy)


def sentences(text: str) -> list[str]:
    """Return the non-empty sentences and lines of a text; the text itself when it has no end of a
    sentence.
    """
    return [part for part in _SENTENCE_END.split(text) if part.strip()] or [text]


def _some_words(text: str, rng: np.random.Generator) -> list[str]:
    parts = text.split() or [text]
    start = int(rng.integers(len(parts)))
    return parts[start : start + int(rng.integers(1, 4))]


def _pick(values: Sequence[str], rng: np.random.Generator) -> str:
    return values[int(rng.integers(len(values)))]


_CORRUPTIONS: dict[str, Callable[[str, Sequence[str], np.random.Generator], str]] = {
    "word_shuffle": _word_shuffle,
    "sentence_salad": _sentence_salad,
    "repeated_lines": _repeated_lines,
    "truncated_words": _truncated_words,
    "boilerplate": _boilerplate,
    "char_noise": _char_noise,
}
KINDS = tuple(_CORRUPTIONS)
