"""Page text: what of a document is compared with other documents of its site, and the keys it is known by.

Owns which segments are looked at, how they are cut into lines and passages, and what a site is. Keys are
64-bit hashes of content: among a billion lines two have the same with a chance of 3 %.

A site is the host of a document's URL where its uri has one, else its collection. Folders of a site are
looked at as well: a manual may have one for each language.
"""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from datapipe.stages.skeleton import NO_SKELETON, normalised, skeleton, without_numbers
from datapipe.stages.words import has_words

TEXT_ROLES = frozenset({"paragraph", "list_item", "note"})
LINE_ROLES = TEXT_ROLES | {"heading", "table", "alt"}
SHORT_LINE_WORDS = 12
# Of a template: words that stay, no fewer than places where something was taken out; words of the whole text.
MIN_TEMPLATE_WORDS, MAX_TEMPLATE_WORDS = 3, 60

_EDGE, _HEADING = "\0", "\1"  # what stands before the first line and behind the last; any heading
_URL = re.compile(r"https?://(?:[^/@]*@)?(?P<host>[^/?#:]+)[^/?#]*(?P<path>[^?#]*)")
_BLANK_LINE = re.compile(r"\n\s*\n")

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a text segment; `text` is None for content that is no line of running text."""

    segment: int
    start: int
    end: int
    text: str | None  # normalised, without numbers
    is_heading: bool = False
    is_short: bool = False


@dataclasses.dataclass(frozen=True)
class Passage:
    """A paragraph that is long or may come from a template."""

    segment: int
    start: int
    end: int
    is_long: bool
    text: int  # key of all its words
    templates: tuple[int, ...]  # keys of its skeleton in its site and its folder; none if it has few words
    fixed: tuple[tuple[int, int], ...]  # characters of the segment, but for the names

    @property
    def keys(self) -> tuple[int, ...]:
        """All keys that it may be repeated by."""
        return (self.text, *self.templates)


@dataclasses.dataclass(frozen=True)
class Page:
    """A document as it is compared."""

    row: Row
    sites: tuple[int, int]  # keys of its site and of its folder there
    lines: list[Line]
    passages: list[Passage]

    def neighbours(self) -> Iterator[tuple[int, int, int]]:
        """Yield the key of each two lines that follow each other, at its edges of one: the number of the
        second, the site, the key there.
        """
        texts = [_EDGE, *(_HEADING if line.is_heading else line.text for line in self.lines), _EDGE]
        for number, (left, right) in enumerate(itertools.pairwise(texts)):
            if left is not None and right is not None and len(texts) > 2:
                for site in self.sites:
                    yield number, site, _key("lines", str(site), left, right)


def page(row: Row, dropped: frozenset[int], min_long_words: int) -> Page:
    """Return a document's lines and passages, without those of `dropped` segments."""
    sites = _sites(row["uri"], row["collection"])
    segments = [
        (number, segment["role"], segment["text"])
        for number, segment in enumerate(row["segments"])
        if segment["kind"] == "text" and number not in dropped
    ]
    lines = [line for segment in segments for line in _lines(*segment)]
    passages = [
        found
        for number, role, text in segments
        if role in TEXT_ROLES
        for place in _blocks(text)
        if (found := _passage(number, text, *place, row["lang"], sites, min_long_words)) is not None
    ]
    return Page(row, sites, lines, passages)


def _lines(number: int, role: str, text: str) -> Iterator[Line]:
    if role not in LINE_ROLES:
        yield Line(number, 0, 0, None)
        return
    start = 0
    for line in text.split("\n"):
        end = start + len(line)
        if line.strip():
            is_short = not has_words(line, SHORT_LINE_WORDS + 1)
            yield Line(number, start, end, without_numbers(line), role == "heading", is_short)
        start = end + 1


def _passage(
    number: int, text: str, start: int, end: int, lang: str | None, sites: Sequence[int], min_long_words: int
) -> Passage | None:
    words = text[start:end]
    is_long = has_words(words, min_long_words)
    found = NO_SKELETON if has_words(words, MAX_TEMPLATE_WORDS + 1) else skeleton(words, lang)
    is_template = found.num_words >= max(MIN_TEMPLATE_WORDS, found.num_slots)
    if not is_long and not is_template:
        return None
    return Passage(
        number,
        start,
        end,
        is_long,
        text=_key("text", normalised(words)),
        templates=tuple(_key("template", str(site), found.text) for site in sites if is_template),
        fixed=tuple((start + left, start + right) for left, right in found.fixed),
    )


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the paragraphs of a text start and end that blank lines part."""
    start = 0
    for gap in _BLANK_LINE.finditer(text):
        yield start, gap.start()
        start = gap.end()
    if start < len(text):
        yield start, len(text)


def _sites(uri: str, collection: str) -> tuple[int, int]:
    """Return the keys of a document's site and of its folder there.

    >>> here = _sites("a.warc.gz#https://www.example.org/en/x.html", "web")
    >>> here == (_key("site", "example.org"), _key("folder", "example.org", "/en"))
    True
    """
    url = _URL.search(uri)
    if url is not None:
        site, path = url["host"].lower().removeprefix("www."), url["path"]
    else:
        site, path = collection, uri.partition("#")[0]
    return _key("site", site), _key("folder", site, str(PurePosixPath(path).parent))


def _key(*parts: str) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest(), "little")
