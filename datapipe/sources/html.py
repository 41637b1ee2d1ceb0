"""HTML pages: an ordered walk over the tree of selectolax (lexbor).

Owns what of a page is content: headings, prose, lists, code, tables, pictures with alternative text and
captions, and embedded videos, in reading order. Knows HTML's own figures and the shapes that DocBook,
AsciiDoc, Sphinx, MediaWiki and WordPress write. Navigation, scripts and hidden parts are left out.
"""

import base64
import re
from urllib.parse import unquote_to_bytes

from selectolax.lexbor import LexborHTMLParser, LexborNode

from datapipe.sources.items import Flow, Item, RawDocument, document, is_remote, resolve
from datapipe.sources.text import decode

_BLOCKS = frozenset(
    (
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "caption",
        "center",
        "dd",
        "details",
        "dialog",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "html",
        "legend",
        "li",
        "main",
        "menu",
        "ol",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "ul",
    )
)
_SKIPPED = frozenset(
    (
        "head",
        "script",
        "style",
        "template",
        "nav",
        "svg",
        "iframe",
        "object",
        "embed",
        "button",
        "select",
        "textarea",
        "input",
        "datalist",
        "canvas",
        "audio",
        "map",
        "annotation",
        "annotation-xml",
    )
)
_SKIPPED_CLASSES = frozenset(
    (
        "navheader",
        "navfooter",
        "toc",
        "sphinxsidebar",
        "sphinxsidebarwrapper",
        "related",
        "headerlink",
        "breadcrumb",
        "breadcrumbs",
        "navbar",
        "skip-link",
        "system-message",
        "mw-editsection",
    )
)
_SKIPPED_ARIA_ROLES = frozenset(("navigation", "banner", "contentinfo", "search"))
_FIGURE_CLASSES = frozenset(
    (
        "figure",
        "informalfigure",
        "mediaobject",
        "imageblock",
        "videoblock",
        "wp-caption",
        "thumb",
        "gallerybox",
        "screenshot",
        "equation",
        "example",
        "listingblock",
        "tableblock",
        "exampleblock",
    )
)
_CAPTION_CLASSES = frozenset(("caption", "wp-caption-text", "thumbcaption", "figure-caption", "gallerytext"))
_ADMONITIONS = frozenset(("note", "tip", "warning", "caution", "important", "admonition", "admonitionblock"))
_ROLES = {
    **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), "heading"),
    "pre": "code",
    "li": "list_item",
    "dt": "list_item",
    "dd": "paragraph",
    "blockquote": "paragraph",
    "figcaption": "caption",
    "caption": "caption",
    "td": "paragraph",
    "th": "paragraph",
}
_LAZY_SOURCES = (
    "data-src",
    "data-original",
    "data-lazy-src",
    "data-lazy",
    "data-original-src",
    "data-hi-res-src",
    "data-full-src",
    "data-src-fg",
    "data-gt-lazy-src",
    "data-lateloadsrc",
    "data-img-src",
    "data-scroll-image",
)
_PLACEHOLDER = re.compile(
    r"(?:^|[/._-])(?:spacer|blank|placeholder|pixel|transparent|loading|lazy|1x1|clear)"
    r"(?:[._-][^/]*)?\.(?:gif|png|svg|jpe?g|webp)$",
    re.IGNORECASE,
)
_MAX_PLACEHOLDER_CHARS = 1024
_META_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([\w:.-]+)", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]*encoding\s*=\s*[\"']([\w:.-]+)", re.IGNORECASE)
_SELF_CLOSED = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr)\b)"
    r"([a-zA-Z][\w:-]*)((?:\s[^<>]*?)?)\s*/>"
)
_SRCSET_ENTRY = re.compile(r"\s*([^\s,]\S*[^\s,]|[^\s,])(?:\s+([\d.]+)([wx]))?[^,]*(?:,|$)")


def read(data: bytes, uri: str, charset: str | None = None) -> RawDocument:
    """Read an HTML page.

    Args:
        charset: the encoding that came with the page, as in an HTTP header; it goes before the page's own.

    Raises:
        NotText: the bytes are binary.
        EmptyDocument: the page has no content.
    """
    head = data[:4096]
    declared = _META_CHARSET.search(head) or _XML_ENCODING.search(head)
    text = decode(data, charset or (declared.group(1).decode("ascii") if declared else None))
    if text.lstrip().startswith("<?xml"):
        text = _SELF_CLOSED.sub(r"<\1\2></\1>", text)
    return read_page(text, uri, "html")


def read_page(
    text: str, uri: str, format: str, title: str | None = None, lang: str | None = None
) -> RawDocument:
    """Read the characters of an HTML page or fragment, also one that another markup was turned into.

    Raises:
        EmptyDocument: the page has no content.
    """
    tree = LexborHTMLParser(text)
    walk = _Walk(_base(tree, uri))
    if tree.body is not None:
        walk.run(tree.body)
    items = walk.flow.items
    if title is None:
        found = tree.css_first("head > title")
        title = found.text() if found else next((i.text for i in items if i.role == "heading"), None)
    if lang is None and tree.root is not None:
        attributes = tree.root.attributes
        lang = attributes.get("lang") or attributes.get("xml:lang") or _meta_language(tree)
    return document(format, title, lang, items)


