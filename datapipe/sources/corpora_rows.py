"""A row of a corpus that others made, as a document.

Owns which columns hold what, and in which order they are read. The forms, told by their columns:

    messages, conversations     an agent session or chat (`sources.sessions`)
    texts, images               interleaved, one of the two null at each place: OBELICS, MINT-1T, OmniCorpus
    text_list, image_info       sentences, pictures before the one they match: MMC4
    text with <__dj__image>     Data-Juicer; its pictures and videos are listed beside the text, in order
    image or video, caption     a picture or video and what is said about it
    text                        plain text

Where a row says in two ways how many pictures it has and the two differ, it is refused: nothing tells which
picture stands where. MMC4's order is that of its matching, not of the page it comes from.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from datapipe.errors import MalformedMarkup
from datapipe.sources import json_lines, json_media, sessions
from datapipe.sources.items import Item, RawDocument, document, is_remote
from datapipe.sources.json_lines import tidy
from datapipe.sources.json_media import NOWHERE

FORMAT = "corpus"
METADATA = ("metadata", "general_metadata", "meta", "json")
COLUMNS = frozenset(
    (
        *(
            "texts",
            "images",
            "image_metadata",
            "text_list",
            "image_info",
            "text",
            "content",
            "raw_content",
            "markdown",
        ),
        *("caption", "captions", "image", "images", "video", "videos", "audios", "image_url", "image_bytes"),
        *("image_path", "video_path", "video_url", "jpg", "png", "webp", "mp4", "txt", "alt_text", "alt"),
        *("title", "url", "lang", "language", "source_url", "document_url"),
        *(*METADATA, *sessions.MESSAGE_KEYS, "tools", "functions", "system", "instructions"),
    )
)

_TEXTS = ("text", "content", "raw_content", "markdown", "txt")
_CAPTIONS = ("caption", "captions", "alt_text", "alt")
_IMAGES = ("image", "images", "image_bytes", "jpg", "png", "webp", "image_path", "image_url")
_VIDEOS = ("video", "videos", "mp4", "video_path", "video_url")
_END_OF_CHUNK = "<|__dj__eoc|>"
_MARKERS = re.compile(r"<__dj__(image|video|audio)>|<\|__dj__eoc\|>")
_END_OF_DOCUMENT = "END_OF_DOCUMENT_TOKEN_TO_BE_REPLACED"  # OBELICS, where it joined documents
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n\s*")

Row = dict[str, Any]


def read(row: Any, uri: str, media: Sequence[Item] | None = None) -> RawDocument:
    """Return a row as a document.

    Args:
        uri: of the file; paths in the row are relative to it.
        media: pictures and videos that come with the row from elsewhere, in the order the row names them.

    Raises:
        MalformedMarkup: the row has none of the known forms, or contradicts itself; columns are named.
        EmptyDocument: there is nothing in it.
    """
    if not isinstance(row, dict):
        raise MalformedMarkup(f"a row is an object with columns, not {type(row).__name__}")
    row = {key: value for key, value in row.items() if value is not None}
    for key in sessions.MESSAGE_KEYS:
        if isinstance(row.get(key), str) and row[key].lstrip().startswith("["):
            row = {**row, key: json_lines.parse(row[key].encode("utf-8", "surrogatepass"))}
    if sessions.is_session(row):
        return sessions.from_object(row, uri)
    return document(
        FORMAT, field(row, "title"), field(row, "lang", "language"), list(_items(row, uri, media))
    )


def field(row: Row, *names: str) -> str | None:
    """Return the first of some strings that a row has, in a column or in its metadata."""
    tables = [row, *(found for key in METADATA if isinstance(found := _object(row.get(key)), dict))]
    for table, name in itertools.product(tables, names):
        if isinstance(value := table.get(name), str) and value.strip():
            return tidy(value)
    return None


def url(row: Any) -> str | None:
    """Return the address of the page that a row was made from, if it says so."""
    found = field(row, "url", "source_url", "document_url") if isinstance(row, dict) else None
    return found if found is not None and is_remote(found) else None


def _items(row: Row, uri: str, media: Sequence[Item] | None) -> Iterator[Item]:
    if isinstance(row.get("texts"), list):
        pictures = None if media is None else [item for item in media if item.kind == "image"]
        yield from _interleaved(row, uri, pictures)
    elif isinstance(row.get("text_list"), list):
        yield from _matched(row, uri)
    else:
        text = next((row[key] for key in _TEXTS if isinstance(row.get(key), str)), None)
        if text is not None and _MARKERS.search(text):
            yield from _marked(text, row, uri)
        else:
            yield from _beside(text, row, uri, media)


# ---- the forms


def _interleaved(row: Row, uri: str, pictures: Sequence[Item] | None) -> Iterator[Item]:
    texts, images = row["texts"], row.get("images", [])
    if not isinstance(images, list) or (images and len(texts) != len(images)):
        raise MalformedMarkup(f"images: {_length(images)}, but texts has {len(texts)} entries")
    images = images or [None] * len(texts)
    num_images = sum(not _is_nothing(image) for image in images)
    if pictures is not None and len(pictures) != num_images:
        raise MalformedMarkup(f"images: {num_images} are named, {len(pictures)} come with them")
    waiting = iter(pictures or ())
    descriptions = _descriptions(row, len(texts))
    for text, image, description in zip(texts, images, descriptions, strict=True):
        if not _is_nothing(image):
            item = next(waiting) if pictures is not None else json_media.medium(image, "image", uri)
            yield item or Item("image", "figure", href=NOWHERE)
            yield from _text(description, "alt")
        if text is not None and not isinstance(text, str):
            raise MalformedMarkup(f"texts: an entry is {type(text).__name__}, neither text nor null")
        yield from _paragraphs(text or "")


def _descriptions(row: Row, num_places: int) -> list[str]:
    """Return the alternative text of the picture at each place, "" where there is none."""
    found = _object(row.get("metadata"))
    if not isinstance(found, list) or len(found) != num_places:
        return [""] * num_places
    texts = [entry.get("alt_text") if isinstance(entry := _object(e), dict) else None for e in found]
    return [text if isinstance(text, str) else "" for text in texts]


def _matched(row: Row, uri: str) -> Iterator[Item]:
    before: dict[int, list[Item]] = {}
    for number, info in enumerate(row.get("image_info") or []):
        info = _object(info)
        place = info.get("matched_text_index") if isinstance(info, dict) else None
        if not isinstance(info, dict) or not isinstance(place, int) or not 0 <= place < len(row["text_list"]):
            raise MalformedMarkup(
                f"image_info[{number}].matched_text_index: {place!r} is no place in text_list"
            )
        link = info.get("image_name") or info.get("raw_url")
        item = json_media.medium(link, "image", uri) or Item("image", "figure", href=NOWHERE)
        before.setdefault(place, []).append(item)
    for place, text in enumerate(row["text_list"]):
        yield from before.get(place, [])
        yield from _paragraphs(text if isinstance(text, str) else "")


def _marked(text: str, row: Row, uri: str) -> Iterator[Item]:
    named = {"image": _media(row, "image", ("images",), uri), "video": _media(row, "video", ("videos",), uri)}
    for kind, items in named.items():
        num_markers = text.count(f"<__dj__{kind}>")
        if num_markers != len(items) and (num_markers or items):
            raise MalformedMarkup(f"{kind}s: {len(items)}, but the text has {num_markers} places for one")
    waiting = {kind: iter(items) for kind, items in named.items()}
    rest = 0
    for marker in _MARKERS.finditer(text):
        yield from _paragraphs(text[rest : marker.start()])
        rest = marker.end()
        if marker.group(1) in waiting:
            yield next(waiting[marker.group(1)])
    yield from _paragraphs(text[rest:])


def _beside(text: str | None, row: Row, uri: str, given: Sequence[Item] | None) -> Iterator[Item]:
    """Yield pictures and videos, then what is said about them: a text of one paragraph is a caption too."""
    named = [*_media(row, "image", _IMAGES, uri), *_media(row, "video", _VIDEOS, uri)]
    media = named if given is None else given
    captions = [line.strip() for key in _CAPTIONS for line in _strings(row.get(key))]
    if text is None and not media and not captions:
        raise MalformedMarkup(f"no text, picture or session among the columns {sorted(map(str, row))[:12]}")
    yield from media
    if text is not None and text.strip() in captions:
        text = None
    if text is not None and media and not captions and _EMPTY_LINE.search(text.strip()) is None:
        captions, text = [text], None
    for caption in dict.fromkeys(captions):
        yield from _text(caption, "caption" if media else "paragraph")
    yield from _paragraphs(text or "")


# ---- values


def _media(row: Row, kind: str, columns: Sequence[str], uri: str) -> list[Item]:
    """Return the pictures or videos of the first of these columns that names some."""
    for column in columns:
        value = row.get(column)
        values = value if isinstance(value, list) else [value]
        named = [v for v in values if not _is_nothing(v)]
        if named:
            found = (json_media.medium(v, kind, uri) for v in named)
            return [item or Item(kind, "figure", href=NOWHERE) for item in found]
    return []


def _object(value: Any) -> Any:
    """Return a value, parsed where it is JSON in a string, as Parquet tables hold what has no fixed form."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json_lines.parse(value.encode("utf-8", "surrogatepass"))
    except MalformedMarkup:
        return None


def _paragraphs(text: str) -> Iterator[Item]:
    for part in text.replace("\r\n", "\n").split(_END_OF_DOCUMENT):
        for paragraph in _EMPTY_LINE.split(part):
            yield from _text(paragraph, "paragraph")


def _text(text: str, role: str) -> Iterator[Item]:
    if text.strip():
        yield Item("text", role, text=tidy(text.strip()))


def _strings(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, str) and v.strip()]


def _is_nothing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, dict) and not any(v for v in value.values()))


def _length(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
