"""What `dedupe_text` compares documents by: their signatures, and the keys under which similar ones meet.

Owns the tables `SIGNATURES` (a row a document) and `KEYS` (a row for each key of each document), how they are
made, and reading single rows of many signature tables. Decides about no pair.
"""

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.spec import DedupeTextSpec
from datapipe.stages import shingles
from schemas import check

Array = npt.NDArray[Any]

SIGNATURES = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("content", pa.binary(16)),  # hash of the words and the media in order; null: takes no part
        pa.field("num_words", pa.int64(), nullable=False),
        pa.field("num_shingles", pa.int32(), nullable=False),
        pa.field("num_media", pa.int32(), nullable=False),
        pa.field("num_missing", pa.int32(), nullable=False),  # media that could not be had
        pa.field("shingles", pa.list_(pa.uint32()), nullable=False),  # ascending, each once
        pa.field("media", pa.list_(pa.uint32()), nullable=False),  # hashes of media clusters, likewise
        pa.field(
            "minhash", pa.list_(pa.uint32()), nullable=False
        ),  # of the shingles; without text, of the media
    ]
)
KEYS = pa.schema(  # ascending
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),  # of the signature table
    ]
)
COPIES = 2**shingles.BAND_BITS - 1  # the band under which documents of equal content meet
DUPLICATE = "duplicate_"  # how the drop reasons of this stage start


def signatures(
    batch: pa.RecordBatch, spec: DedupeTextSpec, media_clusters: pa.Table | None = None
) -> pa.RecordBatch:
    """Return a row on `SIGNATURES` for each document.

    `media_clusters` (columns media_id, cluster_id) says which media show the same; one that is not in it
    shows what no other does. Text and media under a `drop` mask do not count.
    """
    texts, media, missing = _content(batch, media_clusters)
    hashes, text_ends = shingles.word_hashes(texts)
    offsets = text_ends[_offsets(batch["segments"])]
    sets, set_offsets = shingles.shingle_sets(hashes, offsets, spec.shingle_words)
    pictures, picture_offsets = shingles.unique_in_groups(
        np.repeat(np.arange(len(media)), [len(shown) for shown in media]),
        np.array([_hash32(name) for shown in media for name in shown], np.uint32),
        len(media),
    )
    signed = shingles.minhash(sets, set_offsets, spec.num_permutations, spec.seed)
    textless = np.diff(set_offsets) == 0
    if textless.any():
        by_media = shingles.minhash(pictures, picture_offsets, spec.num_permutations, spec.seed)
        signed[textless] = by_media[textless]
    columns = [
        batch["doc_id"],
        _contents(hashes, offsets, media, missing, batch["drop_reason"]),
        pa.array(np.diff(offsets), pa.int64()),
        pa.array(np.diff(set_offsets), pa.int32()),
        pa.array(np.diff(picture_offsets), pa.int32()),
        pa.array(missing, pa.int32()),
        _lists(sets, set_offsets),
        _lists(pictures, picture_offsets),
        _lists(signed.ravel(), np.arange(len(signed) + 1) * spec.num_permutations),
    ]
    return pa.record_batch(columns, schema=SIGNATURES)


