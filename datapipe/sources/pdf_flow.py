"""The pages of a PDF as items in reading order.

Owns what is a heading, a caption or a paragraph that goes on in the next column or on the next page, and
where the repeated parts of pages go. What stands on a page comes from `pdf_page`, its order from `pdf_order`.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from datapipe.sources import pdf_order, pdf_prose
from datapipe.sources.items import Item
from datapipe.sources.pdf_figures import CAPTION
from datapipe.sources.pdf_furniture import Furniture, Running
from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_grids import Table
from datapipe.sources.pdf_lines import Line, is_right_to_left
from datapipe.sources.pdf_page import Page, Picture, is_whole
from datapipe.sources.pdf_page import lines as lines_of
from datapipe.sources.pdf_prose import Paragraph
from datapipe.sources.pdf_words import Style

_HEADING_SIZE = 1.15  # times the size of most text
_HEADING_CHARS = 250
_HEADING_LINES = 4
_BOLD_HEADING_CHARS = 120
_BOLD_HEADING_LINES = 2
_MIN_BOLD_SIZE = 0.85  # times the size of most text
_CAPTION_DISTANCE = 40.0  # points from a picture to its caption
_SMALL = 0.95  # times the size of most text; smaller or slanting words under a picture are its caption
_ENDS = ".!?:\u3002\uff01\uff1f\u2026"
_CLOSERS = "\"')]}»”’"
_SUBLABEL = re.compile(r"\(?[a-z]\)")
_SEPARATED = re.compile(r"\s*(?:[:.|–—-]|$)")
_SECTION = re.compile(r"(?:\d{1,2}(?:\.\d{1,2}){0,3}\.?|[A-Z]\.|[IVX]+\.)\s+[A-Z]")
_NUMBERED = re.compile(r"(?:\d+(?:\.\d+)*\.?|[A-Z]\.|[IVX]+\.|§\s*\d+)\s+\S")


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """How a document is set: what most of its text is."""

    size: float
    is_bold: bool
    mono_is_code: bool


@dataclasses.dataclass(slots=True)
class _Piece:
    """A part of a page on its way to an item."""

    page: int
    box: Box
    paragraph: Paragraph | None = None
    table: Table | None = None
    picture: Picture | None = None
    mask: str | None = None


def setting(pages: Sequence[Page]) -> Setting:
    """Return how the text of a document is set."""
    lengths: Counter[Style] = Counter()
    for page in pages:
        for row in page.rows:
            for word in row.words:
                lengths[word.style] += len(word.text)
    sizes: Counter[float] = Counter()
    for style, length in lengths.items():
        sizes[style.size] += length
    size = min((s for s in sizes if sizes[s] == max(sizes.values())), default=10.0)
    total = sum(lengths.values())
    bold = sum(lengths[style] for style in lengths if style.bold)
    mono = sum(lengths[style] for style in lengths if style.mono)
    return Setting(size, 2 * bold > total, 10 * mono < 6 * total)


def items(pages: Sequence[Page], repeated: Furniture, how: Setting) -> list[Item]:
    """Return the items of a document, page by page, each page in reading order."""
    pieces: list[_Piece] = []
    for index, page in enumerate(pages):
        on_page = list(_pieces(index, page, repeated, how))
        _name_roles(on_page, how)
        if index in repeated.overlays:
            for piece in on_page:
                piece.mask = piece.mask or "overlay"
        pieces += on_page
    words = pdf_prose.vocabulary(line for p in pieces if p.paragraph for line in p.paragraph.lines)
    return [item for piece in _continued(pieces, how) for item in _items(piece, words)]


def _pieces(index: int, page: Page, repeated: Furniture, how: Setting) -> Iterator[_Piece]:
    """Yield the parts of a page: headers, what it holds in reading order, footers."""
    running = repeated.lines.get(index, [])
    masks = repeated.pictures.get(index, {})
    yield from _furniture(index, page, running, masks, "page_header")
    yield from _furniture(index, page, running, masks, "page_background")
    pictures = [p for number, p in enumerate(page.pictures) if number not in masks]
    whole = [p for p in pictures if is_whole(p.box, page.width, page.height)]
    for picture in whole:
        yield _Piece(index, picture.box, picture=picture)
    lines, tables = lines_of(page, frozenset(number for one in running for number in one.numbers))
    yield from _ordered(index, lines, tables, [p for p in pictures if p not in whole], how)
    for text in page.asides:
        yield _plain(index, text)
    for text, reason in page.unusable:
        yield dataclasses.replace(_plain(index, text), mask=reason)
    yield from _furniture(index, page, running, masks, "page_footer")


def _furniture(
    index: int, page: Page, running: Sequence[Running], masks: dict[int, str], reason: str
) -> Iterator[_Piece]:
    for number, mask in sorted(masks.items()):
        if mask == reason:
            yield _Piece(index, page.pictures[number].box, picture=page.pictures[number], mask=reason)
    for one in running:
        if one.reason == reason:
            yield dataclasses.replace(_plain(index, one.text), mask=reason)


def _plain(index: int, text: str) -> _Piece:
    from_line = Paragraph("paragraph", [text], Box(0, 0, 0, 0), pdf_prose.NO_STYLE, False, False)
    return _Piece(index, from_line.box, paragraph=from_line)


def _ordered(
    index: int, lines: Sequence[Line], tables: Sequence[Table], pictures: Sequence[Picture], how: Setting
) -> Iterator[_Piece]:
    obstacles = [t.box for t in tables] + [p.box for p in pictures]
    blocks = pdf_order.formulas(pdf_order.blocks(lines, obstacles))
    labels = _labels(blocks, [p.box for p in pictures])
    units: list[tuple[Box, list[_Piece]]] = [(t.box, [_Piece(index, t.box, table=t)]) for t in tables]
    for number, picture in enumerate(pictures):
        below = [blocks[block] for block, owner in labels.items() if owner == number]
        box = picture.box
        for block in below:
            box = box.joined(pdf_order.around(block))
        texts = [piece for block in below for piece in _paragraphs(index, block, how)]
        units.append((box, [_Piece(index, picture.box, picture=picture), *texts]))
    for number, block in enumerate(blocks):
        if number not in labels:
            units.append((pdf_order.around(block), list(_paragraphs(index, block, how))))
    for number in pdf_order.reading_order([box for box, _ in units], _is_right_to_left(lines)):
        yield from units[number][1]


def _labels(blocks: Sequence[Sequence[Line]], pictures: Sequence[Box]) -> dict[int, int]:
    """Return which blocks are the words right under a picture, no wider than it, by the picture's number."""
    found: dict[int, int] = {}
    for number, block in enumerate(blocks):
        box = pdf_order.around(block)
        middle, slack = (box.x0 + box.x1) / 2, 2 * block[0].style.size
        for owner, picture in enumerate(pictures):
            is_under = -2 <= box.y0 - picture.y1 <= 1.5 * slack
            is_narrow = box.x0 >= picture.x0 - slack and box.x1 <= picture.x1 + slack
            is_centred = abs(middle - (picture.x0 + picture.x1) / 2) <= slack
            is_caption = CAPTION.match(block[0].text) or _SUBLABEL.match(block[0].text) or is_centred
            if is_under and is_narrow and is_caption and len(block) <= _HEADING_LINES:
                found[number] = owner
                break
    return found


