"""Plain text: bytes to characters, characters to paragraphs.

Owns the choice of an encoding, for every text format. `decode` prefers what cannot be right by accident: a
byte order mark, then valid UTF-8, then what the file declares, then detection.
"""

import codecs
import re

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from datapipe.errors import NotText
from datapipe.sources.items import Item, RawDocument, document

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SYMBOL_IN_WORD = re.compile(r"[^\W\d_][\xa1-\xb9\xbb-\xbf\xd7\xf7](?=[^\W\d_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_MAX_CONTROL_FRAC = 0.01
_WRAPPED_LINE_CHARS = 45


def read(data: bytes, uri: str) -> RawDocument:
    """Read plain text as paragraphs, which blank lines part.

    Lines of a paragraph that was wrapped (every line but the last is long) are joined; other line breaks are
    kept.

    Raises:
        NotText: the bytes are binary.
        EmptyDocument: there is no text.
    """
    text = decode(data).replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")
    blocks = (_paragraph(block) for block in re.split(r"\n[^\S\n]*\n", text))
    return document("text", None, None, [Item("text", "paragraph", text=block) for block in blocks if block])


def _paragraph(block: str) -> str:
    lines = [line.rstrip() for line in block.strip("\n").split("\n")]
    if all(len(line) >= _WRAPPED_LINE_CHARS and "  " not in line.strip() for line in lines[:-1]):
        return " ".join(line.strip() for line in lines)
    return "\n".join(lines).strip()


def decode(data: bytes, declared: str | None = None) -> str:
    """Return the characters of a text file.

    Args:
        declared: the encoding the file names for itself, if any; used when the bytes fit it and are no valid
            UTF-8.

    Raises:
        NotText: the bytes are binary.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _checked(data[len(mark) :].decode(encoding, errors="replace"))
    if b"\0" in data:
        return _checked(_decode_utf16(data))
    encodings = ["utf-8", _known(declared) or "ascii"]
    if (declared or "").lower().startswith("iso-2022"):
        encodings.reverse()  # seven-bit, so always valid UTF-8 too
    for encoding in encodings:
        try:
            return _checked(data.decode(encoding))
        except UnicodeDecodeError:
            continue
    return _checked(_decode_detected(data))


def _known(declared: str | None) -> str | None:
    """Return Python's name of a declared encoding, read as browsers do (latin-1 means windows-1252)."""
    if not declared:
        return None
    if declared.lower().startswith("iso-2022"):
        return declared
    mapped = map_encoding_to_html5(declared, fallback_utf8=False)
    try:
        return codecs.lookup(mapped).name if mapped else None
    except LookupError:
        return None


def _decode_utf16(data: bytes) -> str:
    """Decode UTF-16 without a byte order mark, told by which bytes are zero."""
    even, odd = data[0::2].count(0), data[1::2].count(0)
    if len(data) % 2 == 0 and max(even, odd) > len(data) // 8 and min(even, odd) == 0:
        return data.decode("utf-16-le" if odd else "utf-16-be", errors="replace")
    raise NotText(f"{data.count(0)} zero bytes in {len(data)}: not text")


def _decode_detected(data: bytes) -> str:
    encoding = detect_encoding(data) or "cp1252"
    western = data.decode("cp1252", errors="replace")
    if encoding.lower().replace("-", "").startswith("iso8859") and not _SYMBOL_IN_WORD.search(western):
        return western  # the detector takes short windows-1252 texts for a sibling of it
    if encoding == "cp1252" and _SYMBOL_IN_WORD.search(western):
        encoding = "iso8859-2"  # and the other way round: no word has a pound sign inside
    try:
        return data.decode(encoding, errors="replace")
    except LookupError:
        return western


def _checked(text: str) -> str:
    """Refuse text that is mostly control or replacement characters."""
    strange = len(_CONTROLS.findall(text)) + text.count("\N{REPLACEMENT CHARACTER}")
    if strange > max(2, _MAX_CONTROL_FRAC * len(text)):
        raise NotText(f"{strange} control or undecodable characters in {len(text)}: not text")
    return text
