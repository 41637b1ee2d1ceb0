"""Captions of videos (WebVTT, SubRip, TTML) and the items of a captioned video.

Owns the caption formats and how a video is cut into stretches beside its words. Decodes no video.
"""

import dataclasses
import html
import posixpath
import re

from lxml import etree

from datapipe.errors import MalformedMarkup
from datapipe.sources.items import Item, RawDocument, document, prose
from datapipe.sources.text import decode

CAPTION_SUFFIXES = (".vtt", ".srt", ".ttml", ".dfxp")
USUAL_LANGUAGE = "en"  # of captions that are in another language than their page
MIN_STRETCH_S = 0.5
_CLOCK = r"(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:[.,]\d{1,3})?)"
_TIMING = re.compile(_CLOCK + r"\s*-->\s*" + _CLOCK)
_TTML_CLOCK = re.compile(r"(\d+):(\d{2}):(\d{2}(?:\.\d+)?)(?::(\d+))?")
_TTML_OFFSET = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|f|t)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclasses.dataclass(frozen=True)
class Caption:
    """Words shown or spoken from `t_start_s` to `t_end_s`, in seconds."""

    t_start_s: float
    t_end_s: float
    text: str


def read(data: bytes, uri: str) -> RawDocument:
    """Return the document of a video file that no page embeds; `ingest` adds the captions beside it."""
    del data
    title = posixpath.splitext(posixpath.basename(uri))[0]
    return document("video", title, None, [Item("video", "figure", href=uri)])


def caption_names(href: str, lang: str | None) -> list[str]:
    """Return the names that a caption file beside a video may have, the best first: `v.de.vtt` for a German
    page, then `v.vtt`, then `v.en.vtt`, each as WebVTT, SubRip or TTML.
    """
    stem = posixpath.splitext(href)[0]
    if not stem:
        return []
    stems = [f"{stem}.{lang}", stem] if lang else [stem]
    names = [one + suffix for one in (*stems, f"{stem}.{USUAL_LANGUAGE}") for suffix in CAPTION_SUFFIXES]
    return list(dict.fromkeys(names))


def captioned(video: Item, captions: list[Caption]) -> list[Item]:
    """Return a video as stretches: one for each caption, followed by its words, and one for each gap between.

    The last stretch, after all captions, is open (`t_end_s` None): only decoding tells where the video ends.
    Gaps shorter than half a second belong to the caption that follows; captions at the same time share a
    stretch.
    """
    items: list[Item] = []
    at_s = 0.0
    for caption in captions:
        start_s = caption.t_start_s
        if start_s - at_s >= MIN_STRETCH_S:
            items.append(dataclasses.replace(video, t_start_s=at_s, t_end_s=start_s))
        start_s = max(start_s, at_s) if start_s - at_s < 0 or start_s - at_s >= MIN_STRETCH_S else at_s
        if caption.t_end_s > start_s:
            items.append(dataclasses.replace(video, t_start_s=start_s, t_end_s=caption.t_end_s))
            at_s = caption.t_end_s
        items.append(
            Item(
                "text", "transcript", text=caption.text, t_start_s=caption.t_start_s, t_end_s=caption.t_end_s
            )
        )
    return [*items, dataclasses.replace(video, t_start_s=at_s, t_end_s=None)]


def read_captions(data: bytes, uri: str) -> list[Caption]:
    """Read a caption file; its suffix and first bytes say which format it is.

    Raises:
        MalformedMarkup: it has no caption with a time.
        NotText: the bytes are binary.
    """
    if uri.lower().endswith((".ttml", ".dfxp", ".xml")) or data.lstrip()[:5] == b"<?xml":
        try:
            root = etree.fromstring(data, etree.XMLParser(no_network=True, resolve_entities="internal"))
        except etree.XMLSyntaxError as error:
            raise MalformedMarkup(f"captions: {error.msg}") from error
        captions = from_ttml(root)
    else:
        captions = _from_cues(decode(data))
    if not captions:
        raise MalformedMarkup("captions: no line with a time")
    return captions


def _from_cues(text: str) -> list[Caption]:
    """Read WebVTT or SubRip: blocks parted by blank lines, a timing line in each."""
    captions = []
    for block in re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n").replace("\r", "\n")):
        timing = _TIMING.search(block)
        if timing is None or block.lstrip().startswith(("NOTE", "STYLE", "REGION")):
            continue
        words = block[timing.end() :].partition("\n")[2]
        hours, minutes, seconds, *end = timing.groups()
        captions.append(
            Caption(
                _clock(hours, minutes, seconds),
                _clock(*end),
                plain(words),
            )
        )
    return tidy(captions)


def plain(words: str) -> str:
    """Return the words of a caption without tags and style codes."""
    return html.unescape(re.sub(r"<[^>]*>|\{\\[^}]*\}", "", words))


def _clock(hours: str | None, minutes: str, seconds: str) -> float:
    return int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds.replace(",", "."))


def from_ttml(root: etree._Element) -> list[Caption]:
    """Read the captions below a TTML element; times may stand on any ancestor of the words and add up."""
    rates = {"f": 30.0, "t": 1.0}
    for name, value in root.attrib.items():
        local = etree.QName(name).localname
        if local in ("frameRate", "tickRate"):
            rates["f" if local == "frameRate" else "t"] = float(value)
    return tidy(_ttml_captions(root, 0.0, None, rates))


def _ttml_captions(
    element: etree._Element, start_s: float, end_s: float | None, rates: dict[str, float]
) -> list[Caption]:
    begin, end, duration = (_ttml_time(element.get(n), rates) for n in ("begin", "end", "dur"))
    inner_start = start_s + (begin or 0.0)
    inner_end = end_s
    if end is not None or duration is not None:
        inner_end = start_s + end if end is not None else inner_start + (duration or 0.0)
    if etree.QName(element).localname == "p":
        words = "".join(element.itertext())
        return [Caption(inner_start, inner_end, words)] if inner_end is not None else []
    children = (child for child in element if isinstance(child.tag, str))
    return [c for child in children for c in _ttml_captions(child, inner_start, inner_end, rates)]


def _ttml_time(value: str | None, rates: dict[str, float]) -> float | None:
    """Return a TTML time expression in seconds (TTML2 section 12.3.1): a clock or a number with a unit."""
    if clock := _TTML_CLOCK.fullmatch(value or ""):
        hours, minutes, seconds, frames = clock.groups()
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds) + int(frames or 0) / rates["f"]
    if offset := _TTML_OFFSET.fullmatch(value or ""):
        number, unit = float(offset.group(1)), offset.group(2)
        return number * _SECONDS[unit] if unit in _SECONDS else number / rates[unit]
    return None


def tidy(captions: list[Caption]) -> list[Caption]:
    """Sort captions, and say words once where captions roll: each repeats the line before and adds one."""
    kept: list[Caption] = []
    shown: list[str] = []
    for caption in sorted(captions, key=lambda c: (c.t_start_s, c.t_end_s)):
        lines = [line for line in map(prose, caption.text.split("\n")) if line]
        new = lines[1:] if shown and lines and lines[0] == shown[-1] else lines
        if caption.t_end_s <= caption.t_start_s or not lines:
            continue
        shown = lines
        if new:
            kept.append(dataclasses.replace(caption, text=" ".join(new)))
        else:
            kept[-1] = dataclasses.replace(kept[-1], t_end_s=max(kept[-1].t_end_s, caption.t_end_s))
    return kept
