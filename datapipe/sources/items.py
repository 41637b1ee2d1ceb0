"""The item model every reader yields, and `Flow`, which puts a page together in reading order.

Owns what an item is, how text is collected into blocks (white space, roles, tables, figures) and how links
become paths. Knows no format: the readers walk their own trees and tell `Flow` what they meet.
"""

import dataclasses
import posixpath
import re
from collections.abc import Callable
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from datapipe.errors import EmptyDocument

LINE_BREAK = "\N{LINE SEPARATOR}"
_SPACES = re.compile(r"[^\S" + LINE_BREAK + r"]+")
_REMOTE = re.compile(r"(?:[a-zA-Z][a-zA-Z0-9+.-]*:|//)")
_SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f"  # with the ellipsis and the full-width forms
_RUNS_ON = ",.;:!?)]\u3001\u3002\uff0c\uff09"
_BRACKETED = re.compile(r"\[[^\]]*\]")


@dataclasses.dataclass(frozen=True)
class Item:
    """A piece of a page: text, or a picture or video by `href` or inline `data`.

    `href` is a path relative to the collection's root, or an absolute URL. A text item of role `transcript`
    with an `href` and no text names a caption file of the video before it; `ingest` reads it.

    `page` is the page or slide, from 1. `mask` is the reason for which the item is to leave the stream where
    only the reader can tell (a running header of a printed page): it stays in the document, under a
    drop mask.
    """

    kind: str
    role: str
    text: str | None = None
    href: str | None = None
    data: bytes | None = None
    mime: str | None = None
    t_start_s: float | None = None
    t_end_s: float | None = None
    page: int | None = None
    mask: str | None = None


@dataclasses.dataclass(frozen=True)
class _Picture:
    """A picture or video met in the text of a block, until the block ends."""

    item: Item
    alt: str


@dataclasses.dataclass(frozen=True)
class RawDocument:
    """What a reader makes of a file: its items in reading order."""

    format: str
    title: str | None
    lang: str | None
    items: tuple[Item, ...]


@dataclasses.dataclass(frozen=True)
class Member:
    """A document inside a container file (web archive, tar, Parquet, JSON lines).

    `name` is unique in the file and stable: a URL, a key, or a row number. `content` is what its content id
    hashes. `document` reads it, or raises as a reader does; `load` gives the bytes of what its items name and
    raises `SourceError` for what the container does not hold.
    """

    name: str
    content: bytes
    document: Callable[[], RawDocument]
    load: Callable[[str], bytes]


def document(format: str, title: str | None, lang: str | None, items: list[Item]) -> RawDocument:
    """Return a raw document with a tidy title and primary language tag.

    Raises:
        EmptyDocument: there are no items.
    """
    if not items:
        raise EmptyDocument("the file has neither text nor media")
    tag = (lang or "").strip().lower().replace("_", "-").split("-")[0]
    return RawDocument(
        format, prose(title or "") or None, tag if re.fullmatch("[a-z]{2,3}", tag) else None, tuple(items)
    )


def prose(text: str) -> str:
    """Return text with runs of white space as one space, and line breaks where `LINE_BREAK` stood."""
    if LINE_BREAK not in text:
        return " ".join(text.split())
    lines = (_SPACES.sub(" ", line).strip() for line in text.split(LINE_BREAK))
    return "\n".join(line for line in lines if line)


def is_remote(link: str) -> bool:
    """Return whether a link leaves the collection (it has a scheme or a host)."""
    return _REMOTE.match(link) is not None


def resolve(uri: str, link: str) -> str | None:
    """Return the target of a link on the page `uri`: a path from the collection's root, or a URL.

    On a page with a URL of its own (of a web archive) every target is a URL, without a fragment. Returns None
    for links that name no file. A path that leaves the collection keeps its `..`, so loading refuses it.
    """
    link = link.strip()
    if is_remote(uri):
        return _join_urls(uri, link)
    if is_remote(link):
        return link
    path = unquote(urlsplit(link).path).replace("\\", "/")
    if not path:
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(uri), path)).lstrip("/")


def _join_urls(page: str, link: str) -> str | None:
    page = re.sub("//$", "/", page)  # a <base> that ends in a slash comes with two
    try:
        return urldefrag(urljoin(page, link)).url if link and not link.startswith("#") else None
    except ValueError:  # no URL, such as one with half an IPv6 address
        return None


