"""Test inputs made by code: document rows, pictures, tables. Nothing here is read from a corpus."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from schemas import document, ids, media


def text(content: str, role: str = "paragraph", t_start_s: float | None = None,
         t_end_s: float | None = None) -> dict[str, Any]:
    """A text segment."""
    return {"kind": "text", "role": role, "text": content, "media_id": None, "t_start_s": t_start_s,
            "t_end_s": t_end_s}


def picture_segment(media_id: str | None) -> dict[str, Any]:
    """An image segment that names a medium."""
    return {"kind": "image", "role": "figure", "text": None, "media_id": media_id, "t_start_s": None, "t_end_s": None}


def video_segment(media_id: str, t_start_s: float, t_end_s: float) -> dict[str, Any]:
    """A stretch of a video."""
    return {"kind": "video", "role": "figure", "text": None, "media_id": media_id, "t_start_s": t_start_s,
            "t_end_s": t_end_s}


def document_row(segments: list[dict[str, Any]], uri: str = "page.html", **columns: Any) -> dict[str, Any]:
    """A documents row; its doc_id comes from `uri`."""
    row = {"doc_id": ids.document_id("test", uri, ""), "uri": uri, "collection": "test", "format": "html",
           "license": None, "title": None, "lang": None, "lang_prob": None, "segments": segments, "masks": [],
           "cluster_id": None, "drop_reason": None}
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
    row = {"media_id": ids.content_id(data), "pixels_id": ids.content_id(image.tobytes()), "parent_id": None,
           "kind": "image", "mime": "image/png", "bytes": data, "width": image.width, "height": image.height,
           "num_frames": 1, "duration_s": None, "t_s": None, "perceptual_hash": None, "policy": "", "error": None}
    return {**row, **columns}


def media_table(rows: list[dict[str, Any]]) -> pa.Table:
    """A valid media table."""
    table = pa.Table.from_pylist(rows, schema=media.SCHEMA)
    media.validate(table)
    return table
