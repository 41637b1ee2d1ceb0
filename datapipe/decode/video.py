"""Videos: what a file holds, and frames of it by time.

Owns the choice of a decoder. PyAV reads the packets of every file first, which gives the true frame times
whatever the header says. decord decodes where it reports the same frames at the same times; PyAV decodes by
timestamp where it does not (edit lists, rotation). Readers live inside one call: none is kept, or crosses a
fork.
"""

import bisect
import dataclasses
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import av
import numpy as np
from PIL import Image

from datapipe.errors import DamagedMedium, DecodeError, TooManyPixels, TruncatedMedium, UnknownMedium


def _import_decord() -> Any:
    """Return decord, or None where it has no wheel; PyAV alone reads everything.

    decord loads every library below the `nvidia` package into the global namespace. Among those that torch
    brings is NVBLAS, which then stands in for torch's CPU BLAS and crashes the first matrix product. Decoding
    needs none of them, so the package is hidden while decord is imported.
    """
    hidden = sys.modules.get("nvidia")
    sys.modules["nvidia"] = None  # type: ignore[assignment]  # None makes it count as not installed
    try:
        import decord
    except ImportError:
        return None
    finally:
        if hidden is None:
            del sys.modules["nvidia"]
        else:
            sys.modules["nvidia"] = hidden
    decord.logging.set_level(decord.logging.QUIET)
    return decord


decord = _import_decord()

T = TypeVar("T")
_MIMES = (
    ("mov,mp4", "video/mp4"),
    ("avi", "video/x-msvideo"),
    ("mpegts", "video/mp2t"),
    ("mpeg", "video/mpeg"),
    ("ogg", "video/ogg"),
    ("flv", "video/x-flv"),
    ("asf", "video/x-ms-asf"),
)


@dataclasses.dataclass(frozen=True)
class Video:
    """What a file holds. Times are seconds from the start of the presentation, sorted."""

    mime: str
    width: int  # pixels, after rotation
    height: int
    num_frames: int
    duration_s: float
    quarter_turns: int  # counter-clockwise turns by 90 degrees that set frames upright
    times_s: np.ndarray  # [num_frames] float64
    timestamps: tuple[int, ...]  # [num_frames] in the stream's time base
    keyframes: tuple[int, ...]  # timestamps of the frames that decoding can start from


@dataclasses.dataclass(frozen=True)
class Frame:
    """A decoded frame, upright, RGB, shown from `t_s` on."""

    t_s: float
    pixels: Image.Image


def probe(data: bytes, max_pixels: int) -> Video:
    """Read the packets of a video and decode its first frame.

    Raises:
        UnknownMedium: no video in a format FFmpeg knows, or no video stream in it.
        TooManyPixels: the header announces frames of more than `max_pixels`.
        TruncatedMedium: the container announces more bytes than there are.
        DamagedMedium: any other fault.
    """
    return _guarded(lambda: _probe(data, max_pixels))


def sample_times(duration_s: float, frames_per_second: float, max_frames: int) -> list[float]:
    """Return the times to sample: at `frames_per_second`, or `max_frames` evenly over longer videos."""
    num_frames = max(1, int(np.ceil(duration_s * frames_per_second - 1e-6)))
    if num_frames <= max_frames:
        return [i / frames_per_second for i in range(num_frames)]
    return [i * duration_s / max_frames for i in range(max_frames)]


def sample(data: bytes, video: Video, times_s: Sequence[float]) -> list[Frame]:
    """Return the frame that begins at or first after each time (the last one past the end), each frame once.

    Raises:
        DamagedMedium: the frames cannot be decoded.
    """
    first = np.searchsorted(video.times_s, np.asarray(times_s) - 1e-4)
    wanted = sorted({min(int(index), video.num_frames - 1) for index in first})
    return _guarded(lambda: _decoded(data, video, wanted))


def _guarded(work: Callable[[], T]) -> T:
    try:
        return work()
    except DecodeError:
        raise
    except Exception as error:  # FFmpeg and decord raise many kinds, and some files break both
        text = str(error).strip().splitlines()
        raise DamagedMedium(f"{type(error).__name__}: {text[0] if text else ''}") from error


def _probe(data: bytes, max_pixels: int) -> Video:
    announced = _announced_bytes(data)
    if announced > len(data):
        raise TruncatedMedium(f"{len(data)} of {announced} bytes in the file")
    with _open(data) as container:
        if container.format.name.endswith("_pipe"):
            raise UnknownMedium("a picture, not a video")
        if not container.streams.video:
            raise UnknownMedium("no video stream")
        stream = container.streams.video[0]
        if stream.width * stream.height > max_pixels:
            raise TooManyPixels(f"frames of {stream.width} x {stream.height} pixels, more than {max_pixels}")
        packets = sorted(
            (p.pts, p.duration or 0, p.is_keyframe, p.is_discard)
            for p in container.demux(stream)
            if p.pts is not None and p.size > 0
        )
        timestamps = tuple(pts for pts, _, _, is_hidden in packets if not is_hidden)
        if not timestamps:
            raise TruncatedMedium("no frame in the file")
        times_s = np.array([t * float(stream.time_base) for t in timestamps]) - _origin(container, stream)
        last_s = packets[-1][1] * float(stream.time_base) or _typical_step(times_s, stream)
        keyframes = tuple(pts for pts, _, is_key, _ in packets if is_key)
    with _open(data) as container:
        frame = next(iter(container.decode(video=0)), None)
        if frame is None:
            raise TruncatedMedium("the first frame cannot be decoded")
        turns = round(frame.rotation / 90) % 4
        width, height = (frame.width, frame.height) if turns % 2 == 0 else (frame.height, frame.width)
    return Video(
        _mime(data, container.format.name),
        width,
        height,
        len(timestamps),
        float(times_s[-1] + last_s),
        turns,
        times_s,
        timestamps,
        keyframes,
    )


