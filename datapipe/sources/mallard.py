"""Mallard pages (the help of GNOME), with their captioned videos.

Owns the walk over Mallard's elements, its conditions, and what stands commented out but is true of a video.
"""

from lxml import etree

from datapipe.errors import MalformedMarkup
from datapipe.sources import video
from datapipe.sources.items import Flow, Item, RawDocument, document, resolve

MALLARD = "http://projectmallard.org/1.0/"
_TTML = "http://www.w3.org/ns/ttml"
_PREFIXES = {
    None: MALLARD,
    "its": "http://www.w3.org/2005/11/its",
    "tt": _TTML,
    "if": "http://projectmallard.org/if/1.0/",
    "uix": "http://projectmallard.org/experimental/ui/",
    "xlink": "http://www.w3.org/1999/xlink",
}
_IF_TEST = "{http://projectmallard.org/if/1.0/}test"
_TRUE_CONDITIONS = frozenset(("target:html", "target:xhtml"))
_MALLARD_SKIPPED = frozenset(("info", "comment", "links", "thumb", "cite", "rules", "include"))
_MALLARD_BLOCKS: dict[str, str | None] = {
    "title": "heading",
    "subtitle": "heading",
    "desc": "caption",
    "item": "list_item",
    "screen": "code",
    "quote": "paragraph",
    **dict.fromkeys(
        (
            "p",
            "synopsis",
            "note",
            "section",
            "list",
            "steps",
            "terms",
            "tree",
            "example",
            "listing",
            "thead",
            "tbody",
            "tfoot",
            "when",
            "else",
            "if",
            "div",
        )
    ),
}
_CODE_PARENTS = frozenset(
    (
        "page",
        "section",
        "item",
        "note",
        "example",
        "figure",
        "listing",
        "quote",
        "td",
        "th",
        "when",
        "else",
        "if",
        "synopsis",
    )
)


def read(data: bytes, uri: str) -> RawDocument:
    """Read a Mallard page.

    A section that is commented out and embeds a captioned video is read in its place: the words are there,
    and true of the video.

    Raises:
        MalformedMarkup: it is no well-formed XML.
        EmptyDocument: there is no content.
    """
    try:
        root = etree.fromstring(data, _parser())
    except etree.XMLSyntaxError as error:
        raise MalformedMarkup(f"line {error.lineno}: {error.msg}") from error
    walk = _MallardWalk(uri)
    walk.block(root, None)
    title = root.find(f"{{{MALLARD}}}title")
    lang = root.get("{http://www.w3.org/XML/1998/namespace}lang")
    words = "".join(title.itertext()) if title is not None else None
    return document("mallard", words, lang, walk.flow.items)


def _parser() -> etree.XMLParser:
    return etree.XMLParser(no_network=True, resolve_entities="internal", load_dtd=False)


class _MallardWalk:
    """One walk over a Mallard tree (libxml2 bounds its depth)."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.flow = Flow()

    def children(self, element: etree._Element) -> None:
        self.flow.write(element.text or "")
        for child in element:
            if child.tag is etree.Comment:
                self.comment(child)
            elif isinstance(child.tag, str):
                self.element(child)
            self.flow.write(child.tail or "")

    def element(self, element: etree._Element) -> None:
        name = etree.QName(element).localname
        if name in _MALLARD_SKIPPED or not _holds(element.get(_IF_TEST)):
            return
        if name == "media":
            self.medium(element)
        elif name == "choose":
            self.choice(element)
        elif name == "if" and not _holds(element.get("test")):
            return
        elif name in ("table", "tr", "td", "th"):
            self.table_part(name, element)
        elif name in ("title", "desc") and _local_parent(element) == "table":
            self.children(element)
            self.flow.end_table_caption()
        elif name == "figure":
            self.flow.open_figure()
            self.block(element, None)
            self.flow.close_figure()
        elif name == "code" and _local_parent(element) in _CODE_PARENTS:
            self.block(element, "code")
        elif name in _MALLARD_BLOCKS:
            self.block(element, _MALLARD_BLOCKS[name])
        else:
            self.inline(name, element)

    def block(self, element: etree._Element, role: str | None) -> None:
        self.flow.open(role)
        self.children(element)
        self.flow.close()

    def choice(self, element: etree._Element) -> None:
        """Walk the first branch of an <if:choose> whose test holds; content outside of branches stands for
        <if:else>.
        """
        named = [(etree.QName(child).localname, child) for child in element if isinstance(child.tag, str)]
        for name, child in named:
            if name == "when" and _holds(child.get("test")):
                self.block(child, None)
                return
        for name, child in named:
            if name != "when":
                self.element(child)

    def table_part(self, name: str, element: etree._Element) -> None:
        if name == "table":
            self.flow.open_table()
        self.children(element)
        if name == "table":
            self.flow.close_table()
        elif name == "tr":
            self.flow.end_row()
        else:
            self.flow.end_cell()

    def inline(self, name: str, element: etree._Element) -> None:
        if name in ("keyseq", "guiseq"):
            parts = ["".join(child.itertext()).strip() for child in element if isinstance(child.tag, str)]
            self.flow.write(("+" if name == "keyseq" else " → ").join(parts))
        elif name == "link" and not "".join(element.itertext()).strip():
            self.flow.write((element.get("xref") or element.get("href") or "").rpartition("#")[2])
        else:
            self.children(element)

    def medium(self, element: etree._Element) -> None:
        source = resolve(self.uri, element.get("src") or "")
        kind = element.get("type", "image")
        if source is None or kind not in ("image", "video"):
            return
        item = Item(kind, "figure", href=source, mime=element.get("mime"))
        timed = element.find(f".//{{{_TTML}}}tt")
        captions = video.from_ttml(timed) if timed is not None else []
        if captions:
            self.flow.add(video.captioned(item, captions))
        else:
            self.flow.medium(item, "".join(element.itertext()))

    def comment(self, comment: etree._Comment) -> None:
        text = comment.text or ""
        if "<media" not in text or f'"{_TTML}"' not in text:
            return
        wrapped = _parse_fragment(text[text.find("<") :])
        if wrapped is not None:
            self.block(wrapped, None)


def _parse_fragment(text: str) -> etree._Element | None:
    """Parse a commented-out part of a page; None when it is no XML."""
    names = " ".join(f'xmlns{":" + prefix if prefix else ""}="{uri}"' for prefix, uri in _PREFIXES.items())
    try:
        return etree.fromstring(f"<section {names}>{text}</section>", _parser())
    except etree.XMLSyntaxError:
        return None


def _local_parent(element: etree._Element) -> str:
    parent = element.getparent()
    return etree.QName(parent).localname if parent is not None else ""


def _holds(test: str | None) -> bool:
    """Return whether a Mallard condition holds for a plain HTML reader on an unknown platform.

    Commas mean or, spaces mean and, `!` negates a token; a token of a platform or action is never true.
    """
    if test is None:
        return True
    return any(
        all(
            (token[1:] not in _TRUE_CONDITIONS) if token.startswith("!") else token in _TRUE_CONDITIONS
            for token in part.split()
        )
        for part in test.split(",")
    )