def _paragraphs(index: int, block: Sequence[Line], how: Setting) -> Iterator[_Piece]:
    for paragraph in pdf_prose.paragraphs(block, how.mono_is_code):
        yield _Piece(index, paragraph.box, paragraph=paragraph)


def _is_right_to_left(lines: Sequence[Line]) -> bool:
    length = sum(len(line.text) for line in lines)
    return 2 * sum(len(line.text) for line in lines if is_right_to_left(line.text)) > length


def _name_roles(pieces: list[_Piece], how: Setting) -> None:
    """Tell headings and captions from paragraphs, and put captions next to their pictures."""
    captions = []
    for number, piece in enumerate(pieces):
        paragraph = piece.paragraph
        if paragraph is None or piece.mask is not None or paragraph.role == "code":
            continue
        if paragraph.style == pdf_prose.NO_STYLE:
            continue
        before = pieces[number - 1] if number else None
        after = pieces[number + 1] if number + 1 < len(pieces) else None
        if _is_caption(piece, before, after, how):
            paragraph.role = "caption"
            captions.append(piece)
        elif _is_heading(paragraph, how):
            paragraph.role = "heading"
    for caption in captions:
        _put_to_picture(pieces, caption)


def _is_caption(piece: _Piece, before: _Piece | None, after: _Piece | None, how: Setting) -> bool:
    paragraph = piece.paragraph
    assert paragraph is not None
    text = paragraph.lines[0]
    is_near = any(_is_beside(piece, other) for other in (before, after))
    if match := CAPTION.match(text):
        return is_near or _SEPARATED.match(text, match.end()) is not None
    is_under = before is not None and before.picture is not None and _is_beside(piece, before)
    is_small = paragraph.style.size <= _SMALL * how.size or paragraph.style.italic
    is_small = is_small or _SUBLABEL.match(text) is not None
    return is_under and is_small and not paragraph.is_bold and len(paragraph.lines) <= _HEADING_LINES


def _is_beside(piece: _Piece, other: _Piece | None) -> bool:
    """Return whether a picture or table stands right over or under a piece."""
    if other is None or (other.picture is None and other.table is None):
        return False
    a, b = piece.box, other.box
    distance = max(a.y0 - b.y1, b.y0 - a.y1)
    return distance <= _CAPTION_DISTANCE and min(a.x1, b.x1) > max(a.x0, b.x0)


