"""reStructuredText, by docutils and the reader of HTML.

Owns what is done to docutils' tree before it becomes a page: formulas, footnotes, and the source of what
could not be read. Files that a text includes are never read.
"""

import html
import re
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree, publish_from_doctree

from datapipe.errors import MalformedMarkup
from datapipe.sources import rst_lenient
from datapipe.sources.encoding import decode
from datapipe.sources.html import read_page
from datapipe.sources.items import RawDocument

_SETTINGS: dict[str, Any] = {
    "file_insertion_enabled": False,
    "raw_enabled": True,
    "report_level": 5,
    "halt_level": 5,
    "warning_stream": False,
    "syntax_highlight": "none",
    "_disable_config": True,
    "embed_stylesheet": False,
    "initial_header_level": 2,
    "line_length_limit": 10**9,
    "output_encoding": "unicode",
}
_BODY = re.compile(r"<body[^>]*>(.*)</body>", re.DOTALL)
_ERROR = 3  # severity from which docutils leaves out what it could not read
_REFUSED = "directive disabled"


def read(data: bytes, uri: str) -> RawDocument:
    """Read reStructuredText. Directives and roles that docutils does not know (Sphinx) leave their words.

    Raises:
        NotText: the bytes are binary.
        MalformedMarkup: docutils cannot read it at all.
        EmptyDocument: there is no content.
    """
    text = decode(data)
    try:
        page, title = to_html(text)
    except Exception as error:  # the border of one bad file: docutils has no error of its own for it
        raise MalformedMarkup(f"docutils: {type(error).__name__}: {error}") from error
    return read_page(page, uri, "rst", title=title)


def to_html(text: str) -> tuple[str, str | None]:
    """Return the body of an HTML page, and its title.

    Raises:
        Exception: whatever docutils raises for what it cannot read.
    """
    rst_lenient.register(text)
    tree = publish_doctree(text, settings_overrides=_SETTINGS)
    _prepare(tree)
    page = publish_from_doctree(tree, writer="html5", settings_overrides=_SETTINGS)
    found = _BODY.search(page)
    return found.group(1) if found else page, html.unescape(tree.get("title") or "") or None


def _prepare(tree: nodes.document) -> None:
    for message in list(tree.findall(nodes.system_message)):
        _put_back_source(message)
    for formula in list(tree.findall(nodes.math)):
        formula.parent.replace(formula, nodes.Text(f"${formula.astext()}$"))
    for block in list(tree.findall(nodes.math_block)):
        block.parent.replace(block, nodes.paragraph("", f"$${block.astext()}$$"))
    for picture in tree.findall(nodes.image):
        picture.attributes.pop("loading", None)  # "embed" would read a file of this machine
    for note in [*tree.findall(nodes.footnote), *tree.findall(nodes.citation)]:
        _put_label_into_text(note)


def _put_back_source(message: nodes.system_message) -> None:
    """Keep the source of what docutils could not read, in the place of its message."""
    source = message.next_node(nodes.literal_block)
    parent = message.parent
    if parent is None:
        return
    if source is None or message["level"] < _ERROR or _REFUSED in message.astext():
        parent.remove(message)
    else:
        parent.replace(message, nodes.literal_block(source.astext(), source.astext()))


def _put_label_into_text(note: Any) -> None:
    """Turn a footnote into a paragraph that begins with its number."""
    if len(note) > 1 and isinstance(note[0], nodes.label) and isinstance(note[1], nodes.paragraph):
        note[1].insert(0, nodes.Text(f"[{note[0].astext()}] "))
        container = nodes.container("", *note.children[1:])
        note.parent.replace(note, container)
