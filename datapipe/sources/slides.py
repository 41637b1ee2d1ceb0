"""Slides (.pptx, and its macro, template and slide show siblings).

Owns what of a deck is content and in which order a reader takes it in. On each slide the title comes first,
then the shapes as they lie (`sources.reading_order`; a group is one shape with an order of its own), footers,
and the notes. The page of an item is its slide's number. What masters and layouts show on every slide is left
out, and so are comments and animations.

Masks: `hidden_slide` for slides the show skips, `page_footer` for dates, footers and slide numbers, and
`off_slide` for shapes that lie outside of the slide. Pictures keep the bytes of their file: what the slide
crops away is in them, and one file that is shown twice is there twice.
"""

import dataclasses
from collections.abc import Iterator

from lxml import etree

from datapipe.errors import MalformedMarkup
from datapipe.sources import charts, reading_order
from datapipe.sources.items import Item, RawDocument, document, prose
from datapipe.sources.office import (
    LEVEL,
    NAMESPACES,
    Package,
    alternative_text,
    children,
    main_language,
    qualified,
)
from datapipe.sources.reading_order import Box
from datapipe.sources.slide_geometry import Transform, around, box_of, emu, is_somewhere, of_group
from datapipe.sources.slide_text import TITLES, Paragraph, Styles, paragraphs, placeholder, texts

_FOOTERS = ("dt", "ftr", "sldNum", "hdr")
_WIDTH_EMU, _HEIGHT_EMU = 12_192_000, 6_858_000  # a wide slide, where the deck does not say
_MAX_GROUP_DEPTH = 40
_WHOLE = ("p:pic", "p:sp", "p:graphicFrame", "p:grpSp", "p:cxnSp")
_NO_STYLES = Styles(None, None)
_PICTURE, _SHAPE, _FRAME, _GROUP, _LINE = map(qualified, _WHOLE)


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What lies somewhere on a slide: its box in EMU on the slide, and its items."""

    box: Box
    items: list[Item]
    place: str = ""  # title or footer; "" for everything else


def read(data: bytes, uri: str) -> RawDocument:
    """Read a deck of slides.

    Raises:
        Encrypted: it is behind a password.
        FileTooLarge: it would unpack to more than the limits (see `sources.archive`).
        MalformedMarkup: it is no such file, or a part that it cannot do without is missing or broken.
        EmptyDocument: its slides hold nothing.
    """
    deck = _Deck(Package(data, uri))
    items: list[Item] = []
    for number, part in enumerate(deck.slide_parts(), start=1):
        if part is not None:
            items += [dataclasses.replace(item, page=number) for item in deck.slide(part)]
    first_title = next((i.text for i in items if i.role == "heading"), None)
    language = main_language(deck.languages) or deck.package.property("dc:language")
    return document("slides", deck.package.title() or first_title, language, items)


class _Deck:
    """A deck while its slides are read."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.main = package.main_part("ppt/presentation.xml")
        root = package.xml(self.main)
        if root.tag != qualified("p:presentation"):
            raise MalformedMarkup(f"{self.main} is no presentation but {etree.QName(root).localname}")
        self.ids = [e.get(qualified("r:id")) for e in root.iterfind("p:sldIdLst/p:sldId", NAMESPACES)]
        size = root.find("p:sldSz", NAMESPACES)
        self.width = emu(size, "cx", _WIDTH_EMU) or _WIDTH_EMU
        self.height = emu(size, "cy", _HEIGHT_EMU) or _HEIGHT_EMU
        self.is_right_to_left = root.get("rtl") in ("1", "true")
        self.languages: list[tuple[str | None, int]] = []
        self.roots: dict[str | None, etree._Element | None] = {}

    def slide_parts(self) -> Iterator[str | None]:
        """Yield the part of each slide in the order of the show; None for one that is not there."""
        relationships = self.package.relationships(self.main)
        for id in self.ids:
            found = relationships.get(id or "")
            yield found.target if found is not None and found.target in self.package.archive else None

    def slide(self, part: str) -> list[Item]:
        """Return the items of a slide."""
        root = self.package.xml(part)
        reading = _Slide(self, part, self.styles(part))
        items = [*reading.items(root), *self.notes(part)]
        if root.get("show") in ("0", "false"):
            items = [dataclasses.replace(item, mask="hidden_slide") for item in items]
        return items

    def paragraphs(self, shape: etree._Element, styles: Styles) -> list[Paragraph]:
        """Return the paragraphs of a shape or table cell, and note the languages they are marked with."""
        found = list(paragraphs(shape, styles))
        self.languages += [language for paragraph in found for language in paragraph.languages]
        return found

    def styles(self, part: str) -> Styles:
        """Return where a slide's placeholders inherit their place and style from."""
        layout = self.package.related(part, "slideLayout")
        master = self.package.related(layout, "slideMaster") if layout else None
        for inherited in (layout, master):
            if inherited not in self.roots:
                self.roots[inherited] = self.package.optional_xml(inherited)
        return Styles(self.roots[layout], self.roots[master])

    def notes(self, part: str) -> list[Item]:
        """Return the words of the notes page of a slide, without what the page shows besides."""
        root = self.package.optional_xml(self.package.related(part, "notesSlide"))
        if root is None:
            return []
        items = []
        for shape in root.iter(_SHAPE):
            kind = placeholder(shape)
            if kind is None or kind.type not in (*_FOOTERS, "sldImg"):
                items += [Item("text", "note", text=p.text) for p in self.paragraphs(shape, _NO_STYLES)]
        return items


