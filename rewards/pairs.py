"""Pairs: each picture or stretch of video of a document, and the text that stands beside it.

Owns which text belongs to a picture: its captions (the title over its figure and the line below it), else its
alternative text, else the nearest text. For a video: the transcript of the stretch, and the frame in its
middle as the picture.
"""

import dataclasses
import re
from typing import Any

MAX_TEXT_CHARS = 400

# "Figure 17.2. ", "Abb. 3: ", "Figure A.24. "
_NUMBERED_LABEL = re.compile(r"^\W*(?:[^\W\d]+\.?\s*)?(?:[A-Z]\.)?\d+(?:[.\-:]\d+)*[.:)]\s+")

Segment = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A picture and its text. Without one of them `error` says why: `no_medium` or `no_text`."""

    segment: int
    media_id: str | None
    data: bytes | None
    text: str | None
    text_from: str | None  # caption, alt, nearby or transcript
    error: str | None


def pairs(segments: list[Segment], media: list[dict[str, Any]]) -> list[Pair]:
    """Return the pairs of a document in reading order; empty for a document without pictures and video."""
    by_id = {medium["media_id"]: medium for medium in media}
    result = []
    for number, segment in enumerate(segments):
        if segment["kind"] == "text":
            continue
        medium = (
            _middle_frame(segment, media) if segment["kind"] == "video" else by_id.get(segment["media_id"])
        )
        if medium is None or medium["bytes"] is None:
            result.append(Pair(number, segment["media_id"], None, None, None, "no_medium"))
            continue
        text, text_from = _text_of(segments, number)
        result.append(
            Pair(number, medium["media_id"], medium["bytes"], text, text_from, None if text else "no_text")
        )
    return result


def _middle_frame(segment: Segment, media: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the frame nearest to the middle of a stretch; of the whole video where the stretch is open."""
    frames = [m for m in media if m["parent_id"] is not None and m["parent_id"] == segment["media_id"]]
    if not frames:
        return None
    start = segment["t_start_s"] or 0.0
    end = segment["t_end_s"] if segment["t_end_s"] is not None else max(frame["t_s"] for frame in frames)
    return min(frames, key=lambda frame: abs(frame["t_s"] - (start + end) / 2))


def _text_of(segments: list[Segment], number: int) -> tuple[str | None, str | None]:
    """Return the text of a picture and where it stands; (None, None) when the document has no words for
    it.
    """
    if segments[number]["kind"] == "video":
        spoken = _texts_after(segments, number, ("transcript",))
        if spoken:
            return _joined(spoken), "transcript"
    captions = _texts_after(segments, number, ("caption",))
    if captions and _title_before(segments, number) and _is_numbered(captions[-1]):
        captions = captions[:-1]  # the title of the figure that follows
    title = _title_before(segments, number)
    found = _joined([title, *captions] if title else captions)
    if found:
        return found, "caption"
    alternative = _joined(_texts_after(segments, number, ("alt",)))
    if alternative:
        return alternative, "alt"
    nearby = _nearby(segments, number)
    return (nearby, "nearby") if nearby else (None, None)


def _texts_after(segments: list[Segment], number: int, roles: tuple[str, ...]) -> list[str]:
    """Return the texts of some roles among the run of captions, alternative texts and transcripts after a
    picture.
    """
    texts = []
    for segment in segments[number + 1 :]:
        if segment["role"] not in ("caption", "alt", "transcript"):
            break
        if segment["role"] in roles:
            texts.append(segment["text"])
    return texts


def _title_before(segments: list[Segment], number: int) -> str | None:
    """Return the caption over a figure, which its pictures share: the numbered caption, or the first, before
    their run.
    """
    first = number
    while first > 0 and (
        segments[first - 1]["kind"] != "text" or segments[first - 1]["role"] in ("caption", "alt")
    ):
        first -= 1
        if segments[first]["role"] == "caption" and _is_numbered(segments[first]["text"]):
            return segments[first]["text"]
    return segments[first]["text"] if first < number and segments[first]["role"] == "caption" else None


def _nearby(segments: list[Segment], number: int) -> str | None:
    """Return the nearest other text, the one before where two are as near, with its end next to the
    picture.
    """
    for distance in range(1, len(segments)):
        for place in (number - distance, number + distance):
            if (
                0 <= place < len(segments)
                and segments[place]["kind"] == "text"
                and segments[place]["text"].strip()
            ):
                text = " ".join(segments[place]["text"].split())
                return text[-MAX_TEXT_CHARS:] if place < number else text[:MAX_TEXT_CHARS]
    return None


def _joined(texts: list[str]) -> str:
    """Return texts as one line without their figure numbers, which tell the place in the book and not the
    picture.
    """
    plain = (_NUMBERED_LABEL.sub("", " ".join(text.split())) for text in texts)
    return " ".join(text for text in plain if text)[:MAX_TEXT_CHARS]


def _is_numbered(text: str) -> bool:
    return _NUMBERED_LABEL.match(text) is not None