def _base(tree: LexborHTMLParser, uri: str) -> str:
    """Return what links of the page are relative to: the page itself, or what its <base> says."""
    found = tree.css_first("base[href]")
    link = (found.attributes["href"] or "") if found else ""
    folder = resolve(uri, link)
    return uri if folder is None else folder + "/" * link.endswith("/")


def _meta_language(tree: LexborHTMLParser) -> str | None:
    found = tree.css_first('meta[http-equiv="content-language" i]')
    return found.attributes.get("content") if found else None


class _Walk:
    """One walk over a page, without recursion: pages nest deeper than Python does."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.flow = Flow()
        self.depth = {"pre": 0, "table": 0, "figure": 0, "section": 0}  # how many of each are open
        self.placeholder: Item | None = None  # a picture whose real address may follow in a <noscript>

    def run(self, root: LexborNode) -> None:
        open_elements: list[tuple[LexborNode, list[str]]] = []
        node: LexborNode | None = root
        while node is not None:
            marks = self.enter(node)
            if marks is not None and node.child is not None:
                open_elements.append((node, marks))
                node = node.child
                continue
            if marks is not None:
                self.leave(node, marks)
            while node is not None and node.next is None:
                if not open_elements:
                    return
                node, marks = open_elements.pop()
                self.leave(node, marks)
                if node is root:
                    return
            node = node.next if node is not None else None

    def enter(self, node: LexborNode) -> list[str] | None:
        """Take in a node; return what it opened, or None where its children are not to be walked."""
        tag = node.tag or ""
        if tag == "-text":
            self.flow.write(node.text_content or "")
            return None
        if tag.startswith("-") or tag in _SKIPPED:
            return None
        if tag in ("img", "video", "br", "wbr", "noscript"):
            self.take(tag, node)
            return None
        attributes = node.attributes
        classes = frozenset((attributes.get("class") or "").split())
        if (
            _is_hidden(attributes)
            or classes & _SKIPPED_CLASSES
            or self.is_page_furniture(tag, node, attributes)
        ):
            return None
        return self.open(tag, node, classes) if tag in _BLOCKS else []

    def is_page_furniture(self, tag: str, node: LexborNode, attributes: dict[str, str | None]) -> bool:
        """Return whether an element is the page's header or footer, not that of an article on it."""
        if attributes.get("role") in _SKIPPED_ARIA_ROLES:
            return node.css_first("h1") is None
        return (
            tag in ("header", "footer")
            and not self.depth["section"]
            and (tag == "footer" or node.css_first("h1") is None)
        )

    def open(self, tag: str, node: LexborNode, classes: frozenset[str]) -> list[str]:
        marks: list[str] = []
        if self.depth["table"]:
            self.flow.open()
            return [*marks, "table part"]
        if tag == "table" and _is_data_table(node):
            self.flow.open_table()
            marks.append("table")
        else:
            if tag == "figure" or classes & _FIGURE_CLASSES:
                self.flow.open_figure()
                marks.append("figure")
            self.flow.open(self.role(tag, classes))
            marks += [
                m
                for m in (
                    "block",
                    "pre" if tag == "pre" else "",
                    "section" if tag in ("article", "main", "section") else "",
                )
                if m
            ]
        for mark in marks:
            if mark in self.depth:
                self.depth[mark] += 1
        return marks

    def role(self, tag: str, classes: frozenset[str]) -> str | None:
        if classes & _CAPTION_CLASSES:
            return "caption"
        if "title" in classes and tag in ("p", "div"):
            return "caption" if self.depth["figure"] else "heading"
        return _ROLES.get(tag)

    def leave(self, node: LexborNode, marks: list[str]) -> None:
        for mark in reversed(marks):
            if mark in self.depth:
                self.depth[mark] -= 1
            if mark == "table":
                self.flow.close_table()
            elif mark == "figure":
                self.flow.close_figure()
            elif mark == "block":
                self.flow.close()
            elif mark == "table part":
                self.flow.close()
                if node.tag in ("td", "th"):
                    self.flow.end_cell()
                elif node.tag == "caption":
                    self.flow.end_table_caption()
                elif node.tag == "tr":
                    self.flow.end_row()

    def take(self, tag: str, node: LexborNode) -> None:
        """Take in an element that has no walked children."""
        if tag == "br":
            self.flow.line_break()
        elif tag == "video":
            self.take_video(node)
        elif tag == "noscript":
            for image in node.css("img"):
                self.take_fallback(image)
        elif tag == "img" and not _is_hidden(node.attributes):
            if self.depth["pre"]:
                self.flow.write(node.attributes.get("alt") or "")  # a callout: code stays whole
            elif (item := self.picture(node)) is not None:
                self.flow.medium(item, node.attributes.get("alt"))

    def picture(self, node: LexborNode) -> Item | None:
        """Return the item of an <img>, or None when it names no picture."""
        link = _best_source(node)
        if link is None:
            return None
        item = _from_link(self.base, link, "image")
        self.placeholder = item if item is not None and _is_placeholder(link) else None
        return item

    def take_fallback(self, image: LexborNode) -> None:
        """Take in the picture of a <noscript> unless it repeats the last; it replaces a placeholder."""
        self.flow.settle()
        placeholder, seen = self.placeholder, [i for i in self.flow.items[-2:] if i.kind == "image"]
        item = self.picture(image)
        if item is None or any(i.href == item.href and i.data == item.data for i in seen):
            return
        if placeholder in self.flow.items:
            self.flow.items.remove(placeholder)
        self.flow.medium(item, image.attributes.get("alt"))

    def take_video(self, node: LexborNode) -> None:
        sources = [node, *node.css("source")]
        link = next((s.attributes["src"] for s in sources if s.attributes.get("src")), None)
        item = _from_link(self.base, link, "video") if link else None
        if item is None:
            return
        self.flow.medium(item, node.attributes.get("aria-label") or node.attributes.get("title"))
        tracks = [
            t.attributes
            for t in node.css("track[src]")
            if t.attributes.get("kind", "subtitles") in ("subtitles", "captions")
        ]
        if tracks:
            best = min(tracks, key=lambda t: "default" not in t)
            self.flow.add([Item("text", "transcript", href=resolve(self.base, best["src"] or ""))])


