"""Videos: what a file holds, read from its packets.

Owns probing: the true frame times whatever the header says, where decoding can start, the size a viewer sees,
and which files are refused before a frame of them is used. Decodes one frame only; `decode.frames` decodes
those that are wanted, `decode.shots` looks at all of them.

Readers live inside one call: none is kept, so none crosses a fork.
"""

import dataclasses
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import av
import numpy as np

from datapipe.decode import frame_pixels
from datapipe.errors import (
    DamagedMedium,
    DecodeError,
    MediumTooLong,
    TooManyPixels,
    TruncatedMedium,
    UnknownMedium,
)

T = TypeVar("T")
MAX_DURATION_S = 6 * 3600.0
MAX_PACKETS = 2_000_000
_MIMES = (
    ("mov,mp4", "video/mp4"),
    ("avi", "video/x-msvideo"),
    ("mpegts", "video/mp2t"),
    ("mpeg", "video/mpeg"),
    ("ogg", "video/ogg"),
    ("flv", "video/x-flv"),
    ("asf", "video/x-ms-asf"),
)
_VP8_SHOW_FRAME = 0x10  # bit of a frame's first byte (RFC 6386, section 9.1)


@dataclasses.dataclass(frozen=True)
class Video:
    """What a file holds. Times are seconds from the start of the presentation, sorted."""

    mime: str
    codec: str  # FFmpeg's name, e.g. h264
    width: int  # pixels as shown: after rotation, non-square pixels made square
    height: int
    num_frames: int
    duration_s: float
    frames_per_second: float  # mean rate
    times_s: np.ndarray  # [num_frames] float64
    timestamps: tuple[int, ...]  # [num_frames] in the stream's time base
    keyframes: tuple[int, ...]  # timestamps of the frames that decoding can start from
    packet_bytes: Mapping[int, int]  # size of the packet of each timestamp
    geometry: frame_pixels.Geometry
    announced_frames: int  # what the header says; 0 where it says nothing
    is_plain: bool  # 8-bit, upright, square pixels, nothing hidden: any decoder gives the same pictures
    num_subtitles: int  # text subtitle streams inside the file


class _Packet(NamedTuple):
    timestamp: int
    duration: int
    is_key: bool
    is_shown: bool
    num_bytes: int


def probe(
    data: bytes,
    max_pixels: int,
    max_duration_s: float = MAX_DURATION_S,
    max_packets: int = MAX_PACKETS,
) -> Video:
    """Read the packets of a video and decode its first frame.

    Raises:
        UnknownMedium: no video in a format FFmpeg knows, or no video stream in it.
        TooManyPixels: the header announces frames of more than `max_pixels`.
        MediumTooLong: it lasts longer than `max_duration_s`, or has more than `max_packets` packets.
        TruncatedMedium: the container announces more bytes than there are.
        DamagedMedium: any other fault.
    """
    return guarded(lambda: _probe(data, max_pixels, max_duration_s, max_packets))


def guarded(work: Callable[[], T]) -> T:
    """Return what `work` returns; faults of the decoders become a `DamagedMedium`."""
    try:
        return work()
    except DecodeError:
        raise
    except Exception as error:  # FFmpeg raises many kinds
        text = str(error).strip().splitlines()
        raise DamagedMedium(f"{type(error).__name__}: {text[0] if text else ''}") from error


def open_container(data: bytes) -> Any:
    """Open a video; the caller closes it.

    Raises:
        UnknownMedium: FFmpeg knows no such format.
        DamagedMedium: the format is known, the file cannot be opened.
    """
    try:
        return av.open(io.BytesIO(data), metadata_errors="replace")
    except av.error.InvalidDataError as error:
        if data[4:8] == b"ftyp" or data.startswith((b"\x1aE\xdf\xa3", b"RIFF")):
            raise DamagedMedium("the container cannot be opened: its index is missing or damaged") from error
        raise UnknownMedium("no video in a known format") from error


def video_stream(container: Any) -> Any:
    """Return the first video stream that is no cover picture.

    Raises:
        UnknownMedium: there is none.
    """
    for stream in container.streams.video:
        if not stream.disposition & av.stream.Disposition.attached_pic:
            return stream
    raise UnknownMedium("no video stream")


def origin_s(container: Any, stream: Any) -> float:
    """Return the time, in seconds of the stream's own clock, that a player shows as zero."""
    if container.start_time is not None:
        return container.start_time / av.time_base
    return float(stream.start_time * stream.time_base) if stream.start_time is not None else 0.0


