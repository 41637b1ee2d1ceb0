"""HTML pages, XHTML included, to items in reading order.

Owns what a page says of itself: its encoding, base address, title and language; and what frames leave of it.
The way through the page is `html_walk`'s. What the markup says is not content (navigation, the page's header
and footer, advertisements, cookie notices, hidden parts) stays in the document under a drop mask.
"""

import dataclasses
import re
from html import escape

from selectolax.lexbor import LexborHTMLParser, LexborNode

from datapipe.errors import EmptyDocument
from datapipe.sources.encoding import decode
from datapipe.sources.html_limits import tame
from datapipe.sources.html_walk import Walk
from datapipe.sources.items import Item, RawDocument, document, resolve

_HEAD_BYTES = 8192  # where an encoding is declared, if anywhere
_META_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?\s*([\w:.-]+)", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]*encoding\s*=\s*[\"']([\w:.-]+)", re.IGNORECASE)
_XHTML_SUFFIXES = (".xhtml", ".xht")
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_SELF_CLOSED = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr)\b)([a-zA-Z][\w:-]*)([^<>]*)/>"
)


def read(data: bytes, uri: str, charset: str | None = None) -> RawDocument:
    """Read an HTML page.

    Args:
        uri: its path from the collection's root, or, of a page on the web, its URL.
        charset: the encoding that the transport named, if any.

    Raises:
        NotText: the bytes are binary.
        EmptyDocument: the page has no content.
    """
    head = data[:_HEAD_BYTES]
    declared = _META_CHARSET.search(head) or _XML_ENCODING.search(head)
    text = decode(data, charset, declared.group(1).decode("ascii") if declared else None)
    if text[:200].lstrip().startswith("<?xml") or uri.lower().endswith(_XHTML_SUFFIXES):
        text = _as_html(text)
    return read_page(text, uri, "html")


def read_page(
    text: str, uri: str, format: str, title: str | None = None, lang: str | None = None
) -> RawDocument:
    """Read the characters of an HTML page or fragment, also one that another markup was turned into.

    Raises:
        EmptyDocument: the page has no content.
    """
    tree = LexborHTMLParser(tame(text))
    lang = lang or _language(tree)
    walk = Walk(_base(tree, uri), lang)
    body = tree.body or _without_frames(tree)
    if body is not None:
        walk.run(body)
    items = _without_scripts(walk.finish())
    if title is None:
        title = _title(tree) or next((i.text for i in items if i.role == "heading" and i.mask is None), None)
    return document(format, title, lang, items)


def _as_html(text: str) -> str:
    """Return XHTML so that a parser of HTML reads it alike: no element closes itself, no text hides."""
    text = _CDATA.sub(lambda found: escape(found.group(1), quote=False), text)
    return _SELF_CLOSED.sub(r"<\1\2></\1>", text)


def _base(tree: LexborHTMLParser, uri: str) -> str:
    """Return what links of the page are relative to: the page itself, or what its <base> says."""
    found = tree.css_first("base[href]")
    link = (found.attributes["href"] or "") if found else ""
    folder = resolve(uri, link)
    return uri if folder is None else folder + "/" * link.endswith("/")


def _title(tree: LexborHTMLParser) -> str | None:
    found = tree.css_first("head > title")
    if found is not None and (text := (found.text() or "").strip()):
        return text
    found = tree.css_first('meta[property="og:title"], meta[name="title"]')
    return (found.attributes.get("content") or "").strip() or None if found is not None else None


def _language(tree: LexborHTMLParser) -> str | None:
    attributes = tree.root.attributes if tree.root is not None else {}
    lang = attributes.get("lang") or attributes.get("xml:lang")
    if not lang and (found := tree.css_first('meta[http-equiv="content-language" i]')) is not None:
        lang = found.attributes.get("content")
    return lang


def _without_frames(tree: LexborHTMLParser) -> LexborNode | None:
    """Return what a page of frames shows to those who see none.

    Raises:
        EmptyDocument: nothing; the message names the pages in the frames.
    """
    found = tree.css_first("noframes")
    body = LexborHTMLParser(found.text() or "").body if found is not None else None
    if body is not None and (body.text() or "").strip():
        return body
    pages = [frame.attributes.get("src") or "" for frame in tree.css("frame")]
    raise EmptyDocument(f"the page only has frames, with {', '.join(pages) or 'nothing'} in them")


def _without_scripts(items: list[Item]) -> list[Item]:
    """Return the items with those for browsers without scripts unmasked where the page has no others."""
    if any(item.mask is None for item in items):
        return items
    return [dataclasses.replace(i, mask=None) if i.mask == "noscript" else i for i in items]
