"""Office Open XML packages: parts, the relationships between them, and the properties of the document.

Owns what slides and word documents have in common around their text: parts by relationship, pictures by
relationship, alternative text, and which branch of alternative content to read. A relationship to a part that
is not there is no error: what it stands for is missing, and the rest of the document is read.
"""

import dataclasses
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from lxml import etree

from datapipe.errors import MalformedMarkup
from datapipe.sources.archive import Archive
from datapipe.sources.items import Item, prose, resolve

_SCHEMAS = "http://schemas.openxmlformats.org"
NAMESPACES = {
    "a": f"{_SCHEMAS}/drawingml/2006/main",
    "asvg": "http://schemas.microsoft.com/office/drawing/2016/SVG/main",
    "adec": "http://schemas.microsoft.com/office/drawing/2017/decorative",
    "c": f"{_SCHEMAS}/drawingml/2006/chart",
    "cx": "http://schemas.microsoft.com/office/drawing/2014/chartex",
    "dc": "http://purl.org/dc/elements/1.1/",
    "dgm": f"{_SCHEMAS}/drawingml/2006/diagram",
    "dsp": "http://schemas.microsoft.com/office/drawing/2008/diagram",
    "m": f"{_SCHEMAS}/officeDocument/2006/math",
    "mc": f"{_SCHEMAS}/markup-compatibility/2006",
    "o": "urn:schemas-microsoft-com:office:office",
    "p": f"{_SCHEMAS}/presentationml/2006/main",
    "p14": "http://schemas.microsoft.com/office/powerpoint/2010/main",
    "pic": f"{_SCHEMAS}/drawingml/2006/picture",
    "r": f"{_SCHEMAS}/officeDocument/2006/relationships",
    "v": "urn:schemas-microsoft-com:vml",
    "w": f"{_SCHEMAS}/wordprocessingml/2006/main",
    "wp": f"{_SCHEMAS}/drawingml/2006/wordprocessingDrawing",
    "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
}
LEVEL = "- "  # before a list item, for each level below the first
# Extensions whose content is read here; for others the fallback, mostly a picture, says more.
_UNDERSTOOD = frozenset(["a14", "cx", "cx1", "cx2", "cx4", "w14", "w15", "wp14", "wpc", "wpg", "wps"])
_FILE_NAME = re.compile(
    r"(?:.*[/\\])?[^/\\\n]+\.(?:png|jpe?g|gif|bmp|tiff?|emf|wmf|svg|webp|mp4|mov|wmv|avi)", re.I
)
_MACHINE_MADE = re.compile(
    r"\s*(?:Description (?:automatically )?generated(?: with \w+ confidence)?"
    r"|AI-generated content may be incorrect\.?|Automatisch generierte Beschreibung)\s*$",
    re.I,
)
_SHAPE_NAME = re.compile(r"(?:picture|image|grafik|bild|graphic|content placeholder)\s*\d*", re.I)
_NO_TITLE = re.compile(
    r"(?:powerpoint[ -]\S+|presentation|untitled|slide \d+|(?:microsoft word|document)\s*\d*|word document)",
    re.I,
)


_MONOSPACED = re.compile(
    r"courier|consolas|monaco|menlo|inconsolata|lucida console|lucida sans typewriter|andale mono|fixedsys"
    r"|.*\bmono\b|source code|fira code|cascadia|ocr a|letter gothic|terminal",
    re.IGNORECASE,
)


def is_monospaced(font: str) -> bool:
    """Return whether a font is a typewriter's, in which documents set code."""
    return _MONOSPACED.match(font) is not None


def qualified(name: str) -> str:
    """Return the tag or attribute that lxml knows by `prefix:name`."""
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


_ALTERNATIVE, _CHOICE, _FALLBACK = map(qualified, ("mc:AlternateContent", "mc:Choice", "mc:Fallback"))
_PICTURE_IDS = tuple(map(qualified, ("r:embed", "r:id", "r:link", "r:href", "o:relid")))


@dataclasses.dataclass(frozen=True)
class Relationship:
    """What a part refers to by an id: another part, by its name in the archive, or something outside."""

    kind: str  # the last part of its type: image, slide, chart ...
    target: str
    is_external: bool


