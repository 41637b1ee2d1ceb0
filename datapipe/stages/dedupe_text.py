"""Dedupe by text: exact copies and MinHash near-duplicates leave, one representative of each cluster stays.

Owns signatures, the clusters and the drop reasons `duplicate_exact` and `duplicate_near`. Compares whole
documents; it does not look at pixels and removes no repeated paragraphs.

Three parts: `signatures` (map), `cluster` (reduce over all signatures), `mark` (map). The result depends on
the set of documents only: neither the order of rows nor the split into partitions changes it.

Rules:
- Exact: the same text up to case, white space and compatibility characters (NFKC).
- Near: some LSH band is equal and the signatures agree in at least `min_similarity` of their positions.
  Documents shorter than a shingle have no signature and are never near-duplicates.
- For both, documents of fewer than `min_words_without_media` words must also show the same media in the same
  order. Media that could not be had do not count.
- Clusters are the connected components of these pairs, so two members may be linked through a third only.
- The representative is the member with the longest text, then the most media, then the smallest doc_id. Among
  exact copies all but the first by that key are `exact`; the other members are `near`.

Source: Broder, On the resemblance and containment of documents (1997); Leskovec, Rajaraman and Ullman, Mining
of Massive Datasets, section 3.4 (banding).
"""

import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rensa import RMinHash

from datapipe.spec import DedupeTextSpec
from datapipe.stages.clean import words
from schemas import document, ids

VERSION = "2"

SIGNATURES = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("text_id", pa.string(), nullable=False),  # hash of the normalised text
        pa.field("media_id", pa.string(), nullable=False),  # hash of the media ids in order
        pa.field("num_words", pa.int32(), nullable=False),
        pa.field("num_characters", pa.int64(), nullable=False),
        pa.field("num_media", pa.int32(), nullable=False),
        pa.field("minhash", pa.list_(pa.uint32())),  # null where the text is shorter than a shingle
    ]
)
CLUSTERS = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("cluster_id", pa.string()),  # doc_id of the representative; null for one alone
        pa.field("cluster_size", pa.int32(), nullable=False),
        pa.field("duplicate", pa.string()),  # exact, near; null for the document that stays
    ]
)

Array = npt.NDArray[Any]


def signatures(batch: pa.RecordBatch, spec: DedupeTextSpec) -> pa.RecordBatch:
    """Return a row on `SIGNATURES` for each document: the hashes and counts that `cluster` compares."""
    rows, shingles = [], []
    for row in batch.select(["doc_id", "segments"]).to_pylist():
        text = _normalised("\n".join(s["text"] for s in row["segments"] if s["kind"] == "text"))
        found = words(text)
        shown = [s["media_id"] for s in row["segments"] if s["media_id"] is not None]
        shingles.append(_shingles(found, spec.shingle_words))
        rows.append(
            {
                "doc_id": row["doc_id"],
                "text_id": ids.content_id(text.encode()),
                "media_id": ids.content_id("\0".join(shown).encode()),
                "num_words": len(found),
                "num_characters": len(text),
                "num_media": len(shown),
            }
        )
    digests = RMinHash.digests_from_token_sets(shingles, spec.num_permutations, spec.seed)
    for row, tokens, digest in zip(rows, shingles, digests, strict=True):
        row["minhash"] = digest if tokens else None
    return pa.RecordBatch.from_pylist(rows, schema=SIGNATURES)


def cluster(signatures: pa.Table, spec: DedupeTextSpec) -> pa.Table:
    """Return for every document its cluster and whether it is a duplicate (`CLUSTERS`), ordered by doc_id.

    Memory: the signatures, 4 bytes a permutation and document, and one copy of a band at a time.
    """
    table = signatures.sort_by(
        [("num_characters", "descending"), ("num_media", "descending"), ("doc_id", "ascending")]
    )
    if table.num_rows == 0:
        return CLUSTERS.empty_table()
    table = table.combine_chunks()
    doc_ids = table["doc_id"].to_pylist()
    assert len(set(doc_ids)) == len(doc_ids), "doc_id names two documents"
    # Rows are in order of the representative's key from here on: the smallest row number of a cluster is its
    # representative, and a root in the forest of `_Clusters` is always the smallest.
    clusters = _Clusters(len(doc_ids))
    first_copy = _first_copies(table, spec)
    for row, first in enumerate(first_copy):
        clusters.join(row, first)
    for left, right in _near_pairs(table, first_copy, spec):
        clusters.join(left, right)
    roots = [clusters.root(row) for row in range(len(doc_ids))]
    sizes = np.bincount(roots, minlength=len(roots))
    rows = [
        {
            "doc_id": doc_ids[row],
            "cluster_id": doc_ids[root] if sizes[root] > 1 else None,
            "cluster_size": int(sizes[root]),
            "duplicate": _kind(row, root, first_copy[row]),
        }
        for row, root in enumerate(roots)
    ]
    return pa.Table.from_pylist(rows, schema=CLUSTERS).sort_by("doc_id")


