"""Frames by time: the right ones on every kind of file, in any order, whichever decoder is used."""

import io
import random
import struct
import subprocess
import sys
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from datapipe import errors
from datapipe.decode import frames, shots, video
from tests import clips, make

LIMIT = 10**7
KINDS = {
    "h264 mp4": {"codec": "libx264", "container": "mp4"},
    "h264 mkv": {"codec": "libx264", "container": "matroska"},
    "h264 ts": {"codec": "libx264", "container": "mpegts"},
    "h264 flv": {"codec": "libx264", "container": "flv"},
    "h264 open gop": {"options": {"x264-params": "open-gop=1:bframes=3:b-pyramid=2:keyint=10:min-keyint=10"}},
    "h264 intra refresh": {"options": {"x264-params": "intra-refresh=1:keyint=20"}},
    "h264 10 bit": {"pix_fmt": "yuv420p10le", "options": {"preset": "fast"}},
    "h264 odd": {"size": (127, 95), "pix_fmt": "yuv444p"},
    "hevc mp4": {"codec": "libx265", "container": "mp4"},
    "vp8 webm": {"codec": "libvpx", "container": "webm"},
    "vp8 hidden frames": {
        "codec": "libvpx",
        "container": "webm",
        "options": {"auto-alt-ref": "1", "lag-in-frames": "16", "deadline": "good", "cpu-used": "5"},
    },
    "vp9 webm": {"codec": "libvpx-vp9", "container": "webm"},
    "vp9 odd": {"codec": "libvpx-vp9", "container": "webm", "size": (127, 95)},
    "av1 mp4": {"codec": "libsvtav1", "container": "mp4"},
    "mpeg4 mp4": {"codec": "mpeg4", "container": "mp4", "options": {"bf": "2"}},
    "mpeg4 avi": {"codec": "mpeg4", "container": "avi", "options": {"bf": "2"}},
    "mpeg2 ts": {"codec": "mpeg2video", "container": "mpegts", "rate": 25, "options": {"bf": "2"}},
    "mpeg1 ps": {"codec": "mpeg1video", "container": "mpeg", "rate": 25, "options": {"bf": "2"}},
    "ffv1 mkv": {"codec": "ffv1", "container": "matroska"},
}


def numbers(data: bytes, times_s: list[float], **fields: Any) -> list[int]:
    found = video.probe(data, LIMIT)
    return [clips.number_of(f.pixels) for f in frames.sample(data, found, times_s, **fields).frames]


@pytest.mark.parametrize("kind", KINDS)
def test_every_wanted_frame_is_the_one_of_its_time_in_any_company(kind: str) -> None:
    data = clips.clip(**KINDS[kind])
    found = video.probe(data, LIMIT)
    assert found.num_frames == 60
    every = [float(t) for t in found.times_s]
    assert numbers(data, every) == list(range(60))
    rng = random.Random(1)
    for size in (1, 2, 7):
        wanted = sorted(rng.sample(range(60), size))
        sample = frames.sample(data, found, [every[i] for i in wanted])
        assert [clips.number_of(f.pixels) for f in sample.frames] == wanted
        assert [f.t_s for f in sample.frames] == [every[i] for i in wanted]
    assert numbers(data, [every[59]]) == [59] and numbers(data, [99.0]) == [59]


@pytest.mark.parametrize("kind", ["h264 mp4", "hevc mp4", "vp9 webm", "av1 mp4"])
def test_threads_and_the_choice_of_decoder_change_no_pixel(kind: str) -> None:
    data = clips.clip(**KINDS[kind])
    found = video.probe(data, LIMIT)
    wanted = list(range(60))
    by_decord = frames._by_decord(data, found, wanted, None)
    times_s = [float(t) for t in found.times_s]
    by_one, by_two = (frames.sample(data, found, times_s, threads=n).frames for n in (1, 2))
    assert by_decord is not None
    for one, two, other in zip(by_one, by_two, by_decord, strict=True):
        assert one.t_s == two.t_s == other.t_s
        assert one.pixels.tobytes() == two.pixels.tobytes() == other.pixels.tobytes()