def _is_hidden(attributes: dict[str, str | None]) -> bool:
    style = (attributes.get("style") or "").replace(" ", "").lower()
    return "hidden" in attributes or attributes.get("aria-hidden") == "true" or "display:none" in style


def _is_data_table(node: LexborNode) -> bool:
    """Tell tables of data from tables that only lay a page out, whose cells are read as blocks."""
    parent = node.parent
    classes = (parent.attributes.get("class") or "").split() if parent is not None else []
    if node.attributes.get("role") == "presentation" or _ADMONITIONS & set(classes):
        return False
    if len(node.css("table")) > 1 or node.css_first("pre, figure, h1, h2, h3, h4") is not None:
        return False
    if node.css_first("th") is not None:
        return True
    cells = node.css("td")
    return len(cells) > 1 and all(len(cell.css("p, li")) < 2 for cell in cells)


def _best_source(node: LexborNode) -> str | None:
    """Return the address of the real picture of an <img>.

    The largest candidate of `srcset` (its own or a <source>'s) wins over lazy attributes, these over `src`. A
    placeholder loses against anything, and a picture beside the page wins over one on the web, which is never
    fetched.
    """
    attributes = node.attributes
    sets = [attributes.get("data-srcset"), attributes.get("srcset")]
    parent = node.parent
    if parent is not None and parent.tag == "picture":
        sets += [
            s.attributes.get("data-srcset") or s.attributes.get("srcset")
            for s in parent.css("source")
            if not s.attributes.get("media")
        ]
    candidates = [(link, size) for s in sets for link, size in _srcset(s or "")]
    ordered = [link for link, _ in sorted(candidates, key=lambda c: -c[1])]
    links = [*ordered, *(attributes.get(name) for name in _LAZY_SOURCES), attributes.get("src")]
    found = [link.strip() for link in links if link and link.strip()]
    found.sort(key=lambda link: (_is_placeholder(link), is_remote(link) and not link.startswith("data:")))
    return found[0] if found else None


def _srcset(value: str) -> list[tuple[str, float]]:
    """Return the candidates of a `srcset` with their width, or their density."""
    if value.strip().startswith("data:"):
        return [(value.split()[0], 1.0)]
    return [(link, float(number or 1)) for link, number, _ in _SRCSET_ENTRY.findall(value)]


def _is_placeholder(link: str) -> bool:
    if link.startswith("data:"):
        return len(link) < _MAX_PLACEHOLDER_CHARS
    return link == "#" or _PLACEHOLDER.search(link.split("?")[0]) is not None


def _from_link(base: str, link: str, kind: str) -> Item | None:
    if not link.startswith("data:"):
        href = resolve(base, link)
        return Item(kind, "figure", href=href) if href else None
    header, _, body = link[len("data:") :].partition(",")
    try:
        data = unquote_to_bytes(body)
        if header.endswith(";base64"):
            data = _from_base64(data)
    except ValueError:
        return None
    return Item(kind, "figure", data=data, mime=header.split(";")[0] or None) if data else None


def _from_base64(data: bytes) -> bytes:
    data = b"".join(data.split())
    return base64.b64decode(data + b"=" * (-len(data) % 4))
