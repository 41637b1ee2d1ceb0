"""Test inputs made by code: document rows, pictures, tables. Nothing here is read from a corpus."""

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
from PIL import Image

from schemas import document, ids, media, shard


def text(
    content: str, role: str = "paragraph", t_start_s: float | None = None, t_end_s: float | None = None
) -> dict[str, Any]:
    """A text segment."""
    return {
        "kind": "text",
        "role": role,
        "text": content,
        "media_id": None,
        "href": None,
        "t_start_s": t_start_s,
        "t_end_s": t_end_s,
        "page": None,
        "origin": 0,
    }


def picture_segment(media_id: str | None) -> dict[str, Any]:
    """An image segment that names a medium."""
    return {
        "kind": "image",
        "role": "figure",
        "text": None,
        "media_id": media_id,
        "href": None,
        "t_start_s": None,
        "t_end_s": None,
        "page": None,
        "origin": 0,
    }


def video_segment(media_id: str, t_start_s: float, t_end_s: float) -> dict[str, Any]:
    """A stretch of a video."""
    return {
        "kind": "video",
        "role": "figure",
        "text": None,
        "media_id": media_id,
        "href": None,
        "t_start_s": t_start_s,
        "t_end_s": t_end_s,
        "page": None,
        "origin": 0,
    }


def document_row(segments: list[dict[str, Any]], uri: str = "page.html", **columns: Any) -> dict[str, Any]:
    """A documents row; its doc_id comes from `uri`."""
    row = {
        "doc_id": ids.document_id("test", uri, ""),
        "uri": uri,
        "collection": "test",
        "format": "html",
        "license": None,
        "title": None,
        "lang": None,
        "lang_prob": None,
        "segments": [{**segment, "origin": number} for number, segment in enumerate(segments)],
        "masks": [],
        "cluster_id": None,
        "cluster_size": None,
        "drop_reason": None,
    }
    return {**row, **columns}


def documents(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """A valid documents batch."""
    batch = pa.RecordBatch.from_pylist(rows, schema=document.SCHEMA)
    document.validate(batch)
    return batch


def picture(width: int = 64, height: int = 48, seed: int = 0) -> bytes:
    """A PNG of smooth noise: every seed another picture."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def media_row(data: bytes, **columns: Any) -> dict[str, Any]:
    """A media row of a PNG as ingest would write it, fields overridden by `columns`."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    row = {
        "media_id": ids.content_id(data),
        "pixels_id": ids.content_id(image.tobytes()),
        "parent_id": None,
        "kind": "image",
        "mime": "image/png",
        "bytes": data,
        "width": image.width,
        "height": image.height,
        "num_frames": 1,
        "duration_s": None,
        "t_s": None,
        "cuts_s": None,
        "perceptual_hash": None,
        "policy": "",
        "error": None,
    }
    return {**row, **columns}


def media_table(rows: list[dict[str, Any]]) -> pa.Table:
    """A valid media table."""
    table = pa.Table.from_pylist(rows, schema=media.SCHEMA)
    media.validate(table)
    return table


def video(
    num_frames: int = 30,
    frames_per_second: int = 10,
    codec: str = "libvpx",
    container: str = "webm",
    times_ms: list[int] | None = None,
    key_every: int = 12,
    grey_step: int = 3,
) -> bytes:
    """A 64 x 48 video: frame i is grey, level 20 + 3 i (see `frame_number`); its top-left corner is white."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=frames_per_second)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 64, 48, "yuv420p", key_every
        stream.bit_rate, stream.codec_context.time_base = 8_000_000, Fraction(1, 1000)
        for i in range(num_frames):
            pixels = np.full((48, 64, 3), 20 + grey_step * i, np.uint8)
            pixels[:8, :8] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = times_ms[i] if times_ms else 1000 * i // frames_per_second
            frame.time_base = Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return buffer.getvalue()


def frame_number(pixels: Image.Image) -> int:
    """Which frame of `video` a picture is, read from the grey level of its middle."""
    grey = np.asarray(pixels.convert("L"), dtype=float)
    height, width = grey.shape
    return round((grey[height // 3 : -height // 3, width // 3 : -width // 3].mean() - 20) / 3)


def folder(root: Path, files: dict[str, bytes | str]) -> Path:
    """A folder with these files, by relative path."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def write_step(
    path: Path, name: str, tables: dict[str, pa.Table], spec: Any, inputs: tuple[str, ...] = ()
) -> str:
    """Write a finished step of one partition, as the engine would, and return its directory."""
    files = [shard.write_table(str(path / shard.shard_name(table, 0)), tables[table]) for table in tables]
    shard.write_manifest(str(path), shard.Manifest(name, "1", spec, list(inputs), 0, 0, {}, {}, files))
    return str(path)
