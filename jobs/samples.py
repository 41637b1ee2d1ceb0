"""Documents as the report shows them: chosen for variety, with thumbnails, and with their masks painted.

Owns the choice and the drawing of single documents. The same run gives the same documents and the same
characters.
"""

import base64
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup
from PIL import Image

from datapipe.spec import InterleaveSpec
from datapipe.stages.interleave import departures
from jobs.run_directory import RunDirectory
from schemas import check

THUMBNAIL_SIDE, FRAME_SIDE = 360, 200
THUMBNAIL_QUALITY = 72
MAX_SEGMENTS, MAX_PICTURES, MAX_FRAMES = 26, 10, 8
MAX_CHARACTERS = 700
SNIPPET_CHARACTERS = 260
# What a shown document is good for, and how good one is for it by its counts (see `_counts`); 0 is useless.
WISHES: tuple[tuple[str, Callable[[dict[str, int]], int]], ...] = (
    ("a video with captions", lambda c: min(c["video"], 20) + min(c["transcript"], 20) if c["video"] else 0),
    ("several pictures in reading order", lambda c: c["image"] - c["dropped"] if 3 <= c["image"] <= 8 else 0),
    ("personal data masked in text", lambda c: 100 * c["text_reasons"] + min(c["text_masks"], 20)),
    ("pictures dropped, others kept", lambda c: min(c["dropped"], 4) + 4 * (c["image"] > c["dropped"] > 0)),
    ("lists, tables and code", lambda c: c["roles"] if c["roles"] > 2 else 0),
)
ACTIONS = {"no_loss": "stays as context, trains nothing", "drop": "leaves the stream"}


@dataclass(frozen=True)
class Medium:
    """A picture or frame as the page shows it; `source` is None where there is nothing to show."""

    source: str | None
    alt: str
    t_s: float | None = None


@dataclass(frozen=True)
class Part:
    """One piece of a shown document: text, picture, video, or a gap of `count` segments not shown."""

    kind: str
    role: str = ""
    html: str = ""
    media: tuple[Medium, ...] = ()
    masks: tuple[dict[str, Any], ...] = ()  # masks of the whole segment, or boxes on its picture
    note: str = ""
    dropped: str | None = None  # why the whole segment leaves the stream
    count: int = 0

    @property
    def without_loss(self) -> str | None:
        """Reason why the whole segment trains nothing, else None."""
        return next(
            (
                m["reason"]
                for m in self.masks
                if m["action"] == "no_loss" and m["box"] is None and m["start"] is None
            ),
            None,
        )

    @property
    def boxes(self) -> list[dict[str, Any]]:
        """Masks that cover a part of the picture."""
        return [m for m in self.masks if m["box"] is not None]

    @property
    def stretches(self) -> list[tuple[str, str]]:
        """Masks that cover a part of the video: text and action."""
        return [
            (f"{m['start'] / 1000:.1f} to {m['end'] / 1000:.1f} s: {m['reason']}", m["action"])
            for m in self.masks
            if m["start"] is not None and m["end"] is not None
        ]


@dataclass(frozen=True)
class Sample:
    """A document ready to be shown."""

    row: dict[str, Any]
    why: str
    parts: list[Part]
    reasons: list[tuple[str, str]] = field(default_factory=list)  # (reason, action) of its masks


def thumbnail(data: bytes | None, side: int = THUMBNAIL_SIDE) -> str | None:
    """Return a `data:` URI of a picture shrunk to `side` pixels, or None where the bytes are no picture."""
    if data is None:
        return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (2 * side, 2 * side))
            image.thumbnail((side, side), Image.Resampling.LANCZOS)
            layers = image.convert("RGBA")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    page = Image.new("RGB", layers.size, "white")
    page.paste(layers, mask=layers.getchannel("A"))
    return as_uri(page)


def as_uri(picture: Image.Image) -> str:
    """Return a picture as a `data:` URI."""
    sink = io.BytesIO()
    picture.save(sink, "WEBP", quality=THUMBNAIL_QUALITY, method=4)
    return "data:image/webp;base64," + base64.b64encode(sink.getvalue()).decode()


