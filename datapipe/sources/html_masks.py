"""The masks over what of a page is no content: when a verdict holds, and what is outside of the article.

Owns the counts by which lists of links and cards that lead to articles are told from articles, and the rule
for pages that say which part is the article.
"""

import dataclasses
from typing import NamedTuple

from datapipe.sources.html_furniture import Verdict, When
from datapipe.sources.items import Item

_LIST_LINKS = 4  # so many links with hardly any text beside them are a list of links ...
_LIST_FRAC = 0.6  # ... if they are so much of the text
SENTENCE_CHARS = 80  # a text as long, outside of links, is no label
_CARD_CHARS = 300  # an <article> with less text beside its links only leads to one
_PROSE_CHARS = 2000  # so much text with few links in it is no navigation
_MAIN_FRAC = 0.5  # of the text of a page, what its <main> has to hold to be believed


class Counts(NamedTuple):
    """What an element holds."""

    chars: int
    chars_in_links: int
    links: int
    titles: int  # <h1>
    articles: int
    mains: int
    sentences: int  # long texts outside of links, and code, whose links lead to what it uses


@dataclasses.dataclass
class Regions:
    """Which items are in the <main> elements and in the bodies of articles, each from a number to another.

    `title` is the number of the last `<h1>` before the first body.
    """

    mains: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    bodies: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    title: int = 0


def holds(verdict: Verdict, inside: Counts) -> bool:
    """Return whether the condition of a verdict on an element holds, given what the element holds.

    What has the article in it is the page itself, whatever it is called and however broken its markup is.
    """
    text_chars = inside.chars - inside.chars_in_links
    if inside.mains or (inside.articles and text_chars > _CARD_CHARS * inside.articles):
        return False
    if verdict.when == When.IF_LINKS:
        return not inside.titles and inside.links > 1 and 2 * inside.chars_in_links >= inside.chars
    if verdict.when == When.IF_ONLY_LINKS:
        is_list = inside.links >= _LIST_LINKS and inside.chars > 0 and not inside.sentences
        return is_list and not inside.titles and inside.chars_in_links >= _LIST_FRAC * inside.chars
    if verdict.when == When.IF_NO_TITLE:
        return not inside.titles
    is_prose = inside.chars >= _PROSE_CHARS and 5 * inside.chars_in_links < inside.chars
    return verdict.reason != "navigation" or not is_prose


def lay(items: list[Item], start: int, reason: str, only_text: bool = False) -> None:
    """Mask the items from `start` on that have no mask yet."""
    for index in range(start, len(items)):
        item = items[index]
        if item.mask is None and (item.kind == "text" or not only_text):
            items[index] = dataclasses.replace(item, mask=reason)


def lay_outside(items: list[Item], regions: Regions) -> None:
    """Mask what is outside of the page's one <main>, and what is behind its one body or before its title.

    Both have to hold most of the text to be believed.
    """
    if len(regions.mains) == 1:
        start, end = regions.mains[0]
        _lay_outside(items, "outside_main", (start, end), start, end)
    if len(regions.bodies) == 1:
        start, end = regions.bodies[0]
        _lay_outside(items, "outside_body", (start, end), min(start, regions.title), end)


def _lay_outside(items: list[Item], reason: str, text: tuple[int, int], first: int, last: int) -> None:
    if _num_characters(items[text[0] : text[1]]) < _MAIN_FRAC * _num_characters(items):
        return
    has_title = any(item.role == "heading" for item in items[first:last])
    for index in (*range(first), *range(last, len(items))):
        if items[index].mask is None and (has_title or items[index].role != "heading"):
            items[index] = dataclasses.replace(items[index], mask=reason)


def _num_characters(items: list[Item]) -> int:
    return sum(len(item.text or "") for item in items if item.mask is None)
