"""The paragraphs of DrawingML text, and what slides inherit from their layout and master.

Owns which paragraph is a list item or code, and where a placeholder lies that does not say so itself. A
paragraph's own word on its bullet wins over that of its shape, the layout's placeholder, the master's, and
the master's text styles, in this order.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence

from lxml import etree

from datapipe.sources import omml
from datapipe.sources.items import LINE_BREAK, Item, prose
from datapipe.sources.office import LEVEL, NAMESPACES, children, is_monospaced, qualified

TITLES = ("title", "ctrTitle")
_BULLETS = frozenset(map(qualified, ("a:buChar", "a:buAutoNum", "a:buBlip")))
_NO_BULLET = qualified("a:buNone")
_TEXT, _BREAK, _RUN, _FIELD, _TAB = map(qualified, ("a:t", "a:br", "a:r", "a:fld", "a:tab"))
_MATH = frozenset(map(qualified, ("m:oMath", "m:oMathPara")))
_VERTICAL_TAB = re.compile(r"_x000[BbDd]_|\v")


@dataclasses.dataclass(frozen=True)
class Placeholder:
    """What a shape fills: the type of its placeholder and the number that ties it to the layout's."""

    type: str
    number: str


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A paragraph of a shape. `languages` are what its runs are marked with, and their characters."""

    text: str
    is_item: bool
    is_code: bool
    level: int
    languages: Sequence[tuple[str | None, int]]


@dataclasses.dataclass(frozen=True)
class Styles:
    """The layout and the master of a slide."""

    layout: etree._Element | None
    master: etree._Element | None

    def frame(self, shape: etree._Element) -> etree._Element | None:
        """Return the element that says where a shape lies (`xfrm`), its own or the inherited one."""
        for element in (shape, *self.inherited(shape)):
            for path in ("p:spPr/a:xfrm", "p:xfrm"):
                found = element.find(path, NAMESPACES)
                if found is not None and found.find("a:off", NAMESPACES) is not None:
                    return found
        return None

    def inherited(self, shape: etree._Element) -> list[etree._Element]:
        """Return the placeholders of the layout and the master that a placeholder takes after."""
        kind = placeholder(shape)
        if kind is None:
            return []
        found = _like(self.layout, kind, by_number=True)
        of_layout = placeholder(found) if found is not None else None
        above = _like(self.master, of_layout or kind, by_number=False)
        return [element for element in (found, above) if element is not None]

    def list_styles(self, shape: etree._Element) -> list[etree._Element]:
        """Return the list styles that hold for a shape's paragraphs, the nearest first."""
        found = [e.find("p:txBody/a:lstStyle", NAMESPACES) for e in (shape, *self.inherited(shape))]
        kind = placeholder(shape)
        style = "otherStyle" if kind is None else "titleStyle" if kind.type in TITLES else "bodyStyle"
        if self.master is not None:
            found.append(self.master.find(f"p:txStyles/p:{style}", NAMESPACES))
        return [element for element in found if element is not None]


def placeholder(shape: etree._Element) -> Placeholder | None:
    """Return which placeholder a shape fills; None for one that fills none."""
    found = shape.find("./*/p:nvPr/p:ph", NAMESPACES)
    return None if found is None else Placeholder(found.get("type", "obj"), found.get("idx", "0"))


def texts(found: list[Paragraph]) -> list[Item]:
    """Return paragraphs as items; lines of code that follow each other are one."""
    items: list[Item] = []
    for paragraph in found:
        if paragraph.is_code and items and items[-1].role == "code":
            items[-1] = dataclasses.replace(items[-1], text=f"{items[-1].text}\n{paragraph.text}")
            continue
        role = "code" if paragraph.is_code else "list_item" if paragraph.is_item else "paragraph"
        prefix = LEVEL * paragraph.level if role == "list_item" else ""
        items.append(Item("text", role, text=prefix + paragraph.text))
    return items


def paragraphs(shape: etree._Element, styles: Styles) -> Iterator[Paragraph]:
    """Yield the paragraphs of a shape or table cell that hold words."""
    styled = styles.list_styles(shape)
    for body in children(shape):
        if etree.QName(body).localname != "txBody":
            continue
        for element in body.iterfind("a:p", NAMESPACES):
            properties = element.find("a:pPr", NAMESPACES)
            level = _level(properties)
            levels = [e.find(f"a:lvl{level + 1}pPr", NAMESPACES) for e in styled]
            chain = [e for e in (properties, *levels) if e is not None]
            text, languages, fonts = _runs(element)
            is_code = bool(fonts) and all(_is_monospaced(font, chain) for font in fonts)
            text = text.replace(LINE_BREAK, "\n").rstrip() if is_code else prose(text)
            if text.strip():
                yield Paragraph(text, _has_bullet(chain), is_code, level, languages)


def _like(root: etree._Element | None, kind: Placeholder, by_number: bool) -> etree._Element | None:
    """Return the placeholder of a layout (by number, else by type) or of a master (by type) for another."""
    if root is None:
        return None
    shapes = [
        (shape, found) for shape in root.iter(qualified("p:sp")) if (found := placeholder(shape)) is not None
    ]
    if by_number:
        for shape, other in shapes:
            if other.number == kind.number and (other.type == kind.type or kind.number != "0"):
                return shape
    wanted = _master_type(kind)
    return next((shape for shape, other in shapes if _master_type(other) == wanted), None)


def _master_type(kind: Placeholder) -> str:
    """Return which of the five placeholders of a master one takes after."""
    if kind.type in TITLES:
        return "title"
    return kind.type if kind.type in ("dt", "ftr", "sldNum") else "body"


def _runs(paragraph: etree._Element) -> tuple[str, list[tuple[str | None, int]], list[str]]:
    """Return the words of a paragraph, its languages with their characters, and the fonts its runs name."""
    text, languages, fonts = "", [], []
    for child in children(paragraph):
        if child.tag == _BREAK:
            text += LINE_BREAK
        elif child.tag in (_RUN, _FIELD):
            run = _VERTICAL_TAB.sub(LINE_BREAK, child.findtext("a:t", "", NAMESPACES))
            text += run
            properties = child.find("a:rPr", NAMESPACES)
            languages.append((properties.get("lang") if properties is not None else None, len(run)))
            if run.strip():
                fonts.append(_font(properties) or "")
        else:
            equations = [child] if child.tag in _MATH else [e for e in child.iter() if e.tag in _MATH][:1]
            text += "".join(f"${omml.latex(equation)}$" for equation in equations)
    return text, languages, fonts


def _font(properties: etree._Element | None) -> str | None:
    found = properties.find("a:latin", NAMESPACES) if properties is not None else None
    return None if found is None else found.get("typeface")


def _is_monospaced(font: str, chain: list[etree._Element]) -> bool:
    """Return whether a run is set in a typewriter's font: its own, or the inherited one."""
    if not font:
        fonts = (_font(element.find("a:defRPr", NAMESPACES)) for element in chain)
        font = next((found for found in fonts if found), "")
    return is_monospaced(font)


def _has_bullet(chain: list[etree._Element]) -> bool:
    for properties in chain:
        for child in properties:
            if child.tag in _BULLETS or child.tag == _NO_BULLET:
                return child.tag in _BULLETS
    return False


def _level(properties: etree._Element | None) -> int:
    level = properties.get("lvl", "0") if properties is not None else "0"
    return min(int(level), 8) if level.isdecimal() else 0
