"""A PDF page as rows of words, tables and pictures with their places.

Owns which of a page's words are its text: not those of fonts that do not say their characters, not hidden
ones, not the labels inside drawings. Reads the words of scans where they can be read (`ocr`). What stands on
a page is here; its order, and what repeats over pages, is decided when all pages are known.
"""

import ctypes
import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from datapipe.sources import (
    ocr,
    pdf_figures,
    pdf_grids,
    pdf_lines,
    pdf_objects,
    pdf_order,
    pdf_pictures,
    pdf_rows,
    pdf_tables,
    pdf_words,
)
from datapipe.sources.pdf_figures import Figure
from datapipe.sources.pdf_geometry import Box, Frame
from datapipe.sources.pdf_grids import Table
from datapipe.sources.pdf_lines import Line
from datapipe.sources.pdf_pictures import DRAWING_DPI, File
from datapipe.sources.pdf_rows import Row
from datapipe.sources.pdf_words import Style, Text, Word

SCAN_FRAC = 0.5  # of the page that a picture covers, where the page may be a scan
_LAYER_FRAC = 0.8  # of the text that is hidden, where a picture of the page shows it
_WHOLE_FRAC = 0.85  # of the page; a picture as large is the page
_UNMAPPED_FRAC = 0.3  # of the glyphs that stand for no known character, where none can be trusted
_MIN_LETTER_FRAC = 0.35  # of the characters; fonts that map at random give far less
_MIN_GLYPHS = 20  # fewer are not judged
_MARGIN = 2.0  # points around a drawing, for the width of its lines
_OCR_DPI = 200.0
_OCR_MAX_SIDE = 2200  # pixels
_OCR_DESCENT = 0.2  # of the height of a box that the engine gives
_NO_FRACTION = frozenset("._-–—·…=*~|/\\")  # leaders and rules made of characters


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """A picture with its place. `alt` is what the document says it shows, `labels` the words drawn in it."""

    box: Box
    file: File | None
    alt: str | None
    labels: tuple[str, ...]


@dataclasses.dataclass(slots=True)
class Page:
    """What stands on a page, in the page's frame."""

    number: int  # from 1
    label: str
    width: float
    height: float
    rows: list[Row]
    rules: list[Box]
    tables: list[Table]  # those that ruled lines make
    pictures: list[Picture]
    asides: list[str]  # texts that run in another direction than the page's
    unusable: list[tuple[str, str]]  # text and the reason for which it leaves
    is_scan: bool
    is_ocr: bool  # its words were read from its picture


def page(document: pdfium.PdfDocument, index: int, seen: dict[Any, File | None], may_ocr: bool) -> Page:
    """Read a page.

    Args:
        seen: files of pictures that were met before, to be filled.
        may_ocr: whether a page without text may be read by OCR.

    Raises:
        pypdfium2.PdfiumError: the page cannot be loaded.
    """
    raw = document[index]
    try:
        return _Reading(document, raw, index, seen, may_ocr).page()
    finally:
        raw.close()


def is_whole(box: Box, width: float, height: float) -> bool:
    """Return whether a box is the page, so that text stands on it and not beside it."""
    return box.area >= _WHOLE_FRAC * width * height


def lines(page: Page, without: frozenset[int]) -> tuple[list[Line], list[Table]]:
    """Return the words of a page as lines cut at its columns, and its tables.

    Args:
        without: numbers of words to leave out, such as those of headers.
    """
    rows = []
    for row in page.rows:
        words = [w for w in row.words if w.number not in without]
        if words:
            rows.append(Row(words, row.top, row.bottom, row.right))
    pictures = [p.box for p in page.pictures if not is_whole(p.box, page.width, page.height)]
    gutters = pdf_rows.gutters(rows, pictures + [table.box for table in page.tables])
    tables, columns = pdf_tables.aligned(rows, gutters, page.rules)
    taken = {number for table in tables for number in table.numbers}
    found = []
    for parts in pdf_rows.segments(rows, columns):
        for part in parts:
            left = [w for w in part if w.number not in taken]
            if left:
                found.append(pdf_lines.line(left))
    return found, page.tables + tables