def _announced_bytes(data: bytes) -> int:
    """Return where the last top-level part of an MP4, AVI or Matroska file ends; 0 where nothing tells."""
    if data[:4] == b"RIFF":
        return 8 + int.from_bytes(data[4:8], "little")
    if (start := data.find(b"\x18\x53\x80\x67", 0, 256)) >= 0 and data.startswith(b"\x1aE\xdf\xa3"):
        length = 9 - data[start + 4].bit_length()  # an EBML number says its length by its leading zeros
        size = int.from_bytes(data[start + 4 : start + 4 + length]) & ((1 << 7 * length) - 1)
        is_known = 0 < length <= 8 and size != (1 << 7 * length) - 1
        return start + 4 + length + size if is_known else 0
    at = 0
    while data[4:8] == b"ftyp" and at + 8 <= len(data):  # boxes of ISO/IEC 14496-12, section 4.2
        size, header = int.from_bytes(data[at : at + 4]), 8
        if size == 1:
            size, header = int.from_bytes(data[at + 8 : at + 16]), 16
        if size < header:  # 0: to the end of the file
            break
        at += size
    return at


def _open(data: bytes) -> Any:
    try:
        return av.open(io.BytesIO(data))
    except av.error.InvalidDataError as error:
        if data[4:8] == b"ftyp" or data.startswith((b"\x1aE\xdf\xa3", b"RIFF")):
            raise DamagedMedium("the container cannot be opened: its index is missing or damaged") from error
        raise UnknownMedium("no video in a known format") from error


def _origin(container: Any, stream: Any) -> float:
    """Return the time, in seconds of the stream's own clock, that a player shows as zero."""
    if container.start_time is not None:
        return container.start_time / av.time_base
    return float(stream.start_time * stream.time_base) if stream.start_time is not None else 0.0


def _typical_step(times_s: np.ndarray, stream: Any) -> float:
    if len(times_s) > 1:
        return float(np.median(np.diff(times_s)))
    return float(1 / stream.average_rate) if stream.average_rate else 0.0


def _mime(data: bytes, name: str) -> str:
    if "matroska" in name:
        return "video/webm" if b"webm" in data[:64] else "video/x-matroska"
    return next((mime for start, mime in _MIMES if name.startswith(start)), f"video/x-{name.split(',')[0]}")


def _decoded(data: bytes, video: Video, wanted: list[int]) -> list[Frame]:
    frames = _by_decord(data, video, wanted)
    return list(_by_timestamp(data, video, wanted)) if frames is None else frames


def _by_decord(data: bytes, video: Video, wanted: list[int]) -> list[Frame] | None:
    """Decode with decord, or return None where it does not see the frames that the packets have."""
    if decord is None or video.quarter_turns:
        return None
    try:
        reader = decord.VideoReader(io.BytesIO(data), num_threads=1)
        if len(reader) != video.num_frames:
            return None
        starts_s = np.asarray(reader.get_frame_timestamp(list(range(len(reader)))))[:, 0]
        steps = np.diff(video.times_s)
        tolerance_s = 0.5 * float(steps.min()) if len(steps) else 0.5
        if np.abs(starts_s - starts_s[0] - (video.times_s - video.times_s[0])).max() > tolerance_s:
            return None
        frames = reader.get_batch(wanted).asnumpy()
    except Exception:  # decord raises many kinds; PyAV decides whether the file is bad
        return None
    if frames.shape[1:] != (video.height, video.width, 3):
        return None
    return [
        Frame(float(video.times_s[i]), Image.fromarray(frame))
        for i, frame in zip(wanted, frames, strict=True)
    ]


def _by_timestamp(data: bytes, video: Video, wanted: list[int]) -> Iterator[Frame]:
    """Decode with PyAV: go on, or seek to a later keyframe where there is one, until the timestamp comes.

    A packet that shows nothing of its own (a reference frame of VP8) gives the frame shown next.
    """
    with _open(data) as container:
        stream = container.streams.video[0]
        frames, at = container.decode(stream), -1
        for index in wanted:
            if index <= at:
                continue
            target = video.timestamps[index]
            place = bisect.bisect_right(video.keyframes, target) - 1
            if at >= 0 and place >= 0 and video.keyframes[place] > video.timestamps[at]:
                container.seek(video.keyframes[place], stream=stream)
                frames = container.decode(stream)
            frame = next((f for f in frames if f.pts is not None and f.pts >= target), None)
            if frame is None:
                raise TruncatedMedium(f"no frame from {video.times_s[index]:.3f} s on can be decoded")
            at = min(bisect.bisect_left(video.timestamps, frame.pts), video.num_frames - 1)
            yield Frame(float(video.times_s[at]), _upright(frame.to_image(), video.quarter_turns))


def _upright(picture: Image.Image, quarter_turns: int) -> Image.Image:
    turns = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)
    return picture.transpose(turns[quarter_turns - 1]) if quarter_turns else picture