def keys(signed: pa.Table, spec: DedupeTextSpec, num_buckets: int) -> list[pa.RecordBatch]:
    """Return the keys of a signature table (`KEYS`), a batch for each bucket.

    Equal content is an equal key, and so is an equal LSH band.
    """
    rows = np.flatnonzero(pc.is_valid(signed["content"]).to_numpy())
    chosen = signed.select(["content", "minhash"]).take(pa.array(rows)).combine_chunks()
    content = np.frombuffer(b"".join(chosen["content"].to_pylist()), "<u8").reshape(-1, 2)[:, 0]
    minhash = _flat(chosen["minhash"]).reshape(len(rows), spec.num_permutations)
    bands = shingles.band_keys(minhash, spec.num_bands)
    key = np.column_stack([shingles.numbered(content, COPIES), bands]).ravel()
    row = np.repeat(rows, spec.num_bands + 1).astype(np.uint32)
    order = np.argsort(key)
    key, row = key[order], row[order]
    # Buckets are equal parts of the range of keys, told apart by their upper 24 bits.
    limits = [-(-(number << 24) // num_buckets) << 40 for number in range(1, num_buckets)]
    inner = np.searchsorted(key, np.array(limits, np.uint64))
    bounds = itertools.pairwise([0, *inner.tolist(), len(key)])
    return [pa.record_batch([key[start:end], row[start:end]], schema=KEYS) for start, end in bounds]


class SignatureTables:
    """The signature tables of a corpus, read by reference; no row is touched but those asked for.

    A reference is the table's number in the upper 32 bits and the row's in the lower.
    """

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self.tables = tables  # may open one when it is asked for

    def column(self, name: str, references: Array) -> pa.Array:
        """Return one value for each reference."""
        values, place = self._values(name, references)
        return values.take(pa.array(place))

    def numbers(self, name: str, references: Array) -> Array:
        """Return one number for each reference, as int64."""
        return self.column(name, references).to_numpy().astype(np.int64)

    def lists(self, name: str, references: Array) -> tuple[Array, Array, Array]:
        """Return the lists of these references: all values, and where each list starts and its length."""
        values, place = self._values(name, references)
        offsets = values.offsets.to_numpy().astype(np.int64)
        return values.values.to_numpy(), offsets[:-1][place], np.diff(offsets)[place]

    def _values(self, name: str, references: Array) -> tuple[pa.Array, Array]:
        """Return the values of these references in ascending order, and the place of each in them."""
        ascending, place = np.unique(references, return_inverse=True)
        groups, rows = ascending >> np.uint64(32), (ascending & np.uint64(2**32 - 1)).astype(np.int64)
        parts = []
        for group in np.unique(groups).tolist():
            parts += _take(self.tables[group][name], rows[groups == group])
        return pa.concat_arrays(parts) if parts else pa.array([], SIGNATURES.field(name).type), place


# ---- what a document shows


def _content(
    batch: pa.RecordBatch, media_clusters: pa.Table | None
) -> tuple[list[str], list[list[str]], Array]:
    """Return the text of every segment, and for every document its media and how many it lacks."""
    texts = pc.fill_null(check.flattened(batch["segments"], "text"), "").to_pylist()
    media_ids = check.flattened(batch["segments"], "media_id").to_pylist()
    is_medium = pc.not_equal(check.flattened(batch["segments"], "kind"), "text").to_numpy(
        zero_copy_only=False
    )
    offsets = _offsets(batch["segments"])
    for number in _apply_masks(batch, texts, offsets):
        is_medium = is_medium.copy() if not is_medium.flags.writeable else is_medium
        is_medium[number], media_ids[number] = False, None
    same = _cluster_of(media_clusters, media_ids)
    media = [
        [same.get(name, name) for name in media_ids[start:end] if name is not None]
        for start, end in itertools.pairwise(offsets)
    ]
    lacking = is_medium & np.array([name is None for name in media_ids], bool)
    num_lacking = np.diff(np.concatenate([[0], np.cumsum(lacking)])[offsets])
    return texts, media, num_lacking


def _apply_masks(batch: pa.RecordBatch, texts: list[str], offsets: Array) -> list[int]:
    """Blank what a `drop` mask covers in the texts; return the numbers of the media that one covers."""
    if len(batch["masks"].flatten()) == 0:
        return []
    media = []
    for row, masks in enumerate(batch["masks"].to_pylist()):
        for mask in masks:
            if mask["action"] != "drop" or mask["box"] is not None:
                continue
            number = int(offsets[row]) + mask["segment"]
            text = texts[number]
            whole = mask["start"] is None and mask["end"] is None
            start = mask["start"] or 0
            end = len(text) if mask["end"] is None else min(mask["end"], len(text))
            texts[number] = text[:start] + "\n" * max(end - start, 0) + text[end:]
            media += [number] if whole else []
    return media


def _cluster_of(media_clusters: pa.Table | None, media_ids: list[str | None]) -> dict[str, str]:
    if media_clusters is None or media_clusters.num_rows == 0:
        return {}
    wanted = pc.is_in(media_clusters["media_id"], value_set=pa.array(media_ids, pa.string()))
    found = media_clusters.filter(wanted)
    return dict(zip(found["media_id"].to_pylist(), found["cluster_id"].to_pylist(), strict=True))


def _contents(
    hashes: Array, offsets: Array, media: list[list[str]], missing: Array, drop_reason: pa.Array
) -> pa.Array:
    """Return the hash of each document's words and media; null where it takes no part."""
    contents = shingles.sequence_hashes(hashes, offsets)
    for row in np.flatnonzero([bool(shown) for shown in media] | (missing > 0)).tolist():
        shown = "\0".join([*media[row], str(missing[row])]).encode()
        contents[row] += np.frombuffer(hashlib.blake2b(shown, digest_size=16).digest(), "<u8")
    takes_part = (np.diff(offsets) > 0) | np.array([bool(shown) for shown in media], bool)
    takes_part &= pc.fill_null(pc.starts_with(drop_reason, DUPLICATE), True).to_numpy(zero_copy_only=False)
    data = contents.astype("<u8").tobytes()
    each = [data[start : start + 16] for start in range(0, len(data), 16)]
    return pa.array(each, pa.binary(16), mask=~takes_part)


def _hash32(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


# ---- Arrow and numpy


def _offsets(column: pa.Array) -> Array:
    """Return the offsets of a list column, from 0 also where it is a slice."""
    return np.concatenate([[0], np.cumsum(pc.list_value_length(column).to_numpy())]).astype(np.int64)


def _lists(flat: Array, offsets: Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat))


def _take(column: pa.ChunkedArray, rows: Array) -> list[pa.Array]:
    """Return the values at ascending rows, in parts.

    `ChunkedArray.take` joins all chunks of a list column first, so there each chunk gives its own rows.
    """
    if not pa.types.is_list(column.type):
        return column.take(pa.array(rows)).chunks
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    limits = np.searchsorted(rows, np.concatenate([[0], ends]))
    return [
        chunk.take(pa.array(rows[start:stop] - (end - len(chunk))))
        for chunk, end, start, stop in zip(column.chunks, ends, limits[:-1], limits[1:], strict=True)
        if start < stop
    ]


def _flat(column: pa.ChunkedArray) -> Array:
    return pc.list_flatten(column).to_numpy()
