import io
import subprocess
import sys
from typing import Any

import av
import numpy as np
import pytest

from datapipe import errors
from datapipe.decode import video
from tests import make

LIMIT = 10**6
_UPRIGHT = bytes.fromhex("000100000000000000000000000000000001000000000000000000000000000040000000")
_TURNED = bytes.fromhex("000000000001000000000000ffff00000000000000000000003000000000000040000000")


def sampled(data: bytes, frames_per_second: float = 1.0, max_frames: int = 64) -> list[tuple[float, int]]:
    """Time and number of each sampled frame."""
    found = video.probe(data, LIMIT)
    times_s = video.sample_times(found.duration_s, frames_per_second, max_frames)
    return [(round(f.t_s, 3), make.frame_number(f.pixels)) for f in video.sample(data, found, times_s)]


def trimmed(data: bytes, start_s: float) -> bytes:
    """The video cut at `start_s` without decoding: an edit list hides the frames before it."""
    buffer = io.BytesIO()
    source: Any
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format="mp4") as output:
        stream = source.streams.video[0]
        copy = output.add_stream_from_template(stream)
        packets = [p for p in source.demux(stream) if p.size]
        offset = round(start_s / stream.time_base)
        first = max(i for i, p in enumerate(packets) if p.is_keyframe and p.pts <= offset)
        for packet in packets[first:]:
            packet.pts, packet.dts, packet.stream = packet.pts - offset, packet.dts - offset, copy
            output.mux(packet)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("codec", "container", "mime"),
    [
        ("libvpx", "webm", "video/webm"),
        ("libx264", "mp4", "video/mp4"),
        ("libx264", "matroska", "video/x-matroska"),
        ("mpeg4", "mp4", "video/mp4"),
    ],
)
def test_frames_are_the_ones_shown_at_their_times(codec: str, container: str, mime: str) -> None:
    data = make.video(40, 10, codec, container)
    found = video.probe(data, LIMIT)
    assert (found.mime, found.width, found.height, found.num_frames, found.duration_s) == (
        mime,
        64,
        48,
        40,
        pytest.approx(4.0),
    )
    assert sampled(data, 2.0) == [(0.5 * i, 5 * i) for i in range(8)]


def test_both_decoders_give_the_same_frames_in_any_order_of_seeks() -> None:
    data = make.video(40, 10, "libx264", "mp4")
    found, wanted = video.probe(data, LIMIT), [1, 11, 12, 13, 30, 39]
    by_decord = video._by_decord(data, found, wanted)
    assert by_decord is not None
    by_timestamp = list(video._by_timestamp(data, found, wanted))
    for frames in (by_decord, by_timestamp):
        assert [make.frame_number(f.pixels) for f in frames] == wanted
        assert [f.t_s for f in frames] == pytest.approx([i / 10 for i in wanted])


def test_variable_frame_rates_keep_their_true_times() -> None:
    data = make.video(6, 10, "libx264", "mp4", times_ms=[0, 100, 150, 900, 2000, 2100])
    assert sampled(data, 2.0) == [(0.0, 0), (0.9, 3), (2.0, 4)]


def test_long_videos_are_sampled_evenly() -> None:
    assert video.sample_times(100.0, 1.0, 4) == [0.0, 25.0, 50.0, 75.0]
    assert video.sample_times(3.2, 1.0, 64) == [0.0, 1.0, 2.0, 3.0]
    assert video.sample_times(0.04, 1.0, 64) == [0.0]
    assert [t for t, _ in sampled(make.video(40, 10), 10.0, 5)] == [0.0, 0.8, 1.6, 2.4, 3.2]


def test_edit_lists_hide_the_frames_before_the_cut() -> None:
    data = trimmed(make.video(60, 10, "libx264", "mp4", key_every=20), 2.5)
    found = video.probe(data, LIMIT)
    assert video._by_decord(data, found, [0]) is None  # it counts the hidden frames too
    assert (found.num_frames, found.times_s[0]) == (35, 0.0)
    assert sampled(data) == [(0.0, 25), (1.0, 35), (2.0, 45), (3.0, 55)]


def test_rotation_is_applied() -> None:
    data = make.video(10, 10, "libx264", "mp4")
    place = data.index(_UPRIGHT, data.index(b"tkhd"))
    data = data[:place] + _TURNED + data[place + len(_TURNED) :]
    found = video.probe(data, LIMIT)
    assert (found.width, found.height) == (48, 64)
    pixels = np.asarray(video.sample(data, found, [0.0])[0].pixels)
    assert pixels.shape == (64, 48, 3)
    corners = [pixels[:8, :8].mean(), pixels[:8, -8:].mean(), pixels[-8:, :8].mean(), pixels[-8:, -8:].mean()]
    assert int(np.argmax(corners)) == 1  # a quarter turn clockwise: top left became top right


@pytest.mark.parametrize(("codec", "container"), [("libvpx", "webm"), ("libx264", "mp4"), ("mpeg4", "avi")])
@pytest.mark.parametrize("frac", [0.3, 0.55, 0.9])
def test_truncated_files_are_refused(codec: str, container: str, frac: float) -> None:
    data = make.video(30, 10, codec, container)
    with pytest.raises((errors.TruncatedMedium, errors.DamagedMedium)):
        video.probe(data[: int(len(data) * frac)], LIMIT)


def test_large_frames_junk_and_sound_alone_are_refused_with_their_reason() -> None:
    with pytest.raises(errors.TooManyPixels):
        video.probe(make.video(2), 64 * 48 - 1)
    for junk in (b"", b"junk" * 100, make.picture()[:20]):
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


def test_decoding_and_torch_live_in_one_process():
    """decord would load a CUDA library that replaces torch's CPU BLAS and crashes it."""
    program = (
        "import datapipe.decode.video as v, torch\n"
        "assert v.decord is not None\n"
        "torch.nn.Linear(384, 24)(torch.randn(64, 384)).sum().backward()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
