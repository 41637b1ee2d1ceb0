"""Words inside a video file: its subtitle streams, or else what is said in it.

Owns which subtitle stream is read and what its packets mean. Subtitles that are pictures (DVD, Blu-ray) are
left alone. Caption files beside a video are read by `sources.video`.
"""

import re
from typing import Any

import av

from datapipe.decode.video import open_container, origin_s, video_stream
from datapipe.sources import speech
from datapipe.sources.video import Caption, plain, tidy
from datapipe.spec import VideoSpec

_TEXT_CODECS = ("subrip", "srt", "mov_text", "webvtt", "ass", "ssa", "text")
_ASS_FIELDS = 8  # before the text: ReadOrder, Layer, Style, Name, three margins, Effect
_LANGUAGES = {  # ISO 639-2, both forms, to the BCP 47 primary tag
    **{
        "eng": "en",
        "ger": "de",
        "deu": "de",
        "fre": "fr",
        "fra": "fr",
        "spa": "es",
        "ita": "it",
        "por": "pt",
    },
    **{
        "dut": "nl",
        "nld": "nl",
        "rus": "ru",
        "pol": "pl",
        "cze": "cs",
        "ces": "cs",
        "gre": "el",
        "ell": "el",
    },
    **{
        "chi": "zh",
        "zho": "zh",
        "jpn": "ja",
        "kor": "ko",
        "ara": "ar",
        "heb": "he",
        "hin": "hi",
        "tur": "tr",
    },
    **{
        "swe": "sv",
        "dan": "da",
        "nor": "no",
        "fin": "fi",
        "hun": "hu",
        "rum": "ro",
        "ron": "ro",
        "ukr": "uk",
    },
}


def own_words(data: bytes, lang: str | None, spec: VideoSpec) -> list[Caption]:
    """Return the captions that a video file itself gives; none where it gives none.

    Args:
        lang: primary language tag of the page that shows it; the subtitles in it are preferred.

    Raises:
        DecodeError: the file is no video that can be opened.
        DetectorMissing: the spec names a speech model that cannot be used.
    """
    found = embedded(data, lang) if spec.embedded_captions else []
    if not found and spec.speech_model is not None:
        found = speech.transcribe(data, spec.speech_model)
    return found


def embedded(data: bytes, lang: str | None) -> list[Caption]:
    """Return the captions of one text subtitle stream: in `lang`, else the default one, else the first.

    Raises:
        DecodeError: the file is no video that can be opened.
    """
    with open_container(data) as container:
        streams = [s for s in container.streams.subtitles if _codec(s) in _TEXT_CODECS]
        if not streams:
            return []
        stream = min(streams, key=lambda s: _rank(s, lang))
        start_s, unit_s = origin_s(container, video_stream(container)), float(stream.time_base)
        captions = []
        for packet in container.demux(stream):
            if packet.size and packet.pts is not None and packet.duration:
                begin_s = packet.pts * unit_s - start_s
                words = plain(_text(bytes(packet), _codec(stream)))
                captions.append(Caption(max(begin_s, 0.0), begin_s + packet.duration * unit_s, words))
    return tidy(captions)


def _codec(stream: Any) -> str:
    return stream.codec_context.name if stream.codec_context is not None else ""


def _rank(stream: Any, lang: str | None) -> tuple[bool, bool, bool, int]:
    """Return a key that is smallest for the stream to read."""
    own = (stream.language or "").lower()
    own = _LANGUAGES.get(own, own.split("-")[0])
    kinds = av.stream.Disposition
    return (
        lang is None or own != lang,
        bool(stream.disposition & kinds.forced),  # signs and foreign speech only
        not stream.disposition & kinds.default,
        stream.index,
    )


def _text(packet: bytes, codec: str) -> str:
    """Return the text of a subtitle packet."""
    if codec == "mov_text":  # ETSI TS 126 245: length, text, then boxes of style
        length = int.from_bytes(packet[:2])
        body = packet[2 : 2 + length]
        return body.decode("utf-16" if body[:2] in (b"\xfe\xff", b"\xff\xfe") else "utf-8", "replace")
    text = packet.decode("utf-8", "replace")
    if codec in ("ass", "ssa"):
        text = text.split(",", _ASS_FIELDS)[-1]
        return re.sub(r"\\[Nn]", "\n", text).replace("\\h", " ")
    return text