class Flow:
    """Collects the items of a page. Text takes the role of the innermost open block that has one."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._roles: list[str | None] = ["paragraph"]
        self._text: list[str | _Picture] = []
        self._figures: list[int] = []  # where each open figure starts in `items`
        self._rows: list[str] | None = None  # rows of the open data table
        self._cells: list[str] = []
        self._row_media: list[Item] = []

    def write(self, text: str) -> None:
        """Add text to the open block."""
        self._text.append(text)

    def line_break(self) -> None:
        """Add a line break that survives in prose."""
        self._text.append(LINE_BREAK)

    def open(self, role: str | None = None) -> None:
        """Begin a block; text met before it becomes an item of its own."""
        self._end_text()
        self._roles.append(role)

    def close(self) -> None:
        """End the innermost block."""
        self._end_text()
        self._roles.pop()

    def medium(self, item: Item, alt: str | None = None) -> None:
        """Add a picture or video where the page has it, followed by its alternative text if it has any.

        A picture inside a sentence does not cut it: it follows the text, in which its alternative text takes
        its place. In a table it follows its row.
        """
        name = posixpath.basename(item.href or "")
        alt = prose(alt or "")
        if _BRACKETED.fullmatch(alt) or alt in (name, posixpath.splitext(name)[0]):
            alt = ""
        if self._rows is not None:
            self._text.append(f" {alt} ")
            self._row_media.append(item)
        else:
            self._text.append(_Picture(item, alt))

    def settle(self) -> None:
        """Turn what was met so far in the open block into items, so that `items` is up to date."""
        self._end_text()

    def add(self, items: list[Item]) -> None:
        """Add finished items (a captioned video) as they are."""
        self._end_text()
        self.items += items

    def open_figure(self) -> None:
        """Begin a group of pictures with their captions."""
        self._end_text()
        self._figures.append(len(self.items))

    def close_figure(self) -> None:
        """End a figure; alternative text that only repeats a caption, or itself, leaves it."""
        self._end_text()
        start = self._figures.pop()
        if self._figures:
            return  # the outermost figure has all captions
        said = " ".join(_words(i.text) for i in self.items[start:] if i.role == "caption")
        kept = []
        for item in self.items[start:]:
            if item.role == "alt":
                if f" {_words(item.text)} " in f" {said} ":
                    continue
                said = f"{said} {_words(item.text)}"
            kept.append(item)
        self.items[start:] = kept

    def open_table(self) -> None:
        """Begin a data table: blocks in it are cells, and a picture in a cell follows its row."""
        self._end_text()
        self._rows = []

    def end_cell(self) -> None:
        """End a cell of the open data table."""
        self._cells.append(self._cell_text())

    def end_table_caption(self) -> None:
        """End a caption in the open data table; it comes before the rows that follow."""
        self._end_rows()
        if text := self._cell_text():
            self.items.append(Item("text", "caption", text=text))

    def end_row(self) -> None:
        """End a row of the open data table."""
        assert self._rows is not None
        if rest := self._cell_text():
            self._cells.append(rest)
        if any(self._cells):  # an empty cell keeps its column, unless it held a picture
            cells = [c for c in self._cells if c] if self._row_media else self._cells
            self._rows.append(" | ".join(cells))
        self._cells, media, self._row_media = [], self._row_media, []
        if media:
            self._end_rows()
            self.items += media

    def close_table(self) -> None:
        """End the data table."""
        self.end_row()
        self._end_rows()
        self._rows = None

    def _end_rows(self) -> None:
        if self._rows:
            self.items.append(Item("text", "table", text="\n".join(self._rows)))
        self._rows = []

    def _cell_text(self) -> str:
        text, self._text = "".join(t for t in self._text if isinstance(t, str)), []
        return prose(text).replace("\n", " ")

    def _end_text(self) -> None:
        """Turn the text and pictures collected in the open block into items."""
        if self._rows is not None:
            self._text.append(" ")
            return
        if not self._text:
            return
        collected, self._text = self._text, []
        texts, pictures = [""], []
        for piece in collected:
            if isinstance(piece, str):
                texts[-1] += piece
            else:
                pictures.append(piece)
                texts.append("")
        following = [""]  # for each picture, the first text after it that is not blank; from the last one
        for rest in reversed(texts[1:]):
            following.append(rest if prose(rest) else following[-1])
        text, inside = texts[0], []
        for number, picture in enumerate(pictures, start=1):
            if self._role() != "code" and _is_mid_sentence(text, following[-number]):
                inside.append(picture.item)
                text += picture.alt + texts[number]
                continue
            self._add_text(text)
            self.items += [*inside, picture.item]
            if picture.alt:
                self.items.append(Item("text", "alt", text=picture.alt))
            text, inside = texts[number], []
        self._add_text(text)
        self.items += inside

    def _add_text(self, raw: str) -> None:
        role = self._role()
        text = raw.replace(LINE_BREAK, "\n").strip("\n").rstrip() if role == "code" else prose(raw)
        if text.strip():
            self.items.append(Item("text", role, text=text))
            if role == "list_item":  # what follows in the same list item is no other one
                self._roles[self._role_place()] = "paragraph"

    def _role(self) -> str:
        return self._roles[self._role_place()] or "paragraph"

    def _role_place(self) -> int:
        place = len(self._roles) - 1
        while self._roles[place] is None:
            place -= 1
        return place


def _is_mid_sentence(before: str, after: str) -> bool:
    """Return whether a sentence runs on from one text to the next."""
    before, after = before.rstrip(" \t\n\r"), after.lstrip(" \t\n\r")
    if not before.strip() or not after or before[-1] in _SENTENCE_ENDS + LINE_BREAK:
        return False
    return after[0] in _RUNS_ON or (after[0].isalpha() and not after[0].isupper())


def _words(text: str | None) -> str:
    return " ".join(re.findall(r"\w+", (text or "").casefold()))