def choose(run: RunDirectory, step: str) -> list[tuple[str, str]]:
    """Return (doc_id, what it shows) of documents of a step that together show what a corpus holds.

    Each wish takes the best document not taken yet; equal ones are told apart by doc_id.
    """
    counts = [row for _, table in run.batches(step, "documents") for row in _counts(table)]
    taken: dict[str, str] = {}
    for why, worth in WISHES:
        rest = [c for c in counts if c["doc_id"] not in taken and worth(c) > 0]
        if rest:
            taken[min(rest, key=lambda c: (-worth(c), c["doc_id"]))["doc_id"]] = why
    if not taken and counts:
        taken[min(c["doc_id"] for c in counts)] = "a document"
    return list(taken.items())


def _counts(table: pa.Table) -> list[dict[str, Any]]:
    """Count what each document of a shard holds, without reading its texts."""
    kind, role = check.flattened(table["segments"], "kind"), check.flattened(table["segments"], "role")
    owner = _owners(table["segments"])
    mask_owner = _owners(table["masks"])
    begins = np.concatenate([[0], np.cumsum(pc.list_value_length(table["segments"]).to_numpy())])
    masked = begins[mask_owner] + check.flattened(table["masks"], "segment").to_numpy()
    masked_kind = np.asarray(kind.to_pylist(), object)[masked.astype(int)]
    reasons = check.flattened(table["masks"], "reason").to_pylist()
    drops = pc.equal(check.flattened(table["masks"], "action"), "drop").to_numpy(zero_copy_only=False)

    def per_document(which: Any, owners: np.ndarray) -> np.ndarray:
        return np.bincount(owners[np.asarray(which, bool)], minlength=table.num_rows)

    columns = {name: per_document(pc.equal(kind, name), owner) for name in ("image", "video")}
    columns["transcript"] = per_document(pc.equal(role, "transcript"), owner)
    columns["text_masks"] = per_document(masked_kind == "text", mask_owner)
    columns["dropped"] = per_document((masked_kind == "image") & drops, mask_owner)
    columns["text_reasons"] = _distinct(mask_owner, reasons, masked_kind == "text", table.num_rows)
    columns["roles"] = _distinct(owner, role.to_pylist(), np.ones(len(owner), bool), table.num_rows)
    return [
        {"doc_id": doc_id, **{name: int(column[i]) for name, column in columns.items()}}
        for i, doc_id in enumerate(table["doc_id"].to_pylist())
    ]


def _owners(column: pa.ChunkedArray) -> np.ndarray:
    return np.repeat(np.arange(len(column)), pc.list_value_length(column).to_numpy())


def _distinct(owner: np.ndarray, values: Iterable[str], keep: np.ndarray, num_rows: int) -> np.ndarray:
    pairs = {(o, v) for o, v, k in zip(owner.tolist(), values, keep.tolist(), strict=True) if k}
    return np.bincount(np.array([o for o, _ in pairs], int), minlength=num_rows)


def show(run: RunDirectory, step: str, doc_id: str, why: str) -> Sample | None:
    """Return a document of a step with its pictures and masks, or None where the step does not hold it."""
    row = run.find_row(step, "documents", doc_id)
    if row is None:
        return None
    masks: dict[int, list[dict[str, Any]]] = {}
    for mask in row["masks"]:
        masks.setdefault(mask["segment"], []).append(mask)
    manifest = run.manifest("interleave")
    leaving = departures(
        row["segments"], row["masks"], InterleaveSpec.model_validate(manifest.spec if manifest else {})
    )
    visible = _visible(row["segments"], masks)
    by_id, frames = run.find_media({row["segments"][i]["media_id"] for i in visible} - {None})
    parts, previous = [], -1
    for i in [*visible, len(row["segments"])]:
        if i - previous > 1:
            parts.append(Part("gap", count=i - previous - 1))
        if i < len(row["segments"]):
            part = _part(row["segments"], i, masks.get(i, []), by_id, frames)
            parts.append(replace(part, dropped=leaving[i]))
        previous = i
    reasons = sorted({(m["reason"], m["action"]) for m in row["masks"]})
    return Sample(row, why, parts, reasons)


def _visible(segments: list[dict[str, Any]], masks: dict[int, list[dict[str, Any]]]) -> list[int]:
    """Choose the segments to show: masked ones and pictures with those beside them, then from the top."""
    of_interest = [i for i, s in enumerate(segments) if i in masks or s["kind"] != "text"]
    pictures = [i for i in of_interest if segments[i]["kind"] != "text"][:MAX_PICTURES]
    texts = [i for i in of_interest if segments[i]["kind"] == "text"][:MAX_PICTURES]
    beside = [j for i in sorted(pictures + texts) for j in (i, i + 1, i - 1) if 0 <= j < len(segments)]
    allowed = [i for i in (*beside, *range(len(segments))) if segments[i]["kind"] == "text" or i in pictures]
    return sorted(list(dict.fromkeys(allowed))[:MAX_SEGMENTS])