class _Slide:
    """A slide while its shapes are collected."""

    def __init__(self, deck: _Deck, part: str, styles: Styles) -> None:
        self.deck, self.package, self.part, self.styles = deck, deck.package, part, styles

    def items(self, root: etree._Element) -> list[Item]:
        tree = root.find("p:cSld/p:spTree", NAMESPACES)
        background = root.find("p:cSld/p:bg/p:bgPr/a:blipFill/a:blip", NAMESPACES)
        shapes = list(self.shapes(tree, Transform(), 0)) if tree is not None else []
        if background is not None and (picture := self.package.picture(self.part, background)) is not None:
            shapes.insert(0, _Shape(Box(0, 0, self.deck.width, self.deck.height, True), [picture]))
        shapes = [self.off_slide(shape) for shape in shapes]
        titles = [s for s in shapes if s.place == "title"]
        footers = [s for s in shapes if s.place == "footer"]
        content = self.ordered([s for s in shapes if not s.place])
        return [item for shape in (*titles, *content, *footers) for item in shape.items]

    def ordered(self, shapes: list[_Shape]) -> list[_Shape]:
        deck = self.deck
        boxes = [shape.box for shape in shapes]
        order = reading_order.order(boxes, deck.width, deck.height, deck.is_right_to_left)
        return [shapes[number] for number in order]

    def off_slide(self, shape: _Shape) -> _Shape:
        """Return a shape, with a mask on its items where no part of it is on the slide."""
        box = shape.box
        is_on = box.x1 > 0 and box.y1 > 0 and box.x0 < self.deck.width and box.y0 < self.deck.height
        if is_on or not is_somewhere(box):
            return shape
        masked = [dataclasses.replace(i, mask=i.mask or "off_slide") for i in shape.items]
        return dataclasses.replace(shape, items=masked)

    def shapes(self, tree: etree._Element, transform: Transform, depth: int) -> Iterator[_Shape]:
        """Yield the shapes that have items, from back to front."""
        for element in children(tree):
            properties = next(element.iterfind("./*/p:cNvPr", NAMESPACES), None)
            if properties is not None and properties.get("hidden") in ("1", "true"):
                continue
            if depth > _MAX_GROUP_DEPTH:
                raise MalformedMarkup(
                    f"{self.part}: groups inside each other, more than {_MAX_GROUP_DEPTH} deep"
                )
            if element.tag == _GROUP:
                shape = self.group(element, transform, depth)
            else:
                shape = self.leaf(element, transform, alternative_text(properties))
            if shape.items:
                yield shape

    def group(self, element: etree._Element, transform: Transform, depth: int) -> _Shape:
        """Return a group as one shape; what in it is a title or footer stays in its place."""
        xfrm = element.find("p:grpSpPr/a:xfrm", NAMESPACES)
        inner = list(self.shapes(element, transform.after(of_group(xfrm)), depth + 1))
        items = [item for shape in self.ordered(inner) for item in shape.items]
        boxes = [shape.box for shape in inner if is_somewhere(shape.box)]
        return _Shape(around(boxes, all(b.is_medium for b in boxes)), items)

    def leaf(self, element: etree._Element, transform: Transform, alt: str) -> _Shape:
        kind = placeholder(element)
        type = kind.type if kind is not None else ""
        items = self.leaf_items(element, alt, is_title=type in TITLES)
        is_medium = any(i.kind != "text" for i in items) and all(
            i.kind != "text" or i.role == "alt" for i in items
        )
        box = box_of(self.styles.frame(element), transform, is_medium)
        if type in _FOOTERS:
            mask = "page_header" if type == "hdr" else "page_footer"
            return _Shape(box, [dataclasses.replace(i, mask=mask) for i in items], "footer")
        return _Shape(box, items, "title" if type in TITLES else "")

    def leaf_items(self, element: etree._Element, alt: str, is_title: bool) -> list[Item]:
        if element.tag == _PICTURE:
            return self.picture(element, alt)
        if element.tag == _FRAME:
            return self.frame(element, alt)
        if element.tag != _SHAPE:
            return []
        fill = element.find("p:spPr/a:blipFill/a:blip", NAMESPACES)
        picture = self.package.picture(self.part, fill) if fill is not None else None
        found = self.deck.paragraphs(element, self.styles)
        shown = _with_alt([picture], alt) if picture is not None else []
        return [*shown, *(_title(found) if is_title else texts(found))]

    def picture(self, element: etree._Element, alt: str) -> list[Item]:
        """Return a picture, or the video or nothing (a sound) that it stands for on the slide."""
        properties = element.find("p:nvPicPr/p:nvPr", NAMESPACES)
        blip = element.find("p:blipFill/a:blip", NAMESPACES)
        picture = self.package.picture(self.part, blip) if blip is not None else None
        if properties is None:
            return _with_alt([picture], alt)
        if any(
            properties.find(f"a:{sound}", NAMESPACES) is not None for sound in ("audioFile", "wavAudioFile")
        ):
            return []
        video = self.video(properties)
        if video is None:
            return _with_alt([picture], alt)
        poster = [] if video.data is not None else [picture]  # all there is to see of a video elsewhere
        return _with_alt([video, *poster], alt)

    def video(self, properties: etree._Element) -> Item | None:
        """Return the video of a picture's properties, the embedded file if there is one."""
        relationships = self.package.relationships(self.part)
        embedded = [e.get(qualified("r:embed")) for e in properties.iter(qualified("p14:media"))]
        linked = [
            e.get(qualified("r:link")) for e in properties if _local(e) in ("videoFile", "quickTimeFile")
        ]
        if not linked:
            return None
        found = [relationships[id] for id in (*embedded, *linked) if id and id in relationships]
        items = [item for item in (self.package.medium(r, "video") for r in found) if item is not None]
        return next((i for i in items if i.data is not None), items[0] if items else None)

    def frame(self, element: etree._Element, alt: str) -> list[Item]:
        """Return the table, chart, diagram or embedded object of a frame."""
        data = element.find("a:graphic/a:graphicData", NAMESPACES)
        for content in children(data) if data is not None else ():
            name = _local(content)
            if name == "tbl":
                return self.table(content)
            if name == "chart":
                return self.chart(content)
            if name == "relIds":
                return self.diagram(content)
            if name == "oleObj":
                blip = content.find(".//p:pic/p:blipFill/a:blip", NAMESPACES)
                return _with_alt([self.package.picture(self.part, blip)] if blip is not None else [], alt)
        return []

    def table(self, table: etree._Element) -> list[Item]:
        rows = []
        for row in table.iterfind("a:tr", NAMESPACES):
            cells = []
            for cell in row.iterfind("a:tc", NAMESPACES):
                found = self.deck.paragraphs(cell, _NO_STYLES)
                is_covered = "1" in (cell.get("hMerge"), cell.get("vMerge"))
                cells.append("" if is_covered else " ".join(prose(p.text).replace("\n", " ") for p in found))
            rows.append(cells)
        lines = [" | ".join(cells) for cells in rows if any(cells)]
        return [Item("text", "table", text="\n".join(lines))] if lines else []

    def chart(self, content: etree._Element) -> list[Item]:
        found = self.package.relationships(self.part).get(content.get(qualified("r:id")) or "")
        root = self.package.optional_xml(found.target) if found is not None else None
        text = charts.chart_table(root) if root is not None else ""
        return [Item("text", "table", text=text)] if text else []

    def diagram(self, content: etree._Element) -> list[Item]:
        """Return the words of a SmartArt diagram as its outline, then its pictures."""
        found = self.package.relationships(self.part).get(content.get(qualified("r:dm")) or "")
        root = self.package.optional_xml(found.target) if found is not None else None
        if found is None or root is None:
            return []
        outline = [
            Item("text", "list_item", text=LEVEL * level + text)
            for level, text in charts.diagram_outline(root)
        ]
        blips = (self.package.picture(found.target, blip) for blip in root.iter(qualified("a:blip")))
        pictures: dict[bytes | str | None, Item] = {}
        for picture in blips:
            if picture is not None:
                pictures.setdefault(picture.data or picture.href, picture)
        return [*outline, *pictures.values()]


def _title(found: list[Paragraph]) -> list[Item]:
    text = " ".join(prose(p.text).replace("\n", " ") for p in found)
    return [Item("text", "heading", text=text)] if text else []


def _with_alt(media: list[Item | None], alt: str) -> list[Item]:
    items = [item for item in media if item is not None]
    return [*items, Item("text", "alt", text=alt)] if items and alt else items


def _local(element: etree._Element) -> str:
    return etree.QName(element).localname
