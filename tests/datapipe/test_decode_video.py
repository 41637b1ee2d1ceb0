"""Probing videos: what a file holds, and which files are refused and why."""

import io
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from datapipe import errors
from datapipe.decode import video
from tests import clips, make

LIMIT = 10**6


@pytest.mark.parametrize(
    ("codec", "container", "mime"),
    [
        ("libvpx", "webm", "video/webm"),
        ("libvpx-vp9", "webm", "video/webm"),
        ("libx264", "mp4", "video/mp4"),
        ("libx264", "matroska", "video/x-matroska"),
        ("libx264", "mpegts", "video/mp2t"),
        ("libx264", "flv", "video/x-flv"),
        ("mpeg4", "avi", "video/x-msvideo"),
        ("mpeg2video", "mpegts", "video/mp2t"),
    ],
)
def test_a_file_says_its_frames_times_and_length(codec: str, container: str, mime: str) -> None:
    found = video.probe(clips.clip(25, codec, container, rate=25), LIMIT)
    assert (found.mime, found.width, found.height, found.num_frames) == (mime, 128, 96, 25)
    assert found.duration_s == pytest.approx(1.0, abs=0.01)
    assert np.diff(found.times_s) == pytest.approx(1 / 25, abs=0.002)
    assert found.times_s[0] == pytest.approx(0, abs=0.002)
    assert found.is_plain


def test_the_size_is_that_of_the_picture_as_shown() -> None:
    def turned(stream: Any) -> None:
        stream.set_display_rotation(90)

    def wide(stream: Any) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(4, 3)

    found = video.probe(clips.clip(3, prepare=turned), LIMIT)
    assert (found.width, found.height, found.is_plain) == (96, 128, False)
    found = video.probe(clips.clip(3, prepare=wide), LIMIT)
    assert (found.width, found.height, found.geometry.note) == (171, 96, "aspect=4:3")


def test_edit_lists_and_headers_that_lie_do_not_change_what_is_counted() -> None:
    cut = video.probe(clips.trimmed(clips.clip(60, key_every=20), 2.5), LIMIT)
    assert (cut.num_frames, cut.times_s[0], cut.is_plain) == (35, 0.0, False)
    data = clips.clip(30, "mpeg4", "avi")
    for at in (data.index(b"avih") + 8 + 16, data.index(b"strh") + 8 + 32):  # total frames, stream length
        assert struct.unpack_from("<I", data, at)[0] == 30
        data = data[:at] + struct.pack("<I", 43) + data[at + 4 :]
    over_reported = video.probe(data, LIMIT)
    assert (over_reported.announced_frames, over_reported.num_frames) == (43, 30)


@pytest.mark.parametrize(("codec", "container"), [("libvpx", "webm"), ("libx264", "mp4"), ("mpeg4", "avi")])
@pytest.mark.parametrize("frac", [0.3, 0.55, 0.9])
def test_truncated_files_are_refused(codec: str, container: str, frac: float) -> None:
    data = clips.clip(30, codec, container)
    with pytest.raises((errors.TruncatedMedium, errors.DamagedMedium)):
        video.probe(data[: int(len(data) * frac)], LIMIT)


def test_a_file_whose_index_comes_first_is_refused_when_its_frames_are_cut_off(tmp_path: Path) -> None:
    data, path = clips.clip(30, container="mp4"), tmp_path / "fast.mp4"
    with (
        av.open(io.BytesIO(data)) as source,
        av.open(str(path), "w", options={"movflags": "faststart"}) as output,
    ):
        copy = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = copy
                output.mux(packet)
    fast = path.read_bytes()
    at = fast.index(b"mdat") - 4
    endless = fast[:at] + struct.pack(">I", 0) + fast[at + 4 :]  # the box reaches to the end of the file
    assert video.probe(endless, LIMIT).num_frames == 30
    with pytest.raises(errors.TruncatedMedium, match="past the end of the file"):
        video.probe(endless[: int(len(endless) * 0.55)], LIMIT)


def test_each_limit_refuses_with_its_reason() -> None:
    data = clips.clip(20, rate=10)
    with pytest.raises(errors.TooManyPixels):
        video.probe(data, 128 * 96 - 1)
    with pytest.raises(errors.MediumTooLong, match="2 s, more than 1"):
        video.probe(data, LIMIT, max_duration_s=1.0)
    with pytest.raises(errors.MediumTooLong, match="more than 19 packets"):
        video.probe(data, LIMIT, max_packets=19)


def test_junk_pictures_and_sound_alone_are_no_videos() -> None:
    for junk in (b"", b"junk" * 100, make.picture(), make.picture()[:20]):
        with pytest.raises(errors.UnknownMedium):
            video.probe(junk, LIMIT)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="wav") as output:
        stream = output.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        sound.rate = 8000
        output.mux(stream.encode(sound))
    with pytest.raises(errors.UnknownMedium, match="no video stream"):
        video.probe(buffer.getvalue(), LIMIT)


def test_hidden_reference_frames_of_vp8_are_not_counted() -> None:
    options = {"auto-alt-ref": "1", "lag-in-frames": "16", "deadline": "good", "cpu-used": "5"}
    found = video.probe(clips.clip(60, "libvpx", "webm", key_every=60, options=options), LIMIT)
    assert found.num_frames == 60
