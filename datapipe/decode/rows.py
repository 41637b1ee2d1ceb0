"""Pictures and videos as rows of the media table.

Owns which columns a decoded picture, a video and its sampled frames have. A fault is raised; the caller makes
it the row's `error`. Pure, so it can run in another process: `datapipe.guard` bounds its time and memory.
"""

import dataclasses
import io
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from datapipe.decode import image as images
from datapipe.decode import video as videos
from datapipe.spec import IngestSpec
from schemas import ids, media

Row = dict[str, Any]


def media_rows(media_id: str, data: bytes, kind: str, spec: IngestSpec) -> list[Row]:
    """Return what decoding tells about an original: its columns, then the rows of a video's sampled frames.

    The first row holds only those columns; its ids, kind and bytes are the caller's.

    Args:
        kind: `image` or `video`.

    Raises:
        DecodeError: the medium cannot be used.
    """
    if kind == "image":
        return [_image_columns(data, spec)]
    return _video_rows(media_id, data, spec)


def _image_columns(data: bytes, spec: IngestSpec) -> Row:
    decoded = images.decode(data, spec.max_image_pixels)
    names = [f.name for f in dataclasses.fields(decoded) if f.name in media.SCHEMA.names]
    return {name: getattr(decoded, name) for name in names}


def _video_rows(media_id: str, data: bytes, spec: IngestSpec) -> list[Row]:
    video = videos.probe(data, spec.max_image_pixels)
    times_s = videos.sample_times(video.duration_s, spec.frames_per_second, spec.max_frames)
    frames = [_frame_row(media_id, frame, spec) for frame in videos.sample(data, video, times_s)]
    turned = f"rotation={90 * video.quarter_turns}" if video.quarter_turns else ""
    pixels_id = ids.content_id("".join(f["pixels_id"] for f in frames).encode())
    return [
        {
            "pixels_id": pixels_id,
            "mime": video.mime,
            "width": video.width,
            "height": video.height,
            "num_frames": video.num_frames,
            "duration_s": video.duration_s,
            "policy": turned,
        },
        *frames,
    ]


def _frame_row(parent_id: str, frame: videos.Frame, spec: IngestSpec) -> Row:
    """Return a frame as a PNG that names its video and time, so that equal frames are still two media."""
    pixels, side = frame.pixels, max(frame.pixels.size)
    if side > spec.max_frame_side:
        width, height = (max(1, round(n * spec.max_frame_side / side)) for n in pixels.size)
        pixels = pixels.resize((width, height), Image.Resampling.LANCZOS)
    notes, buffer = PngInfo(), io.BytesIO()
    notes.add_text("Source", parent_id)
    notes.add_text("Time", f"{frame.t_s:.6f} s")
    pixels.save(buffer, "PNG", pnginfo=notes)
    data = buffer.getvalue()
    return {
        **dict.fromkeys(media.SCHEMA.names),
        "media_id": ids.content_id(data),
        "pixels_id": images.pixels_id(pixels),
        "parent_id": parent_id,
        "kind": "frame",
        "mime": "image/png",
        "bytes": data,
        "width": pixels.width,
        "height": pixels.height,
        "num_frames": 1,
        "t_s": frame.t_s,
        "policy": "",
        "perceptual_hash": images.perceptual_hash(pixels),
    }