def _put_to_picture(pieces: list[_Piece], caption: _Piece) -> None:
    """Move a caption that something parts from its picture right behind it."""
    place = next(i for i, piece in enumerate(pieces) if piece is caption)
    before = [p for p in pieces[:place] if p.paragraph is None or p.paragraph.role != "caption"][-1:]
    if any(p.paragraph is None for p in before + pieces[place + 1 : place + 2]):
        return
    near = [p for p in pieces if p.mask is None and _is_beside(caption, p)]
    if near:
        closest = min(near, key=lambda p: max(caption.box.y0 - p.box.y1, p.box.y0 - caption.box.y1))
        del pieces[place]
        pieces.insert(next(i for i, p in enumerate(pieces) if p is closest) + 1, caption)


def _is_heading(paragraph: Paragraph, how: Setting) -> bool:
    length = sum(map(len, paragraph.lines))
    if any(pdf_prose.LEADERS.search(line) for line in paragraph.lines):
        return False
    if paragraph.role == "list_item" and not _NUMBERED.match(paragraph.lines[0]):
        return False
    if not any(c.isalpha() for line in paragraph.lines for c in line):
        return False
    if len(paragraph.lines) == 1 and _is_section(paragraph.lines[0]):
        return True
    if paragraph.style.size >= _HEADING_SIZE * how.size:
        return length <= _HEADING_CHARS and len(paragraph.lines) <= _HEADING_LINES
    if not paragraph.is_bold or how.is_bold or paragraph.style.size < _MIN_BOLD_SIZE * how.size:
        return False
    if length > _BOLD_HEADING_CHARS or len(paragraph.lines) > _BOLD_HEADING_LINES:
        return False
    ends = paragraph.lines[-1].rstrip(_CLOSERS)[-1:] in _ENDS
    return not ends or _NUMBERED.match(paragraph.lines[0]) is not None


def _is_section(line: str) -> bool:
    """Return whether a line is a number and a title in capital letters or in capitalised words."""
    if not _SECTION.match(line) or len(line) > _BOLD_HEADING_CHARS or line[-1] in _ENDS:
        return False
    words = [word for word in line.split()[1:] if len(word) > 3]
    return bool(words) and all(word[0].isupper() or not word[0].isalpha() for word in words)


def _continued(pieces: Sequence[_Piece], how: Setting) -> list[_Piece]:
    """Return the pieces with paragraphs put together that a column, page or picture parts."""
    result: list[_Piece] = []
    last: _Piece | None = None  # the last text that may go on
    for piece in pieces:
        paragraph = piece.paragraph
        if paragraph is None or piece.mask in ("page_header", "page_footer") or paragraph.role == "caption":
            result.append(piece)
            continue
        if last is not None and _goes_on(last, piece):
            assert last.paragraph is not None
            last.paragraph.lines += paragraph.lines
            last.paragraph.is_open = paragraph.is_open
            last.page, last.box = last.page, piece.box
            continue
        result.append(piece)
        if paragraph.style.size >= _SMALL * how.size:  # footnotes stand between columns, and end nothing
            last = piece
    return result


def _goes_on(last: _Piece, piece: _Piece) -> bool:
    """Return whether a text that ends a column or page goes on with another one."""
    first, second = last.paragraph, piece.paragraph
    assert first is not None and second is not None
    if last.mask != piece.mask or first.role not in ("paragraph", "list_item") or second.role != "paragraph":
        return False
    if not first.is_open or abs(first.style.size - second.style.size) > 0.08 * first.style.size:
        return False
    if last.page == piece.page and piece.box.y0 > last.box.y0:
        return False  # the same column: what parts them is no accident
    if first.is_bold != second.is_bold:
        return False
    end = first.lines[-1].rstrip(_CLOSERS)[-1:]
    start = second.lines[0].lstrip("(\"'“‘«")[:1]
    return end not in _ENDS and (start.islower() or pdf_prose.is_hyphen(end))


def _items(piece: _Piece, words: frozenset[str]) -> Iterator[Item]:
    page = piece.page + 1
    if piece.picture is not None:
        picture = piece.picture
        if picture.file is not None:
            data, mime = picture.file
            yield Item("image", "figure", data=data, mime=mime, page=page, mask=piece.mask)
        alt = "\n".join([picture.alt] if picture.alt else picture.labels)
        if alt.strip():
            yield Item("text", "alt", text=pdf_prose.tidy(alt), page=page, mask=piece.mask)
    elif piece.table is not None:
        rows = (" | ".join(_cell(cell, words) for cell in row) for row in piece.table.rows)
        yield Item("text", "table", text="\n".join(rows), page=page, mask=piece.mask)
    elif piece.paragraph is not None:
        paragraph = piece.paragraph
        if paragraph.role == "code":
            text = "\n".join(paragraph.lines).rstrip()
        else:
            text = pdf_prose.joined(paragraph.lines, words)
        if text.strip():
            yield Item("text", paragraph.role, text=text, page=page, mask=piece.mask)


def _cell(lines: Sequence[str], words: frozenset[str]) -> str:
    return pdf_prose.joined(lines, words) if lines else ""
