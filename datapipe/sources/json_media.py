"""Pictures and videos as JSON and tables name them: data URIs, base64, paths, URLs, or bytes.

Owns the way from such a value to an item. What is named and cannot be had stays an item whose link leads
nowhere, so the document keeps its place.
"""

import base64
import binascii
import re
from typing import Any
from urllib.parse import unquote_to_bytes

from datapipe.sources.items import Item, resolve
from datapipe.sources.json_lines import tidy

_BASE64 = re.compile(r"[A-Za-z0-9+/_\s-]{64,}={0,2}\s*")
_LINK_KEYS = ("url", "path", "uri", "file", "filename", "file_name", "file_id", "image_url", "video_url")
NOWHERE = "data:,unreadable"  # a link with a scheme is never followed


def medium(value: Any, kind: str, uri: str, mime: str | None = None) -> Item | None:
    """Return the picture or video that a value names; None where it names none.

    Args:
        value: bytes; a data URI, bare base64, a path or a URL; or an object with one of these under a usual
            key, such as `{"bytes": ..., "path": ...}`, `{"url": ...}`, or `{"type": "base64", "data": ...}`.
        kind: image or video.
        uri: of the file the value stands in; paths are relative to it.
    """
    if isinstance(value, bytes):
        return Item(kind, "figure", data=value, mime=mime) if value else None
    if isinstance(value, dict):
        return _from_object(value, kind, uri)
    if not isinstance(value, str) or not value.strip():
        return None
    value = tidy(value.strip())
    if value.startswith("data:"):
        return _from_data_uri(value, kind)
    if len(value) >= 64 and _BASE64.fullmatch(value) and "." not in value:
        return _from_base64(value, kind, mime)
    href = resolve(uri, value)
    return Item(kind, "figure", href=href, mime=mime) if href else None


def _from_object(value: dict[str, Any], kind: str, uri: str) -> Item | None:
    mime = value.get("media_type") or value.get("mime_type")
    mime = mime if isinstance(mime, str) else None
    for key in ("bytes", "data"):
        if data := value.get(key):
            if isinstance(data, str) and not data.startswith("data:"):
                return _from_base64(data, kind, mime)
            return medium(data, kind, uri, mime)
    for key in _LINK_KEYS:
        if link := value.get(key):
            if key == "file_id":
                return Item(kind, "figure", href=f"file:{tidy(str(link))}", mime=mime)
            return medium(link, kind, uri, mime)
    return None


def _from_data_uri(value: str, kind: str) -> Item:
    header, _, body = value[len("data:") :].partition(",")
    mime = header.split(";")[0] or None
    if header.endswith(";base64"):
        return _from_base64(unquote_to_bytes(body).decode("ascii", "replace"), kind, mime)
    data = unquote_to_bytes(body)
    return (
        Item(kind, "figure", data=data, mime=mime) if data else Item(kind, "figure", href=NOWHERE, mime=mime)
    )


def _from_base64(text: str, kind: str, mime: str | None) -> Item:
    """Return the medium of base64 text, the alphabet for URLs and missing padding allowed."""
    text = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        data = b""
    return (
        Item(kind, "figure", data=data, mime=mime) if data else Item(kind, "figure", href=NOWHERE, mime=mime)
    )