@pytest.mark.parametrize("kind", ["h264 mp4", "h264 open gop", "hevc mp4", "mpeg2 ts"])
def test_threads_skip_no_frame_that_is_wanted(kind: str) -> None:
    data = clips.clip(**KINDS[kind])
    every = [float(t) for t in video.probe(data, LIMIT).times_s]
    for wanted in ([5, 23, 24, 41], [0, 59], [7], list(range(0, 60, 3))):
        assert numbers(data, [every[i] for i in wanted], threads=3) == wanted


def test_decord_is_not_called_where_its_frames_might_be_others() -> None:
    plain = clips.clip(30)
    trimmed = clips.trimmed(clips.clip(60, key_every=20), 2.5)
    turned = clips.clip(30, prepare=lambda stream: stream.set_display_rotation(90))
    lying = clips.clip(30, "mpeg4", "avi")
    at = lying.index(b"strh") + 8 + 32
    lying = lying[:at] + struct.pack("<I", 43) + lying[at + 4 :]
    probed = {data: video.probe(data, LIMIT) for data in (plain, trimmed, turned, lying)}
    assert frames._by_decord(plain, probed[plain], list(range(30)), None) is not None
    assert frames._by_decord(plain, probed[plain], [3, 29], None) is None  # it would have to skip
    for data in (trimmed, turned, lying):
        wanted = list(range(probed[data].num_frames))
        assert frames._by_decord(data, probed[data], wanted, None) is None
        assert len(numbers(data, [float(t) for t in probed[data].times_s], is_sound=True)) == len(wanted)


def test_variable_frame_rates_keep_their_true_times() -> None:
    data = clips.clip(6, times_ms=[0, 100, 150, 900, 2000, 2100])
    sample = frames.sample(data, video.probe(data, LIMIT), [0.0, 0.5, 1.0, 1.5, 2.0])
    assert [(round(f.t_s, 3), clips.number_of(f.pixels)) for f in sample.frames] == [(0, 0), (0.9, 3), (2, 4)]


def test_one_frame_is_a_video() -> None:
    assert numbers(clips.clip(1, draw=lambda number: clips.coded(77)), [0.0, 1.0]) == [77]


def test_edit_lists_hide_the_frames_before_the_cut() -> None:
    data = clips.trimmed(clips.clip(60, key_every=20), 2.5)
    every = [float(t) for t in video.probe(data, LIMIT).times_s]
    assert numbers(data, every) == list(range(25, 60))
    for i in (34, 12, 0, 21):
        assert numbers(data, [every[i]]) == [25 + i]


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_is_applied(degrees: int) -> None:
    def turned(stream: Any) -> None:
        stream.set_display_rotation(degrees)  # counter-clockwise

    data = clips.clip(12, prepare=turned)
    found = video.probe(data, LIMIT)
    frame = frames.sample(data, found, [0.7]).frames[0]
    assert frame.pixels.size == (found.width, found.height)
    assert frame.policy == f"rotation={360 - degrees}"
    assert clips.number_of(frame.pixels.rotate(-degrees, expand=True)) == 7


def test_a_mirrored_frame_is_turned_back() -> None:
    def mirrored(stream: Any) -> None:
        one = 1 << 16
        stream.set_display_matrix((-one, 0, 0, 0, one, 0, 0, 0, 1 << 30))

    data = clips.clip(12, prepare=mirrored)
    frame = frames.sample(data, video.probe(data, LIMIT), [0.7]).frames[0]
    assert frame.policy == "mirrored"
    assert clips.number_of(frame.pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)) == 7


def test_pixels_that_are_no_squares_become_such() -> None:
    def tall(stream: Any) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(1, 2)

    data = clips.clip(12, prepare=tall)
    frame = frames.sample(data, video.probe(data, LIMIT), [0.7]).frames[0]
    assert (frame.pixels.size, frame.policy, clips.number_of(frame.pixels)) == ((128, 192), "aspect=1:2", 7)


def test_frames_are_shrunk_to_the_side_asked_for() -> None:
    data = clips.clip(12)
    sample = frames.sample(data, video.probe(data, LIMIT), [0.7], max_side=64)
    assert (sample.frames[0].pixels.size, clips.number_of(sample.frames[0].pixels)) == ((64, 48), 7)


# ---- files that break off, or break in the middle


