"""Subtitle streams inside video files, in made files of each codec."""

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from datapipe import errors
from datapipe.sources import files, subtitles
from datapipe.sources.video import Caption
from datapipe.spec import IngestSpec, SourceSpec, VideoSpec
from datapipe.stages import ingest
from tests import clips

LINES = [(500, 1000, "Hello <i>there</i>"), (1800, 900, "Grüße,\n二行目")]
SAID = [Caption(0.5, 1.5, "Hello there"), Caption(1.8, 2.7, "Grüße, 二行目")]


def payload(codec: str, number: int, text: str) -> bytes:
    if codec == "mov_text":
        plain = text.replace("<i>", "").replace("</i>", "").encode()
        return len(plain).to_bytes(2) + plain
    if codec == "ass":
        styled = text.replace("<i>", "{\\i1}").replace("</i>", "{\\i0}").replace("\n", "\\N")
        return f"{number},0,Default,,0,0,0,,{styled}".encode()
    return text.encode()


def with_subtitles(
    container: str, *streams: tuple[str, str, list[tuple[int, int, str]], int], video: bytes | None = None
) -> bytes:
    """A video with subtitle streams: (codec, language, [(start ms, length ms, text)], disposition)."""
    buffer = io.BytesIO()
    data = video or clips.clip(40)
    source: Any
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format=container) as output:
        copy = output.add_stream_from_template(source.streams.video[0])
        texts: list[Any] = []
        for codec, language, _, disposition in streams:
            stream = output.add_stream(codec)
            if codec == "ass":
                stream.codec_context.subtitle_header = b"[Script Info]\nScriptType: v4.00+\n"
            else:
                stream.codec_context.subtitle_header = b"[Script Info]\n"
            stream.time_base = Fraction(1, 1000)
            stream.metadata["language"] = language
            stream.disposition = av.stream.Disposition(disposition)
            texts.append(stream)
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = copy
                output.mux(packet)
        for stream, (codec, _, lines, _) in zip(texts, streams, strict=True):
            for number, (start, length, text) in enumerate(lines):
                packet = av.Packet(payload(codec, number, text))
                packet.pts = packet.dts = start
                packet.duration, packet.time_base, packet.stream = length, Fraction(1, 1000), stream
                output.mux(packet)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("container", "codec"),
    [("matroska", "subrip"), ("matroska", "ass"), ("mp4", "mov_text"), ("webm", "webvtt")],
)
def test_text_streams_give_captions_with_their_times(container: str, codec: str) -> None:
    video = clips.clip(40, "libvpx", "webm") if container == "webm" else None
    data = with_subtitles(container, (codec, "eng", LINES, 0), video=video)
    found = subtitles.embedded(data, None)
    assert [(round(c.t_start_s, 2), round(c.t_end_s, 2), c.text) for c in found] == [
        (c.t_start_s, c.t_end_s, c.text) for c in SAID
    ]


def test_the_stream_in_the_language_of_the_page_is_read_then_the_default_one() -> None:
    kinds = av.stream.Disposition
    data = with_subtitles(
        "matroska",
        ("subrip", "fre", [(0, 900, "bonjour")], 0),
        ("subrip", "eng", [(0, 900, "sign")], kinds.forced.value),
        ("subrip", "eng", [(0, 900, "hello")], kinds.default.value),
        ("subrip", "ger", [(0, 900, "hallo")], 0),
    )
    said = {lang: subtitles.embedded(data, lang)[0].text for lang in ("fr", "en", "de", "it", None)}
    assert said == {"fr": "bonjour", "en": "hello", "de": "hallo", "it": "hello", None: "hello"}


def test_a_video_without_words_has_none_and_junk_is_no_video() -> None:
    assert subtitles.own_words(clips.clip(5), "en", VideoSpec()) == []
    data = with_subtitles("matroska", ("subrip", "eng", LINES, 0))
    assert subtitles.own_words(data, "en", VideoSpec(embedded_captions=False)) == []
    with pytest.raises(errors.UnknownMedium):
        subtitles.own_words(b"junk" * 50, "en", VideoSpec())


def test_ingest_takes_them_where_no_caption_file_is_beside_the_video(tmp_path: Path) -> None:
    (tmp_path / "v.mkv").write_bytes(with_subtitles("matroska", ("subrip", "eng", LINES, 0)))
    (tmp_path / "p.html").write_text("<p>See</p><video src=v.mkv></video>")
    source = SourceSpec(path=str(tmp_path), collection="test")

    def words() -> list[str]:
        found = files.list_files(source)
        made = ingest.ingest(found, source, IngestSpec(), lambda uri: files.load(source, uri))
        return [s["text"] for s in made.documents["segments"][0].as_py() if s["role"] == "transcript"]

    assert words() == ["Hello there", "Grüße, 二行目"]
    (tmp_path / "v.en.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\nFrom the file\n")
    assert words() == ["From the file"]