def _part(
    segments: list[dict[str, Any]],
    i: int,
    masks: list[dict[str, Any]],
    by_id: dict[str, dict[str, Any]],
    frames: dict[str, list[dict[str, Any]]],
) -> Part:
    segment = segments[i]
    if segment["kind"] == "text":
        return Part("text", segment["role"], painted(segment["text"], masks))
    if segment["kind"] == "video":
        found = [f for f in frames.get(segment["media_id"], []) if _inside(f["t_s"], segment)]
        shown = found[:: -(-len(found) // MAX_FRAMES) or 1]
        strip = tuple(
            Medium(thumbnail(f["bytes"], FRAME_SIDE), f"video frame at {f['t_s']:.1f} seconds", f["t_s"])
            for f in shown
        )
        return Part(
            "video", segment["role"], media=strip, masks=tuple(masks), note=_stretch(segment, len(found))
        )
    medium = by_id.get(segment["media_id"])
    note = (
        f"{(segment['href'] or 'the file')[:80]} could not be had"
        if medium is None
        else (medium["error"] or f"{medium['width']} × {medium['height']} px")
    )
    source = None if medium is None else thumbnail(medium["bytes"])
    return Part(
        "image", segment["role"], media=(Medium(source, _alt(segments, i)),), masks=tuple(masks), note=note
    )


def _inside(t_s: float, segment: dict[str, Any]) -> bool:
    start, end = segment["t_start_s"], segment["t_end_s"]
    return (start is None or t_s >= start) and (end is None or t_s < end)


def _stretch(segment: dict[str, Any], num_frames: int) -> str:
    if segment["t_start_s"] is None or segment["t_end_s"] is None:
        return f"whole video, {num_frames} frames"
    return f"{segment['t_start_s']:.1f} to {segment['t_end_s']:.1f} s, {num_frames} frames"


def _alt(segments: list[dict[str, Any]], i: int) -> str:
    """What the document itself says of a picture: its caption or alternative text."""
    for j in (i + 1, i - 1, i + 2):
        if 0 <= j < len(segments) and segments[j]["role"] in ("caption", "alt"):
            return str(segments[j]["text"])[:200]
    return "picture without a caption"


def painted(text: str, masks: list[dict[str, Any]], limit: int = MAX_CHARACTERS) -> Markup:
    """Return a text as HTML with its masks marked; a long one is cut around its first mask.

    Where masks overlap, the text belongs to the one that starts first.
    """
    ranges = sorted(
        ((m["start"] or 0, len(text) if m["end"] is None else m["end"], m) for m in masks),
        key=lambda r: (r[0], r[1]),
    )
    low = max(0, ranges[0][0] - limit // 3) if ranges and ranges[0][1] > limit else 0
    high = min(len(text), low + limit)
    pieces, at = [Markup("… ") if low else Markup("")], low
    for start, end, mask in ranges:
        start, end = max(start, at), min(end, high)
        if start < end:
            pieces += [Markup.escape(text[at:start]), _mark(text[start:end], mask)]
            at = end
    pieces.append(Markup.escape(text[at:high]))
    return Markup("").join(pieces) + (" …" if high < len(text) else "")


def _mark(text: str, mask: dict[str, Any]) -> Markup:
    tooltip = f"{mask['reason']}: {mask['action']} ({ACTIONS[mask['action']]}), found by {mask['detector']}"
    return Markup('<mark class="{}" title="{}">{}<span class="reason">{}</span></mark>').format(
        mask["action"], tooltip, text, mask["reason"]
    )


def snippet(row: dict[str, Any] | None, segment: int | None = None) -> str:
    """Return the first characters of a document's text; of a segment, its own text or its neighbours'."""
    if row is None:
        return ""
    segments = row["segments"]
    if segment is None or not 0 <= segment < len(segments):
        near = range(len(segments))
    elif segments[segment]["text"]:
        near = range(segment, segment + 1)
    else:
        near = range(max(0, segment - 1), min(len(segments), segment + 2))
    text = " ".join(segments[i]["text"] for i in near if segments[i]["text"])
    return text if len(text) <= SNIPPET_CHARACTERS else text[:SNIPPET_CHARACTERS].rsplit(" ", 1)[0] + " …"