def packets_spoilt(data: bytes, numbers_spoilt: range) -> bytes:
    """The video with the middle of some of its packets overwritten."""
    spoilt = bytearray(data)
    with av.open(io.BytesIO(data)) as container:
        packets = [p for p in container.demux(container.streams.video[0]) if p.size]
    for number in numbers_spoilt:
        packet = packets[number]
        spoilt[packet.pos + 8 : packet.pos + packet.size] = b"\xa5" * (packet.size - 8)
    return bytes(spoilt)


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libvpx-vp9"])
def test_a_fault_in_the_middle_costs_the_frames_it_spoils_and_shows_no_wrong_one(codec: str) -> None:
    data = packets_spoilt(clips.clip(60, codec, "mp4", key_every=12), range(26, 28))
    found = video.probe(data, LIMIT)
    assert not shots.scan(data, found).is_sound
    sample = frames.sample(data, found, [float(t) for t in found.times_s])
    shown = {round(f.t_s * 10): clips.number_of(f.pixels) for f in sample.frames}
    assert all(time == number for time, number in shown.items())
    assert set(range(24)) | set(range(36, 60)) <= set(shown)
    assert sample.num_damaged == 60 - len(shown) > 0


def test_a_video_of_which_most_cannot_be_decoded_is_refused() -> None:
    data = packets_spoilt(clips.clip(60, key_every=60), range(2, 60))
    found = video.probe(data, LIMIT)
    with pytest.raises(errors.DamagedMedium, match="cannot be decoded"):
        frames.sample(data, found, [float(t) for t in found.times_s])


def test_a_stream_cut_off_gives_the_frames_there_are() -> None:
    data = clips.clip(60, container="mpegts")  # made to be cut anywhere
    data = data[: int(0.55 * len(data))]
    found = video.probe(data, LIMIT)
    sample = frames.sample(data, found, [float(t) for t in found.times_s])
    times = [round((f.t_s - found.times_s[0]) * 10) for f in sample.frames]
    assert [clips.number_of(f.pixels) for f in sample.frames] == times
    assert 25 < len(times) < 40


# ---- colours


