"""Contamination: what a corpus shares with benchmarks becomes masks, by runs of words and by pictures.

Owns the index of a benchmark's content (`index`, map over its documents), and the masks and drop reason
`contamination` (`mark`, map over the corpus). Reads no benchmark formats: they come as documents, like
everything else.

Text: the words of a segment, case folded, without punctuation. Any run of `ngram_words` words that a
benchmark holds is a hit; so is a benchmark's whole text where it is shorter. Overlapping hits are one mask.
Pictures: a perceptual hash within `max_hash_distance` bits of a benchmark picture's; of a video, the stretch
whose frames show one.

Source: Brown et al., Language Models are Few-Shot Learners (arXiv 2005.14165), appendix C.
"""

import functools
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.spec import ContaminationSpec
from datapipe.stages.words import word_spans
from schemas import document

VERSION = "1"
REASON = "contamination"

INDEX = pa.schema(
    [
        pa.field("num_words", pa.int32(), nullable=False),  # length of the run of words; 0 for a picture
        pa.field("hash", pa.uint64(), nullable=False),
    ]
)
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it loses no bit

Mask = dict[str, Any]
Hashes = npt.NDArray[np.uint64]
Known = dict[int, Hashes]  # sorted hashes by length of the run; 0 holds pictures


def index(batch: pa.RecordBatch, media: pa.Table, spec: ContaminationSpec) -> pa.RecordBatch:
    """Return the runs of words and the pictures of benchmark documents (`INDEX`), each once, in order."""
    found: dict[int, list[Hashes]] = {}
    for row in batch.select(["segments"]).to_pylist():
        for segment in row["segments"]:
            if segment["kind"] == "text":
                words = _word_hashes(segment["text"], word_spans(segment["text"]))
                length = min(len(words), spec.ngram_words)
                if length >= spec.min_ngram_words:
                    found.setdefault(length, []).append(_runs(words, length))
    shown = pc.unique(pc.struct_field(batch["segments"].flatten(), "media_id")).drop_null()
    is_shown = pc.or_(pc.is_in(media["media_id"], shown), pc.is_in(media["parent_id"], shown))
    pictures = media.filter(is_shown)["perceptual_hash"].drop_null().to_numpy()
    found[0] = [pictures.astype(np.uint64)]
    hashes = {length: np.unique(np.concatenate(parts)) for length, parts in sorted(found.items())}
    lengths = np.concatenate([np.full(len(part), length, np.int32) for length, part in hashes.items()])
    return pa.record_batch([pa.array(lengths), pa.array(np.concatenate(list(hashes.values())))], schema=INDEX)


def joined(parts: pa.Table) -> pa.Table:
    """Return the index of all benchmarks from the indexes of their parts."""
    return (
        parts.group_by(["num_words", "hash"])
        .aggregate([])
        .cast(INDEX)
        .sort_by([("num_words", "ascending"), ("hash", "ascending")])
    )


def mark(batch: pa.RecordBatch, media: pa.Table, index: pa.Table, spec: ContaminationSpec) -> pa.RecordBatch:
    """Return the documents with a mask on each hit, and the drop reason where they consist of hits."""
    known = {
        length: np.sort(index.filter(pc.equal(index["num_words"], length))["hash"].to_numpy())
        for length in pc.unique(index["num_words"]).to_pylist()
    }
    pictures = _contaminated_media(media, known.get(0, np.array([], np.uint64)), spec)
    rows = [_marked(row, known, pictures, spec) for row in batch.to_pylist()]
    return pa.RecordBatch.from_pylist(rows, schema=document.SCHEMA)


def _marked(
    row: dict[str, Any], known: Known, pictures: dict[str, list[float]], spec: ContaminationSpec
) -> dict[str, Any]:
    masks: list[Mask] = []
    num_words = num_hit = 0
    for number, segment in enumerate(row["segments"]):
        if segment["kind"] == "text":
            spans = word_spans(segment["text"])
            is_hit = _hit_words(_word_hashes(segment["text"], spans), known)
            num_words, num_hit = num_words + len(spans), num_hit + int(is_hit.sum())
            masks += [_mask(number, start, end, "ngram", spec) for start, end in _stretches(spans, is_hit)]
        elif _shows(segment, pictures.get(segment["media_id"])):
            masks.append(_mask(number, None, None, "perceptual_hash", spec))
    new = [mask for mask in masks if mask not in row["masks"]]
    is_dropped = num_hit > spec.max_document_frac * num_words
    reason = row["drop_reason"] or (REASON if is_dropped else None)
    return {**row, "masks": row["masks"] + new, "drop_reason": reason}


def _mask(segment: int, start: int | None, end: int | None, detector: str, spec: ContaminationSpec) -> Mask:
    return {
        "segment": segment,
        "start": start,
        "end": end,
        "box": None,
        "reason": REASON,
        "action": spec.action,
        "detector": detector,
    }


# ---- runs of words


@functools.lru_cache(maxsize=1 << 16)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _word_hashes(text: str, spans: list[tuple[int, int]]) -> Hashes:
    return np.array([_word_hash(text[start:end].casefold()) for start, end in spans], dtype=np.uint64)


def _runs(words: Hashes, length: int) -> Hashes:
    """Return the hash of every run of `length` words: a polynomial in `_BASE` modulo 2^64."""
    total = np.zeros(max(0, len(words) - length + 1), np.uint64)
    for place in range(length):
        total = total * _BASE + words[place : place + len(total)]
    return total


def _hit_words(words: Hashes, known: Known) -> npt.NDArray[np.bool_]:
    """Return which words stand in a run that a benchmark holds."""
    edges = np.zeros(len(words) + 1, np.int64)
    for length, hashes in known.items():
        if 0 < length <= len(words):
            starts = np.flatnonzero(np.isin(_runs(words, length), hashes))
            np.add.at(edges, starts, 1)
            np.add.at(edges, starts + length, -1)
    return np.cumsum(edges)[:-1] > 0


def _stretches(spans: list[tuple[int, int]], is_hit: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the characters from the first to the last word of each unbroken row of hits."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_hit, [False]])))
    return [(spans[first][0], spans[end - 1][1]) for first, end in zip(edges[::2], edges[1::2], strict=True)]


# ---- pictures


def _contaminated_media(media: pa.Table, known: Hashes, spec: ContaminationSpec) -> dict[str, list[float]]:
    """Return the pictures near one of a benchmark; of a video, the times of such frames in seconds."""
    found: dict[str, list[float]] = {}
    if len(known) == 0:
        return found
    for row in media.select(["media_id", "parent_id", "t_s", "perceptual_hash"]).to_pylist():
        if row["perceptual_hash"] is not None:
            distances = np.bitwise_count(known ^ np.uint64(row["perceptual_hash"]))
            if distances.min() <= spec.max_hash_distance:
                times = found.setdefault(row["parent_id"] or row["media_id"], [])
                times += [] if row["t_s"] is None else [row["t_s"]]
    return found


def _shows(segment: dict[str, Any], times_s: list[float] | None) -> bool:
    """Return whether a segment shows a contaminated picture, or one of these frames of its video."""
    if times_s is None or segment["kind"] == "image":
        return times_s is not None
    start_s = segment["t_start_s"] or 0.0
    end_s = float("inf") if segment["t_end_s"] is None else segment["t_end_s"]
    return any(start_s <= time_s < end_s for time_s in times_s)