def mark(batch: pa.RecordBatch, clusters: pa.Table, spec: DedupeTextSpec) -> pa.RecordBatch:
    """Return the documents with their cluster and, for duplicates, `drop_reason`, from `cluster`'s table.

    The spec is not read: what it asks for is decided in `cluster`.
    """
    mine = clusters.filter(pc.is_in(clusters["doc_id"], value_set=batch["doc_id"]))
    by_id = {row["doc_id"]: row for row in mine.to_pylist()}
    found = [by_id[doc_id] for doc_id in batch["doc_id"].to_pylist()]
    reasons = [
        old or (f"duplicate_{row['duplicate']}" if row["duplicate"] else None)
        for old, row in zip(batch["drop_reason"].to_pylist(), found, strict=True)
    ]
    columns = {name: batch[name] for name in document.SCHEMA.names}
    columns["cluster_id"] = pa.array([row["cluster_id"] for row in found], pa.string())
    columns["cluster_size"] = pa.array([row["cluster_size"] for row in found], pa.int32())
    columns["drop_reason"] = pa.array(reasons, pa.string())
    return pa.record_batch(list(columns.values()), schema=document.SCHEMA)


# ---- one document


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _shingles(found: list[str], size: int) -> list[str]:
    return [" ".join(found[start : start + size]) for start in range(len(found) - size + 1)]


# ---- all documents, as rows in the order of the representative's key


class _Clusters:
    """Connected components of rows (union-find); the root of a component is its smallest row."""

    def __init__(self, num_rows: int) -> None:
        self.parents = list(range(num_rows))

    def root(self, row: int) -> int:
        while self.parents[row] != row:
            self.parents[row] = self.parents[self.parents[row]]
            row = self.parents[row]
        return row

    def join(self, left: int, right: int) -> None:
        left, right = self.root(left), self.root(right)
        self.parents[max(left, right)] = min(left, right)


def _first_copies(table: pa.Table, spec: DedupeTextSpec) -> list[int]:
    """Return for each row the first row with the same text (and, for short texts, the same media)."""
    first: dict[tuple[str, str], int] = {}
    keys = zip(*(table[name].to_pylist() for name in ("text_id", "media_id", "num_words")), strict=True)
    return [
        first.setdefault((text_id, media_id if num_words < spec.min_words_without_media else ""), row)
        for row, (text_id, media_id, num_words) in enumerate(keys)
    ]


def _near_pairs(table: pa.Table, first_copy: list[int], spec: DedupeTextSpec) -> list[tuple[int, int]]:
    """Return near-duplicate pairs of rows, enough to connect each cluster; of exact copies only the first."""
    has_signature = pc.is_valid(table["minhash"]).to_numpy()
    rows = np.flatnonzero(has_signature & (np.asarray(first_copy) == np.arange(table.num_rows)))
    chosen = table["minhash"].combine_chunks().take(pa.array(rows))
    minhash = chosen.flatten().to_numpy().reshape(len(rows), spec.num_permutations)
    is_long = table["num_words"].to_numpy()[rows] >= spec.min_words_without_media
    media = np.unique(table["media_id"].to_numpy()[rows], return_inverse=True)[1]
    width = spec.num_permutations // spec.num_bands
    pairs: list[tuple[int, int]] = []
    for start in range(0, spec.num_permutations, width):
        for bucket in _buckets(minhash[:, start : start + width]):
            pairs += _bucket_pairs(bucket, minhash, is_long, media, spec.min_similarity)
    return [(int(rows[left]), int(rows[right])) for left, right in pairs]


def _buckets(band: Array) -> list[Array]:
    """Return the groups of two or more rows whose band is the same."""
    if len(band) < 2:
        return []
    key = np.ascontiguousarray(band).view(np.dtype((np.void, band.shape[1] * band.itemsize))).ravel()
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(key[order][1:] != key[order][:-1]) + 1
    return [bucket for bucket in np.split(order, edges) if len(bucket) > 1]


def _bucket_pairs(
    bucket: Array, minhash: Array, is_long: Array, media: Array, min_similarity: float
) -> list[tuple[int, int]]:
    """Return near-duplicate pairs of a bucket that connect its components.

    Each row is compared with those that no earlier one reached, so a bucket of one cluster costs one pass.
    """
    pairs = []
    waiting = bucket
    reached: list[int] = []
    while len(waiting):
        if not reached:
            reached, waiting = [int(waiting[0])], waiting[1:]
        row = reached.pop()
        is_near = (minhash[waiting] == minhash[row]).mean(axis=1) >= min_similarity
        is_near &= (is_long[waiting] & is_long[row]) | (media[waiting] == media[row])
        near = waiting[is_near].tolist()
        pairs += [(row, other) for other in near]
        reached += near
        waiting = waiting[~is_near]
    return pairs


def _kind(row: int, root: int, first_copy: int) -> str | None:
    if first_copy != row:
        return "exact"
    return None if row == root else "near"