def flat(
    rgb: tuple[int, int, int],
    matrix: int | None,
    is_full: bool | None,
    size: tuple[int, int],
    is_tagged: bool = True,
) -> bytes:
    """A video of one colour, coded with a matrix and range, and tagged so where they are given."""
    red, green, blue = {1: (0.2126, 0.7152, 0.0722), 9: (0.2627, 0.678, 0.0593)}.get(
        matrix or 0, (0.299, 0.587, 0.114)
    )
    r, g, b = (value / 255 for value in rgb)
    luma = red * r + green * g + blue * b
    colours = ((b - luma) / (2 - 2 * blue), (r - luma) / (2 - 2 * red))
    scale = (255, 255, 0) if is_full else (219, 224, 16)
    width, height = size
    planes = [np.full(height * width, round(scale[2] + scale[0] * luma))]
    planes += [np.full(height * width // 4, round(128 + scale[1] * value)) for value in colours]
    coded = np.concatenate(planes).astype(np.uint8).reshape(height * 3 // 2, width)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream: Any = output.add_stream("libx264", rate=10, options={"crf": "1", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        if matrix is not None and is_tagged:
            stream.codec_context.colorspace = stream.codec_context.color_primaries = matrix
        if is_full is not None:
            stream.codec_context.color_range = 2 if is_full else 1
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(coded, format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            frame.colorspace = (matrix if is_tagged else None) or 2
            frame.color_range = 2 if is_full else 1
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return buffer.getvalue()


@pytest.mark.parametrize("matrix", [None, 1, 6])
@pytest.mark.parametrize("is_full", [None, False, True])
def test_colours_are_those_of_the_tagged_matrix_and_range(matrix: int | None, is_full: bool | None) -> None:
    data = flat((200, 60, 30), matrix, is_full, (64, 48))
    sample = frames.sample(data, video.probe(data, LIMIT), [0.0])
    assert np.abs(np.asarray(sample.frames[0].pixels)[20, 20].astype(int) - (200, 60, 30)).max() <= 4


def test_large_untagged_frames_have_the_colours_of_high_definition() -> None:
    data = flat((200, 60, 30), 1, None, (1280, 720), is_tagged=False)
    frame = frames.sample(data, video.probe(data, LIMIT), [0.0]).frames[0]
    assert frame.policy == "matrix=bt709"
    assert np.abs(np.asarray(frame.pixels)[20, 20].astype(int) - (200, 60, 30)).max() <= 4


def test_transparent_video_lies_on_white() -> None:
    def half(number: int) -> np.ndarray:
        pixels = np.zeros((96, 128, 4), np.uint8)
        pixels[:, 64:] = (255, 0, 0, 255)
        return pixels

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="webm") as output:
        stream: Any = output.add_stream(
            "libvpx-vp9", rate=10, options={"deadline": "realtime", "cpu-used": "8", "auto-alt-ref": "0"}
        )
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuva420p"
        stream.metadata["alpha_mode"] = "1"
        for number in range(5):
            frame = av.VideoFrame.from_ndarray(half(number), format="rgba").reformat(format="yuva420p")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    data = buffer.getvalue()
    frame = frames.sample(data, video.probe(data, LIMIT), [0.3]).frames[0]
    left, right = (np.asarray(frame.pixels)[48, x].astype(int) for x in (30, 100))
    assert frame.policy == "alpha=white"
    assert np.abs(left - 255).max() <= 6 and np.abs(right - (255, 0, 0)).max() <= 12


@pytest.mark.parametrize(("transfer", "name"), [(16, "hdr=pq"), (18, "hdr=hlg")])
def test_hdr_is_shown_with_diffuse_white_as_white(transfer: int, name: str) -> None:
    levels = {16: (0.0, 0.58, 0.75), 18: (0.0, 0.75, 1.0)}[transfer]  # black, diffuse white, 1,000 cd/m2

    def tag(frame: av.VideoFrame) -> None:
        frame.color_trc, frame.color_primaries, frame.colorspace, frame.color_range = transfer, 9, 9, 1

    def prepare(stream: Any) -> None:
        context = stream.codec_context
        context.color_trc, context.color_primaries, context.colorspace, context.color_range = (
            transfer,
            9,
            9,
            1,
        )

    bands = np.repeat(np.array([round(255 * level) for level in levels], np.uint8), 32)
    picture = np.broadcast_to(bands[None, :, None], (96, 96, 3))
    data = clips.clip(
        3,
        "libx265",
        "mp4",
        size=(96, 96),
        draw=lambda n: picture,
        pix_fmt="yuv420p10le",
        prepare=prepare,
        tag=tag,
    )
    frame = frames.sample(data, video.probe(data, LIMIT), [0.0]).frames[0]
    black, white, bright = (int(np.asarray(frame.pixels)[48, x].mean()) for x in (16, 48, 80))
    assert name in frame.policy
    assert black < 12 and 190 < white <= bright and bright >= 245


def test_fields_of_two_times_are_not_shown_together() -> None:
    def combed(number: int) -> np.ndarray:
        pixels = np.zeros((96, 128, 3), np.uint8)
        pixels[0::2, 20:60] = 220  # a bar that has moved by its width
        pixels[1::2, 60:100] = 220
        return pixels

    def interlaced(stream: Any) -> None:
        stream.codec_context.flags |= av.codec.context.Flags.interlaced_dct

    options = {"x264-params": "interlaced=1:tff=1:qp=1"}
    data = clips.clip(5, draw=combed, prepare=interlaced, options=options)
    frame = frames.sample(data, video.probe(data, LIMIT), [0.2]).frames[0]
    pixels = np.asarray(frame.pixels)
    assert frame.policy == "fields=top"
    assert pixels[10:80, 25:55].min() > 180 and pixels[10:80, 65:95].max() < 60


def test_decoding_and_torch_live_in_one_process() -> None:
    """decord would load a CUDA library that replaces torch's CPU BLAS and crashes it."""
    program = (
        "import datapipe.decode.frames as v, torch\n"
        "assert v.decord is not None\n"
        "torch.nn.Linear(384, 24)(torch.randn(64, 384)).sum().backward()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_picture_passes_for_a_video() -> None:
    with pytest.raises(errors.UnknownMedium):
        video.probe(make.picture(), LIMIT)
