"""Plain text: characters to paragraphs.

Owns what a paragraph is where nothing marks it. Which encoding the bytes are in is `sources.encoding`'s.
"""

import re

from datapipe.sources.encoding import decode
from datapipe.sources.items import Item, RawDocument, document

_WRAPPED_LINE_CHARS = 45


def read(data: bytes, uri: str, charset: str | None = None) -> RawDocument:
    """Read plain text as paragraphs, which blank lines part.

    Lines of a paragraph that was wrapped (every line but the last is long) are joined; other line breaks are
    kept.

    Args:
        charset: the encoding that the transport named, if any.

    Raises:
        NotText: the bytes are binary.
        EmptyDocument: there is no text.
    """
    text = decode(data, charset).replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")
    blocks = (_paragraph(block) for block in re.split(r"\n[^\S\n]*\n", text))
    return document("text", None, None, [Item("text", "paragraph", text=block) for block in blocks if block])


def _paragraph(block: str) -> str:
    lines = [line.rstrip() for line in block.strip("\n").split("\n")]
    if all(len(line) >= _WRAPPED_LINE_CHARS and "  " not in line.strip() for line in lines[:-1]):
        return " ".join(line.strip() for line in lines)
    return "\n".join(lines).strip()
