"""What styles say of the paragraphs of a word document: headings, captions, lists, code.

Owns inheritance between styles and the names by which the built-in ones are known, which are English in files
of every language. Reads no text.
"""

import dataclasses
import re

from lxml import etree

from datapipe.sources.office import NAMESPACES, is_monospaced, qualified

_HEADING = re.compile(r"heading [1-9]|title", re.IGNORECASE)
_CONTENTS = re.compile(
    r"toc \d|toc heading|table of figures|table of authorities|toa heading|index \d", re.IGNORECASE
)
_CODE = re.compile(
    r".*\bcode\b|.*\blisting\b|html preformatted|preformatted text|verbatim|macro|program", re.IGNORECASE
)
_MAX_INHERITANCE = 30  # styles that a style is based on; more is a circle
_VALUE = qualified("w:val")


@dataclasses.dataclass(frozen=True)
class Style:
    """What a paragraph is. `level` is that of its list, from 0; None for a paragraph in no list."""

    role: str
    level: int | None = None
    is_contents: bool = False  # a line of the table of contents or of the index


class Styles:
    """The styles of a document."""

    def __init__(self, root: etree._Element | None) -> None:
        found = root.iterfind("w:style", NAMESPACES) if root is not None else ()
        self._known: dict[str, Style] = {}
        self._by_id = {style.get(qualified("w:styleId")): style for style in found}
        default = (
            root.find("w:docDefaults/w:rPrDefault/w:rPr/w:lang", NAMESPACES) if root is not None else None
        )
        self.languages = dict(default.attrib) if default is not None else {}

    def of_paragraph(self, properties: etree._Element | None) -> Style:
        """Return what a paragraph with these properties (`w:pPr`) is."""
        name = value(properties, "w:pStyle")
        if name not in self._known:
            self._known[name] = self._named(name)
        style = self._known[name]
        level = self._level(properties, style)
        own = value(properties, "w:outlineLvl")
        is_heading = own.isdecimal() and int(own) < 9 if own else style.role == "heading"
        if style.is_contents or (style.role in ("caption", "code") and not is_heading):
            return dataclasses.replace(style, level=None)
        if is_heading:
            return Style("heading")
        return Style("paragraph" if level is None else "list_item", level)

    def is_code(self, run: etree._Element) -> bool:
        """Return whether a run is set in a typewriter's font, by itself or by its style."""
        properties = run.find("w:rPr", NAMESPACES)
        fonts = properties.find("w:rFonts", NAMESPACES) if properties is not None else None
        if fonts is not None and (font := fonts.get(qualified("w:ascii"))):
            return is_monospaced(font)
        return self._is_code_style(value(properties, "w:rStyle"))

    def _is_code_style(self, id: str) -> bool:
        chain = self._chain(id)
        fonts = [f for s in chain if (f := s.find("w:rPr/w:rFonts", NAMESPACES)) is not None]
        return any(is_monospaced(font.get(qualified("w:ascii")) or "") for font in fonts[:1])

    def _named(self, id: str) -> Style:
        """Return what a style makes of a paragraph; `level` is that of the list the style stands for."""
        chain = self._chain(id)
        names = [value(style, "w:name") for style in chain]
        level = next(
            (self._list_level(p) for s in chain if _list(p := s.find("w:pPr", NAMESPACES)) is not None), None
        )
        outline = next((v for s in chain if (v := value(s.find("w:pPr", NAMESPACES), "w:outlineLvl"))), "")
        if any(_CONTENTS.fullmatch(name) for name in names):
            return Style("paragraph", is_contents=True)
        if any(_HEADING.fullmatch(name) for name in names) or (outline.isdecimal() and int(outline) < 9):
            return Style("heading", level)
        if any(name.lower() == "caption" for name in names):
            return Style("caption", level)
        if any(_CODE.match(name) for name in names):
            return Style("code", level)
        return Style("paragraph", level)

    def _chain(self, id: str) -> list[etree._Element]:
        """Return a style and those it is based on, the nearest first."""
        chain: list[etree._Element] = []
        while (style := self._by_id.get(id)) is not None and len(chain) < _MAX_INHERITANCE:
            chain.append(style)
            id = value(style, "w:basedOn")
        return chain

    def _level(self, properties: etree._Element | None, style: Style) -> int | None:
        """Return the level of a paragraph's list; its own word wins over its style's, number 0 is no list."""
        return style.level if _list(properties) is None else self._list_level(properties)

    def _list_level(self, properties: etree._Element | None) -> int | None:
        numbering = _list(properties)
        if numbering is None or value(numbering, "w:numId") == "0":
            return None
        level = value(numbering, "w:ilvl") or "0"
        return min(int(level), 8) if level.isdecimal() else 0


def value(element: etree._Element | None, name: str) -> str:
    """Return the value of a property of an element; "" where it is not set."""
    found = element.find(name, NAMESPACES) if element is not None else None
    return "" if found is None else found.get(_VALUE, "")


def is_on(element: etree._Element | None, name: str) -> bool:
    """Return whether a property that is on or off is on."""
    found = element.find(name, NAMESPACES) if element is not None else None
    return found is not None and found.get(_VALUE, "1") not in ("0", "false", "off")


def _list(properties: etree._Element | None) -> etree._Element | None:
    return properties.find("w:numPr", NAMESPACES) if properties is not None else None