class Package:
    """An Office Open XML package."""

    def __init__(self, data: bytes, uri: str) -> None:
        """Open a package.

        Raises:
            ReadError: it is no archive that can be read (see `Archive`).
        """
        self.uri = uri
        self.archive = Archive(data)
        self._relationships: dict[str, dict[str, Relationship]] = {}

    def main_part(self, default: str) -> str:
        """Return the name of the part the document begins with, `default` where the package does not say."""
        found = next(
            (r.target for r in self.relationships("").values() if r.kind == "officeDocument"), default
        )
        return found if found in self.archive else default

    def relationships(self, part: str) -> dict[str, Relationship]:
        """Return the relationships of a part by their ids; those of the package for an empty name."""
        if part not in self._relationships:
            folder, name = posixpath.split(part)
            root = self.optional_xml(posixpath.join(folder, "_rels", f"{name}.rels"))
            found = {} if root is None else {e.get("Id") or "": _relationship(e, folder) for e in root}
            self._relationships[part] = found
        return self._relationships[part]

    def related(self, part: str, kind: str) -> str | None:
        """Return the name of the first part of this kind that a part refers to."""
        found = (r for r in self.relationships(part).values() if r.kind == kind and not r.is_external)
        return next((r.target for r in found if r.target in self.archive), None)

    def xml(self, part: str) -> etree._Element:
        """Return the root element of a part the document cannot do without.

        Raises:
            MalformedMarkup: it is missing or cannot be parsed.
        """
        root = self.archive.xml(part)
        if root is None:
            raise MalformedMarkup(f"{part} is missing in the package")
        return root

    def optional_xml(self, part: str | None) -> etree._Element | None:
        """Return the root element of a part; None where it is missing or cannot be parsed."""
        try:
            return self.archive.xml(part) if part else None
        except MalformedMarkup:
            return None

    def property(self, name: str) -> str | None:
        """Return a property of the document, such as `dc:title`; None where it has none."""
        found = next((r.target for r in self.relationships("").values() if r.kind == "core-properties"), None)
        root = self.optional_xml(found)
        value = root.findtext(qualified(name)) if root is not None else None
        return prose(value or "") or None

    def title(self) -> str | None:
        """Return the document's title; None where it is only what the program calls every document."""
        title = self.property("dc:title")
        return None if title is None or _NO_TITLE.fullmatch(title) else title

    def picture(self, part: str, element: etree._Element) -> Item | None:
        """Return the picture that an element (`a:blip`, `v:imagedata`) refers to."""
        ids = [element.get(name) for name in _PICTURE_IDS]
        found = [self.relationships(part)[i] for i in ids if i and i in self.relationships(part)]
        return self.medium(found[0], "image") if found else None

    def medium(self, relationship: Relationship, kind: str) -> Item | None:
        """Return the picture or video at the end of a relationship: its bytes, or a link to one outside.

        A part that is not there is named by a link that leads nowhere: its item stays, without a medium.
        """
        if relationship.is_external:
            href = resolve(self.uri, relationship.target)
            return Item(kind, "figure", href=href) if href else None
        data = self.archive.medium(relationship.target)
        if not data:
            return Item(kind, "figure", href=f"{self.uri}#/{relationship.target}")
        return Item(kind, "figure", data=data)


def children(element: etree._Element) -> Iterator[etree._Element]:
    """Yield the child elements, with alternative content replaced by the branch that is read here."""
    for child in element:
        if not isinstance(child.tag, str):
            continue
        if child.tag == _ALTERNATIVE:
            branch = _branch(child)
            if branch is not None:
                yield from children(branch)
        else:
            yield child


def alternative_text(properties: etree._Element | None) -> str:
    """Return what a picture's properties (`cNvPr`, `docPr`) say it shows; "" where they do not say.

    File names, names that the program gave, and what it says about its own descriptions are left out.
    """
    if properties is None:
        return ""
    decorative = next(properties.iter(qualified("adec:decorative")), None)
    if decorative is not None and decorative.get("val") in ("1", "true"):
        return ""
    text = _MACHINE_MADE.sub("", properties.get("descr") or "")
    text = prose(text) or prose(properties.get("title") or "")
    return "" if _FILE_NAME.fullmatch(text) or _SHAPE_NAME.fullmatch(text) else text


def main_language(languages: Iterable[tuple[str | None, int]]) -> str | None:
    """Return the language most characters are marked with; None where none is marked."""
    count: Counter[str] = Counter()
    for language, num_characters in languages:
        if language:
            count[language.split("-")[0].lower()] += num_characters
    return min(count, key=lambda language: (-count[language], language)) if count else None


def _branch(alternative: etree._Element) -> etree._Element | None:
    for choice in alternative.iterchildren(_CHOICE):
        if set((choice.get("Requires") or "").split()) <= _UNDERSTOOD:
            return choice
    fallback = next(alternative.iterchildren(_FALLBACK), None)
    return fallback if fallback is not None else next(alternative.iterchildren(_CHOICE), None)


def _relationship(element: etree._Element, folder: str) -> Relationship:
    target, is_external = element.get("Target") or "", element.get("TargetMode") == "External"
    if not is_external:
        target = posixpath.normpath(posixpath.join("/", folder, unquote(target))).lstrip("/")
    return Relationship((element.get("Type") or "").rpartition("/")[2], target, is_external)