class _Reading:
    """The state of reading one page."""

    def __init__(
        self,
        document: pdfium.PdfDocument,
        raw: pdfium.PdfPage,
        index: int,
        seen: dict[Any, File | None],
        may_ocr: bool,
    ) -> None:
        self.document, self.raw, self.index, self.seen, self.may_ocr = document, raw, index, seen, may_ocr
        self.text: Text = pdf_words.words(raw)
        self.frame: Frame = self.text.frame
        self.objects = pdf_objects.objects(raw, self.frame)
        self.unusable: list[tuple[str, str]] = []

    def page(self) -> Page:
        words = self.words()
        curves = [path.box for path in self.objects.paths if path.is_curved]
        ruled = pdf_grids.ruled(words, self.objects.rules, curves)
        taken = {number for table in ruled for number in table.numbers}
        words = [w for w in words if w.number not in taken]
        figures = pdf_figures.figures(self.objects, words, [t.box for t in ruled], self.frame)
        is_scan = not words and not ruled and self.covered(figures) >= SCAN_FRAC
        is_ocr = False
        if not words and not ruled and not figures and self.objects.paths:  # a logo, letters that are drawn
            box = Box(0.0, 0.0, self.frame.width, self.frame.height)
            figures = [Figure(box, None, (), frozenset())]
        if is_scan or (self.unusable and not words):
            figures = self.page_picture(figures)
            is_ocr = self.may_ocr and ocr.is_available()
            words = self.ocr_words() if is_ocr else []
        labels = {number for figure in figures for number in figure.labels}
        pictures = [self.picture(figure, words) for figure in sorted(figures, key=lambda f: f.box)]
        return Page(
            self.index + 1,
            self.document.get_page_label(self.index),
            self.frame.width,
            self.frame.height,
            pdf_rows.rows(w for w in words if w.number not in labels),
            self.objects.rules,
            ruled,
            pictures,
            self.asides(figures),
            self.unusable,
            is_scan,
            is_ocr,
        )

    def words(self) -> list[Word]:
        """Return the words that are the page's text; what is not goes to `unusable`."""
        words = self.text.words.get(self.frame.quarter_turns, [])
        hidden = [w for w in words if w.style.hidden]
        if hidden and self.is_layer(hidden, words):
            words = _evened([w._replace(style=w.style._replace(hidden=False)) for w in words])
        elif hidden:
            self.unusable.append((_lines_text(hidden), "hidden_text"))
            words = [w for w in words if not w.style.hidden]
        if words and self.is_garbled(words):
            self.unusable.append((_lines_text(words), "garbled_text"))
            return []
        return [w for w in words if w.text.strip("\N{REPLACEMENT CHARACTER}")]  # such as large brackets

    def is_layer(self, hidden: Sequence[Word], words: Sequence[Word]) -> bool:
        """Return whether hidden words are those of a picture over or under them."""
        length = sum(len(w.text) for w in hidden)
        if length < _LAYER_FRAC * sum(len(w.text) for w in words):
            return False
        behind = sum(
            len(w.text)
            for w in hidden
            if any(p.box.overlap(w.box) > 0.5 * w.box.area for p in self.objects.pictures)
        )
        return behind >= _LAYER_FRAC * length

    def is_garbled(self, words: Sequence[Word]) -> bool:
        """Return whether the fonts do not say which characters their glyphs are."""
        text = "".join(w.text for w in words)
        if len(text) < _MIN_GLYPHS:
            return "\N{REPLACEMENT CHARACTER}" in text and not any(c.isalnum() for c in text)
        if text.count("\N{REPLACEMENT CHARACTER}") > _UNMAPPED_FRAC * len(text):
            return True
        counted = [c for c in text if c not in _NO_FRACTION]
        return sum(c.isalnum() for c in counted) < _MIN_LETTER_FRAC * len(counted)

    def covered(self, figures: Sequence[Figure]) -> float:
        """Return how much of the page its largest figure covers."""
        page = self.frame.width * self.frame.height
        return max((figure.box.area / page for figure in figures), default=0.0) if page else 0.0

    def page_picture(self, figures: list[Figure]) -> list[Figure]:
        """Return the picture that shows the page where one does, else the page drawn."""
        box = Box(0.0, 0.0, self.frame.width, self.frame.height)
        if len(figures) == 1 and (is_whole(figures[0].box, box.x1, box.y1) or not self.unusable):
            return figures
        return [Figure(box, None, tuple(self.objects.pictures), frozenset())]

    def ocr_words(self) -> list[Word]:
        """Return lines read from the page's picture, each as one word."""
        longest = max(self.frame.width, self.frame.height)
        resolution = min(_OCR_DPI, _OCR_MAX_SIDE / longest * pdf_pictures.POINTS_PER_INCH)
        box = Box(0.0, 0.0, self.frame.width, self.frame.height)
        pixels = pdf_pictures.render(self.raw, self.frame, box, resolution)
        if pixels is None:
            return []
        scale = self.frame.width / pixels.width
        lines = ocr.read_lines(pixels)
        words = []
        for number, line in enumerate(lines):
            height = line.y1 - line.y0
            style = Style(round((1 - _OCR_DESCENT) * height * scale, 1))
            baseline = (line.y1 - _OCR_DESCENT * height) * scale
            words.append(Word(line.text, line.x0 * scale, line.x1 * scale, baseline, style, number, True))
        return _evened(words)

    def asides(self, figures: Sequence[Figure]) -> list[str]:
        """Return the texts that run in other directions, without those that are labels in a figure."""
        texts = []
        for turns, words in sorted(self.text.words.items()):
            if turns == self.frame.quarter_turns:
                continue
            boxes = [self.frame.turned(figure.box, turns) for figure in figures]
            outside = [
                w
                for w in words
                if not w.style.hidden and not any(b.overlap(w.box) > 0.5 * w.box.area for b in boxes)
            ]
            rows = pdf_rows.rows(outside)
            parts = pdf_rows.segments(rows, pdf_rows.gutters(rows, []))
            lines = [pdf_lines.line(part) for row in parts for part in row]
            blocks = pdf_order.blocks(lines, [])
            order = pdf_order.reading_order([pdf_order.around(block) for block in blocks])
            texts += [" ".join(line.text for line in blocks[i]) for i in order]
        return texts + [text for text in self.text.slanted if text.strip()]

    def picture(self, figure: Figure, words: Sequence[Word]) -> Picture:
        labels = tuple(_lines_text([w for w in words if w.number in figure.labels]).splitlines())
        alt = None
        if figure.placed is not None and figure.placed.mark >= 0:
            alt = self.alternatives().get(figure.placed.mark)
        return Picture(figure.box, self.file(figure), alt, labels)

    def file(self, figure: Figure) -> File | None:
        placed = figure.placed
        if placed is None:
            resolution = max([DRAWING_DPI, *(pdf_pictures.dots_per_inch(p) for p in figure.layers)])
            margin = 0.0 if figure.layers else _MARGIN
            box = Box(
                max(0.0, figure.box.x0 - margin),
                max(0.0, figure.box.y0 - margin),
                min(self.frame.width, figure.box.x1 + margin),
                min(self.frame.height, figure.box.y1 + margin),
            )
            return pdf_pictures.region(self.raw, self.frame, box, min(resolution, 600.0))
        key = pdf_pictures.key(placed, self.frame)
        if key not in self.seen:
            self.seen[key] = pdf_pictures.picture(self.document, self.raw, placed, self.frame)
        return self.seen[key]

    def alternatives(self) -> dict[int, str]:
        """Return the alternative texts that a tagged document gives its pictures, by marked content id."""
        tree = pdfium_c.FPDF_StructTree_GetForPage(self.raw)
        found: dict[int, str] = {}
        try:
            pending = [
                pdfium_c.FPDF_StructTree_GetChildAtIndex(tree, i)
                for i in range(max(0, pdfium_c.FPDF_StructTree_CountChildren(tree)))
            ]
            for _ in range(100_000):
                if not pending:
                    break
                element = pending.pop()
                if not element:
                    continue
                if text := _alternative(element):
                    for i in range(max(0, pdfium_c.FPDF_StructElement_GetMarkedContentIdCount(element))):
                        found[pdfium_c.FPDF_StructElement_GetMarkedContentIdAtIndex(element, i)] = text
                pending += [
                    pdfium_c.FPDF_StructElement_GetChildAtIndex(element, i)
                    for i in range(max(0, pdfium_c.FPDF_StructElement_CountChildren(element)))
                ]
        finally:
            pdfium_c.FPDF_StructTree_Close(tree)
        return found


def _alternative(element: Any) -> str:
    length = pdfium_c.FPDF_StructElement_GetAltText(element, None, 0)
    if length <= 2:
        return ""
    buffer = ctypes.create_string_buffer(length)
    pdfium_c.FPDF_StructElement_GetAltText(element, buffer, length)
    return buffer.raw[: length - 2].decode("utf-16-le", "replace").strip()


def _evened(words: list[Word]) -> list[Word]:
    """Return words read from a picture with even sizes, and without the styles of fonts that nobody sees.

    Sizes vary with the letters of a line; those near the usual one are set to it.
    """
    lengths: Counter[float] = Counter()
    for word in words:
        lengths[word.style.size] += len(word.text)
    half, usual = sum(lengths.values()) / 2, 0.0
    for usual in sorted(lengths):
        half -= lengths[usual]
        if half <= 0:
            break
    sizes = {size: usual if 0.7 * usual < size < 1.4 * usual else size for size in lengths}
    return [word._replace(style=Style(sizes[word.style.size])) for word in words]


def _lines_text(words: Sequence[Word]) -> str:
    """Return words line by line."""
    return "\n".join(pdf_lines.joined(row.words) for row in pdf_rows.rows(words))
