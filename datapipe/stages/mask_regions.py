"""Mask regions: faces and lines of text in pictures and video frames become box masks.

Owns which detectors run and what a box does; where the boxes are, the detectors in `datapipe.detect` say. A
`drop` box is painted over when the picture is tokenised; the picture and its text stay. A box in a video
holds from its frame to the next. Pictures that leave anyway are not looked at.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from PIL import Image

from datapipe.decode import image
from datapipe.detect import faces, text_regions
from datapipe.errors import DetectorMissing
from datapipe.spec import MaskRegionsSpec
from schemas import document
from schemas import media as media_schema

VERSION = "1"

Box = tuple[float, float, float, float]
Mask = dict[str, Any]
Found = tuple[str, Box]  # reason and box

_DETECTORS: dict[str, tuple[str, Any]] = {"faces": ("face", faces), "text": ("text_region", text_regions)}


def check_available(spec: MaskRegionsSpec) -> None:
    """Check that the packages of the detectors asked for are installed.

    Raises:
        DetectorMissing: naming the command that installs the package.
    """
    for name in spec.detectors:
        if not _DETECTORS[name][1].available():
            raise DetectorMissing(
                f"mask_regions.detectors: {name!r} needs a package that is not installed: "
                f"{_DETECTORS[name][1].INSTALL}, or leave it out"
            )


def mask_regions(batch: pa.RecordBatch, media: pa.Table, spec: MaskRegionsSpec) -> pa.RecordBatch:
    """Return the documents with a box mask for each region; `media` holds the bytes of what they show."""
    by_id, frames = media_schema.index_by_id(media)
    found: dict[str, list[Found]] = {}  # by media_id of the picture or frame: each is looked at once
    column = []
    for row in batch.select(["segments", "masks"]).to_pylist():
        gone = {
            m["segment"]
            for m in row["masks"]
            if m["action"] == "drop" and m["start"] is None and not m["box"]
        }
        new = [
            mask
            for number, segment in enumerate(row["segments"])
            if segment["kind"] != "text" and number not in gone
            for mask in _masks(number, segment, by_id, frames, found, spec)
        ]
        there = {_key(mask) for mask in row["masks"]}
        column.append(row["masks"] + [mask for mask in new if _key(mask) not in there])
    index, field = document.SCHEMA.get_field_index("masks"), document.SCHEMA.field("masks")
    return batch.set_column(index, field, pa.array(column, type=field.type))


def _masks(
    number: int,
    segment: dict[str, Any],
    by_id: dict[str, dict[str, Any]],
    frames: dict[str, list[dict[str, Any]]],
    found: dict[str, list[Found]],
    spec: MaskRegionsSpec,
) -> list[Mask]:
    """Return the masks of a picture, or of the frames that a stretch of video shows."""
    medium = by_id.get(segment["media_id"] or "")
    if medium is None:
        return []
    if segment["kind"] == "image":
        return [_mask(number, None, None, hit, spec) for hit in _look(medium, found, spec)]
    start_s, end_s = segment["t_start_s"] or 0.0, segment["t_end_s"]
    masks = []
    for frame, following in itertools.pairwise([*frames.get(medium["media_id"], []), None]):
        assert frame is not None
        if start_s <= frame["t_s"] and (end_s is None or frame["t_s"] < end_s):
            until = None if following is None else round(following["t_s"] * 1000)
            hits = _look(frame, found, spec)
            masks += [_mask(number, round(frame["t_s"] * 1000), until, hit, spec) for hit in hits]
    return masks


def _look(medium: dict[str, Any], found: dict[str, list[Found]], spec: MaskRegionsSpec) -> list[Found]:
    if medium["media_id"] not in found:
        pixels = image.decode(medium["bytes"], medium["width"] * medium["height"]).pixels
        found[medium["media_id"]] = [
            (reason, box) for name in spec.detectors for reason, box in _regions(name, pixels, spec.max_side)
        ]
    return found[medium["media_id"]]


def _regions(name: str, pixels: Image.Image, max_side: int) -> list[Found]:
    reason, detector = _DETECTORS[name]
    find: Callable[[Image.Image], list[Box]] = detector.find
    scale = max_side / max(pixels.size)
    if scale < 1:
        pixels = pixels.resize((max(1, round(pixels.width * scale)), max(1, round(pixels.height * scale))))
    return [(reason, box) for box in find(pixels)]


def _mask(segment: int, start: int | None, end: int | None, hit: Found, spec: MaskRegionsSpec) -> Mask:
    reason, box = hit
    return {
        "segment": segment,
        "start": start,
        "end": end,
        "box": list(box),
        "reason": reason,
        "action": spec.action,
        "detector": f"mask_regions:{reason}",
    }


def _key(mask: Mask) -> tuple[Any, ...]:
    """Return what makes a mask; boxes are stored with 32 bits, so they are compared to six digits."""
    box = tuple(round(edge, 6) for edge in mask["box"] or ())
    return mask["segment"], mask["start"], mask["end"], mask["reason"], box
