"""Word documents (.docx, and its macro and template siblings).

Owns what of a document is content, in the order of its body: paragraphs, tables, pictures and charts where
they are anchored, text boxes and footnotes after the paragraph they belong to, endnotes at the end. Changes
that are tracked count as made: what was deleted is not read. Comments, hidden text and field codes are left
out; equations are LaTeX between dollar signs.

Masks: `page_header` and `page_footer` for what every page repeats, once each, and `contents` for tables of
contents and indexes. A table that nests others, or holds whole passages, only lays the page out: its cells
are read one after the other.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator

from lxml import etree

from datapipe.errors import EmptyDocument, MalformedMarkup
from datapipe.sources import charts, omml
from datapipe.sources.items import LINE_BREAK, Flow, Item, RawDocument, document
from datapipe.sources.office import (
    LEVEL,
    NAMESPACES,
    Package,
    alternative_text,
    children,
    main_language,
    qualified,
)
from datapipe.sources.word_styles import Style, Styles, is_on, value

_MAX_CELL_PARAGRAPHS = 6  # in a cell of a table of data; more make a passage
_MAX_DEPTH = 60  # of tables and text boxes inside each other
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_DELETED = frozenset(map(qualified, ("w:del", "w:moveFrom")))
_UNREAD = frozenset(
    map(qualified, ("w:rPr", "w:pPr", "w:instrText", "w:delText", "w:delInstrText", "w:rt", "w:tblPr"))
)
_SIGNS = {
    qualified("w:br"): LINE_BREAK,
    qualified("w:cr"): LINE_BREAK,
    qualified("w:tab"): "\t",
    qualified("w:ptab"): "\t",
    qualified("w:noBreakHyphen"): "\N{NON-BREAKING HYPHEN}",
}
_TEXT, _RUN, _PARAGRAPH, _TABLE, _ROW, _CELL, _SYMBOL = map(
    qualified, ("w:t", "w:r", "w:p", "w:tbl", "w:tr", "w:tc", "w:sym")
)
_FOOTNOTE, _ENDNOTE = map(qualified, ("w:footnoteReference", "w:endnoteReference"))
_MATH, _MATH_LINES = map(qualified, ("m:oMath", "m:oMathPara"))
_DRAWING, _PICTURE, _OBJECT, _BOX = map(qualified, ("w:drawing", "w:pict", "w:object", "w:txbxContent"))
# What shows something inside a drawing, in the order it is met.
_BLIP, _IMAGE, _CHART, _DIAGRAM, _NEW_CHART = map(
    qualified, ("a:blip", "v:imagedata", "c:chart", "dgm:relIds", "cx:chart")
)
_NOTE = Style("note")
_SYMBOL_FONT = dict(
    zip(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖαβχδεφγηιϕκλμνοπθρστυϖωξψζ",
        strict=True,
    )
) | {"\xae": "→", "\xac": "←", "\xb7": "•", "\xb3": "≥", "\xa3": "≤", "\xb9": "≠", "\xb4": "×", "\xb1": "±"}
_WINGDINGS = {
    "\xe0": "→",
    "\xdf": "←",
    "\xa7": "▪",
    "\xfc": "✓",
    "\xfb": "✗",
    "\xa8": "☐",
    "\xfe": "☑",
    "\xfd": "☒",
}


def read(data: bytes, uri: str) -> RawDocument:
    """Read a word document.

    Raises:
        Encrypted: it is behind a password.
        FileTooLarge: it would unpack to more than the limits (see `sources.archive`).
        MalformedMarkup: it is no such file, or the part with its text is missing or broken.
        EmptyDocument: it holds nothing but what pages repeat.
    """
    walk = _Walk(Package(data, uri))
    root = walk.package.xml(walk.part)
    if root.tag != qualified("w:document"):
        raise MalformedMarkup(f"{walk.part} is no word document but {etree.QName(root).localname}")
    headers, footers = (walk.repeated(root, kind) for kind in ("header", "footer"))
    items = walk.body(root)
    if not items:
        raise EmptyDocument("the document has neither text nor media")
    heading = next((i.text for i in items if i.role == "heading"), None)
    language = main_language(walk.languages) or walk.package.property("dc:language")
    return document("word", walk.package.title() or heading, language, [*headers, *items, *footers])


@dataclasses.dataclass(frozen=True)
class _Later:
    """A note, text box, chart or diagram to be read after the paragraph it belongs to, and its part."""

    part: str
    element: etree._Element
    style: Style | None = None


class _Walk:
    """One walk over a document."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.part = package.main_part("word/document.xml")
        self.styles = Styles(package.optional_xml(package.related(self.part, "styles")))
        self.notes = {kind: self.notes_by_id(f"{kind}s") for kind in ("footnote", "endnote")}
        self.flow = Flow()
        self.languages: list[tuple[str | None, int]] = []
        self.later: list[_Later] = []  # what follows the open paragraph or table
        self.endnotes: list[_Later] = []
        self.tables = 0  # of data that are open
        self.depth = 0
        self.code_open = False
        self.joined = False  # the end of the last paragraph was deleted: the next one goes on in it

    def body(self, root: etree._Element) -> list[Item]:
        """Return the items of the body, endnotes last."""
        self.blocks(root.iterfind("w:body", NAMESPACES))
        self.settle()
        for note in self.endnotes:
            self.follow(note)
        self.settle()
        return self.flow.items

    def repeated(self, root: etree._Element, kind: str) -> list[Item]:
        """Return what the headers or footers of the pages say, each once, masked."""
        relationships, items = self.package.relationships(self.part), []
        for reference in root.iter(qualified(f"w:{kind}Reference")):
            found = relationships.get(reference.get(qualified("r:id")) or "")
            header = self.package.optional_xml(found.target) if found is not None else None
            if found is not None and header is not None:
                self.flow = Flow()
                self.follow(_Later(found.target, header))
                self.settle()
                items += [i for i in self.flow.items if i not in items]
        self.flow, self.endnotes, self.languages = Flow(), [], []
        return [dataclasses.replace(item, mask=f"page_{kind}") for item in items]

    def notes_by_id(self, kind: str) -> tuple[str, dict[str | None, etree._Element]]:
        part = self.package.related(self.part, kind) or ""
        root = self.package.optional_xml(part)
        notes = list(root) if root is not None else []
        ordinary = (note for note in notes if note.get(qualified("w:type"), "normal") == "normal")
        return part, {note.get(qualified("w:id")): note for note in ordinary}

    def follow(self, later: "_Later") -> None:
        """Read what was put off, in its own part, whose relationships are its own."""
        outer, self.part = self.part, later.part
        if later.element.tag in (_CHART, _NEW_CHART, _DIAGRAM):
            self.flow.add(self.chart(later.element))
        else:
            self.blocks([later.element], later.style)
        self.part = outer

    # ---- blocks

    def blocks(self, parents: Iterable[etree._Element], style: Style | None = None) -> None:
        """Read the paragraphs and tables below some elements, in a style of their own if one is given."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise MalformedMarkup(f"tables and text boxes inside each other, more than {_MAX_DEPTH} deep")
        for parent in parents:
            for element in children(parent):
                if element.tag == _PARAGRAPH:
                    self.paragraph(element, style)
                elif element.tag == _TABLE:
                    self.table(element)
                elif element.tag not in _DELETED and element.tag not in _UNREAD:
                    self.blocks([element], style)
        self.depth -= 1

    def paragraph(self, element: etree._Element, given: Style | None) -> None:
        properties = element.find("w:pPr", NAMESPACES)
        style = given or self.styles.of_paragraph(properties)
        is_code = style.role == "code" or (style.role == "paragraph" and self.is_in_typewriter(element))
        is_code = is_code or (self.code_open and style.role == "paragraph" and _is_blank(element))
        if is_code and self.code_open and not self.tables:
            self.flow.line_break()
        elif not self.joined:
            self.end_code()
            self.flow.open("code" if is_code else style.role)
            if style.level and _has_words(element):
                self.flow.write(LEVEL * style.level)
            self.code_open = is_code
        num_items = len(self.flow.items)
        self.inline(element)
        marks = properties.find("w:rPr", NAMESPACES) if properties is not None else None
        self.joined = marks is not None and marks.find("w:del", NAMESPACES) is not None
        if not self.joined and not self.code_open:
            self.flow.close()
            if style.is_contents:
                self.mask_from(num_items, "contents")
        if not self.tables and not self.joined and self.later:
            self.settle()

    def is_in_typewriter(self, element: etree._Element) -> bool:
        runs = [run for run in element.iter(_RUN) if _has_words(run)]
        return bool(runs) and all(self.styles.is_code(run) for run in runs)

    def mask_from(self, start: int, reason: str) -> None:
        self.flow.items[start:] = [dataclasses.replace(i, mask=reason) for i in self.flow.items[start:]]

    def end_code(self) -> None:
        if self.code_open:
            self.code_open = False
            self.flow.close()

    def settle(self) -> None:
        """End what is open, and read what follows it: text boxes, notes, charts."""
        self.end_code()
        if self.joined:
            self.joined = False
            self.flow.close()
        self.flow.settle()
        while self.later and not self.tables:
            pending, self.later = self.later, []
            for later in pending:
                self.follow(later)

    def table(self, element: etree._Element) -> None:
        rows = [row for row in _parts(element, _ROW) if not _is_deleted_row(row)]
        cells = [cell for row in rows for cell in _parts(row, _CELL)]
        self.end_code()
        if self.tables or not self.is_of_data(element, cells):
            for cell in cells:
                self.blocks([cell])
            return
        self.flow.open_table()
        self.tables += 1
        for row in rows:
            for cell in _parts(row, _CELL):
                self.blocks([cell])
                self.end_code()
                span = value(cell.find("w:tcPr", NAMESPACES), "w:gridSpan")
                for _ in range(min(int(span), 63) if span.isdecimal() and int(span) else 1):
                    self.flow.end_cell()
            self.flow.end_row()
        self.tables -= 1
        self.flow.close_table()
        self.settle()

    def is_of_data(self, element: etree._Element, cells: list[etree._Element]) -> bool:
        """Tell tables of data from those that only lay a page out."""
        if len(cells) < 2 or next((t for cell in cells for t in cell.iter(_TABLE)), None) is not None:
            return False
        for cell in cells:
            texts = [p for p in cell.iterfind("w:p", NAMESPACES) if next(p.iter(_TEXT), None) is not None]
            styles = [self.styles.of_paragraph(p.find("w:pPr", NAMESPACES)) for p in texts]
            if len(texts) > _MAX_CELL_PARAGRAPHS or (
                len(texts) > 1 and any(s.role == "heading" for s in styles)
            ):
                return False
        return True

    # ---- what is inside a paragraph

    def inline(self, parent: etree._Element) -> None:
        for element in children(parent):
            tag = element.tag
            if tag in _DELETED or tag in _UNREAD:
                continue
            if tag == _RUN:
                self.run(element)
            elif tag == _MATH:
                self.flow.write(f"${omml.latex(element)}$")
            elif tag == _MATH_LINES:
                self.flow.write(f"$${omml.latex(element)}$$")
            else:
                self.inline(element)

    def run(self, run: etree._Element) -> None:
        properties = run.find("w:rPr", NAMESPACES)
        if is_on(properties, "w:vanish"):
            return
        language = properties.find("w:lang", NAMESPACES) if properties is not None else None
        for element in children(run):
            tag = element.tag
            if tag == _TEXT:
                text = element.text or ""
                self.flow.write(text)
                self.languages.append((self.language(language, text), len(text)))
            elif tag in _SIGNS:
                self.flow.write(_SIGNS[tag])
            elif tag == _SYMBOL:
                self.flow.write(_symbol(element))
            elif tag in (_FOOTNOTE, _ENDNOTE):
                self.note(element)
            elif tag in (_DRAWING, _PICTURE, _OBJECT):
                self.drawing(element)
            elif tag not in _UNREAD:
                self.inline(element)

    def language(self, own: etree._Element | None, text: str) -> str | None:
        name = qualified("w:eastAsia" if _CJK.search(text) else "w:val")
        return (own.get(name) if own is not None else None) or self.styles.languages.get(name)

    def note(self, reference: etree._Element) -> None:
        kind = "footnote" if reference.tag == _FOOTNOTE else "endnote"
        part, notes = self.notes[kind]
        note = notes.pop(reference.get(qualified("w:id")), None)  # so that each is read once
        if note is None:
            return
        if kind == "endnote":
            self.endnotes.append(_Later(part, note, _NOTE))
        else:
            self.later.append(_Later(part, note, _NOTE))

    def drawing(self, drawing: etree._Element) -> None:
        """Read the pictures of a drawing; its text boxes, charts and diagrams follow the paragraph."""
        properties = next(drawing.iter(qualified("wp:docPr")), None)
        if properties is not None and properties.get("hidden") in ("1", "true"):
            return
        alt = alternative_text(properties)
        for element in _shown(drawing):
            if element.tag not in (_BLIP, _IMAGE):
                self.later.append(_Later(self.part, element))
            elif (picture := self.package.picture(self.part, element)) is not None:
                self.flow.medium(picture, alt or _vml_alt(element))
                alt = ""

    def chart(self, element: etree._Element) -> list[Item]:
        """Return a chart or diagram as text."""
        id = element.get(qualified("r:dm" if element.tag == _DIAGRAM else "r:id")) or ""
        found = self.package.relationships(self.part).get(id)
        root = self.package.optional_xml(found.target) if found is not None else None
        if root is None:
            return []
        if element.tag == _DIAGRAM:
            return [
                Item("text", "list_item", text=LEVEL * n + text) for n, text in charts.diagram_outline(root)
            ]
        text = charts.chart_table(root)
        return [Item("text", "table", text=text)] if text else []


def _shown(drawing: etree._Element) -> Iterator[etree._Element]:
    """Yield what shows something in a drawing, without what stands inside of its text boxes."""
    waiting = [iter([drawing])]
    while waiting:
        element = next(waiting[-1], None)
        if element is None:
            waiting.pop()
        elif element.tag in (_BLIP, _IMAGE, _CHART, _DIAGRAM, _NEW_CHART, _BOX):
            yield element
        else:
            waiting.append(children(element))


def _vml_alt(image: etree._Element) -> str:
    shape = image.getparent()
    return "" if shape is None else alternative_text(etree.Element("x", descr=shape.get("alt") or ""))


def _parts(parent: etree._Element, tag: str) -> Iterator[etree._Element]:
    """Yield the rows of a table or the cells of a row, also those inside of content controls."""
    for element in children(parent):
        if element.tag == tag:
            yield element
        elif element.tag not in _DELETED and element.tag not in (_TABLE, _PARAGRAPH, _CELL):
            yield from _parts(element, tag)


def _has_words(element: etree._Element) -> bool:
    return any((text.text or "").strip() for text in element.iter(_TEXT))


def _is_blank(paragraph: etree._Element) -> bool:
    shown = {_TEXT, _DRAWING, _PICTURE, _OBJECT, _SYMBOL}
    return not any(element.tag in shown for element in paragraph.iter())


def _is_deleted_row(row: etree._Element) -> bool:
    return row.find("w:trPr/w:del", NAMESPACES) is not None


def _symbol(element: etree._Element) -> str:
    """Return the sign of a symbol font as the character it looks like; "" where none is known."""
    try:
        code = int(element.get(qualified("w:char")) or "", 16)
    except ValueError:
        return ""
    font = (element.get(qualified("w:font")) or "").lower()
    if not font.startswith(("symbol", "wingdings")):
        return "" if 0xE000 <= code < 0xF900 or code > 0xFFFF else chr(code)
    sign = chr(code - 0xF000 if 0xF000 <= code < 0xF100 else code)
    return (_SYMBOL_FONT if font == "symbol" else _WINGDINGS).get(sign, "")