def _probe(data: bytes, max_pixels: int, max_duration_s: float, max_packets: int) -> Video:
    if not data:
        raise UnknownMedium("an empty file")
    announced = _announced_bytes(data)
    if announced > len(data):
        raise TruncatedMedium(f"{len(data)} of {announced} bytes in the file")
    with open_container(data) as container:
        if container.format.name.endswith("_pipe"):
            raise UnknownMedium("a picture, not a video")
        stream = video_stream(container)
        _check_pixels(stream.width, stream.height, max_pixels)
        _check_samples_in_file(stream, len(data))
        packets = _packets(container, stream, max_packets)
        subtitles = [s for s in container.streams.subtitles if s.codec_context is not None]
        unit_s = float(stream.time_base)
        timestamps = tuple(p.timestamp for p in packets if p.is_shown)
        if not timestamps:
            raise TruncatedMedium("no frame in the file")
        seconds = np.array(timestamps, dtype=np.float64) * unit_s - origin_s(container, stream)
        times_s = (
            np.round(seconds, 6) + 0.0
        )  # a clock counts in microseconds: the first frame is at 0, not before
        last_s = packets[-1].duration * unit_s or _typical_step(times_s, stream)
        duration_s = float(times_s[-1] + last_s)
        if not math.isfinite(duration_s) or duration_s > max_duration_s:
            raise MediumTooLong(f"{duration_s:.0f} s, more than {max_duration_s:.0f}")
        announced_frames, codec = stream.frames, stream.codec_context.name
        mime = _mime(data, container.format.name)
    frame, geometry = _first_frame(data, max_pixels)
    width, height = geometry.shown_size(frame.width, frame.height)
    _check_pixels(width, height, max_pixels)
    return Video(
        mime=mime,
        codec=codec,
        width=width,
        height=height,
        num_frames=len(timestamps),
        duration_s=duration_s,
        frames_per_second=len(timestamps) / max(duration_s - max(float(times_s[0]), 0.0), 1e-6),
        times_s=times_s,
        timestamps=timestamps,
        keyframes=tuple(p.timestamp for p in packets if p.is_key),
        packet_bytes={p.timestamp: p.num_bytes for p in packets},
        geometry=geometry,
        announced_frames=announced_frames,
        is_plain=geometry.is_plain and frame_pixels.is_plain(frame) and all(p.is_shown for p in packets),
        num_subtitles=len(subtitles),
    )


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise TooManyPixels(f"frames of {width} x {height} pixels, more than {max_pixels}")


def _check_samples_in_file(stream: Any, size_bytes: int) -> None:
    """Refuse an MP4 whose index names samples past the end of the file, whatever its boxes say."""
    ends = [entry.pos + entry.size for entry in stream.index_entries]
    past = sum(end > size_bytes for end in ends)
    if past:
        raise TruncatedMedium(f"{past} of {len(ends)} frames lie past the end of the file")


def _packets(container: Any, stream: Any, max_packets: int) -> list["_Packet"]:
    """Return the packets of a stream in order of presentation."""
    packets = []
    is_vp8 = stream.codec_context.name == "vp8"
    for number, packet in enumerate(container.demux(stream)):
        if number >= max_packets:
            raise MediumTooLong(f"more than {max_packets} packets")
        if packet.size == 0:  # the end, or in Theora a repeated frame
            continue
        if packet.pts is None:
            raise DamagedMedium(f"packet {number} has no time")
        is_shown = not packet.is_discard
        if is_vp8 and not bytes(memoryview(packet)[:1])[0] & _VP8_SHOW_FRAME:
            is_shown = False  # a reference frame that is never seen
        packets.append(_Packet(packet.pts, packet.duration or 0, packet.is_keyframe, is_shown, packet.size))
    packets.sort()
    shown = [p.timestamp for p in packets if p.is_shown]
    if len(set(shown)) < len(shown):
        raise DamagedMedium("several frames claim the same time")
    return packets


def _first_frame(data: bytes, max_pixels: int) -> tuple[Any, frame_pixels.Geometry]:
    with open_container(data) as container:
        stream = video_stream(container)
        stream.codec_context.thread_count = 1
        frame = next(_decodable(container, stream), None)
        if frame is None:
            raise TruncatedMedium("no frame can be decoded")
        _check_pixels(frame.width, frame.height, max_pixels)
        return frame, frame_pixels.geometry(frame, stream)


def _decodable(container: Any, stream: Any) -> Iterator[Any]:
    for packet in container.demux(stream):
        try:
            yield from packet.decode()
        except av.error.FFmpegError:  # `decode.frames` counts the damage
            continue


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


def _typical_step(times_s: np.ndarray, stream: Any) -> float:
    if len(times_s) > 1:
        return float(np.median(np.diff(times_s)))
    return float(1 / stream.average_rate) if stream.average_rate else 0.0


def _mime(data: bytes, name: str) -> str:
    if "matroska" in name:
        return "video/webm" if b"webm" in data[:64] else "video/x-matroska"
    return next((mime for start, mime in _MIMES if name.startswith(start)), f"video/x-{name.split(',')[0]}")


def nearest_frames(video: Video, times_s: Sequence[float]) -> list[int]:
    """Return the numbers of the frames that begin at or first after each time (the last one past the end),
    each once, in order.
    """
    first = np.searchsorted(video.times_s, np.asarray(times_s, dtype=np.float64) - 1e-4)
    return sorted({min(int(index), video.num_frames - 1) for index in first})
