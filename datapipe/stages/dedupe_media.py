"""Dedupe media: pictures and videos that are copies of one form a cluster.

Owns the nodes and the clusters. Who is compared with whom, `media_candidates` says; whether two are copies,
`datapipe.decode.compare` and `datapipe.decode.compare_video` say from their pixels. Drops nothing: documents
are compared by these clusters in `dedupe_text`, and pictures that many documents show are found by them in
`mask_media`. Sampled frames form no clusters of their own.

In the order in which they run: `hashes` (map over media), `nodes`, `frames` and their candidates (reduce),
`same` (map over pairs), `leaders` (reduce), `same` once more, `cluster` (reduce). The result depends on the
set of media only: neither the order of rows nor their split into partitions changes it.

Rules:
- Media with equal canonical pixels are copies; of videos, with equal sampled frames and the same length. They
  are one node, and so is each other usable medium.
- Nodes are in order of preference: most pixels, then longest, then most bytes, then the smallest media_id.
  The first of a cluster is its representative.
- A node joins the first node before it that leads a cluster and is known to be a copy. The first node of each
  component of copies is compared with all of it, so no chain of small steps joins what is not alike.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.decode import compare, compare_video
from datapipe.decode import image as images
from datapipe.errors import DecodeError
from datapipe.spec import DedupeMediaSpec
from datapipe.stages import media_candidates

VERSION = "2"
MAX_PIXELS = 178_956_970  # the limit was kept when the media were ingested
KEPT_PICTURES, KEPT_CLIPS = 64, 4  # decoded at a time
_PLACE = [
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("batch", pa.int32(), nullable=False),
    pa.field("row", pa.int32(), nullable=False),
]
HASHES = pa.schema(
    [
        pa.field("media_id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("content", pa.string(), nullable=False),  # equal for exact copies; of frames, the video's id
        pa.field("perceptual_hash", pa.uint64()),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("num_bytes", pa.int64(), nullable=False),
        pa.field("time_s", pa.float64()),  # of a video its length, of a frame when it is shown
        pa.field("cuts_s", pa.list_(pa.float64())),
        *_PLACE,
    ]
)
NODES = HASHES
FRAMES = pa.schema(
    [
        pa.field("node", pa.int32(), nullable=False),
        pa.field("time_s", pa.float64(), nullable=False),
        pa.field("perceptual_hash", pa.uint64()),
        *_PLACE,
    ]
)
SAME = pa.schema(
    [
        pa.field("earlier", pa.int32(), nullable=False),
        pa.field("later", pa.int32(), nullable=False),
        pa.field("is_same", pa.bool_(), nullable=False),
    ]
)
CLUSTERS = pa.schema(
    [
        pa.field("media_id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("cluster_id", pa.string(), nullable=False),  # media_id of the representative
        pa.field("cluster_size", pa.int32(), nullable=False),  # media in it, at least 2
    ]
)

Load = Callable[[int, int, int], bytes]  # partition, batch and row of a medium -> its bytes
Array = npt.NDArray[Any]


# ---- map over media


def hashes(media: pa.RecordBatch, partition: int, batch: int) -> pa.RecordBatch:
    """Return a row on `HASHES` for each medium that can be used, and where it lies."""
    rows = np.arange(media.num_rows)
    is_frame = pc.equal(media["kind"], "frame")
    length = pc.cast(pc.round(pc.coalesce(media["duration_s"], 0.0)), pa.int64())
    exact = pc.binary_join_element_wise(media["kind"], media["pixels_id"], pc.cast(length, pa.string()), ":")
    columns = {
        "media_id": media["media_id"],
        "kind": media["kind"],
        "content": pc.if_else(is_frame, media["parent_id"], exact),
        "perceptual_hash": media["perceptual_hash"],
        "width": media["width"],
        "height": media["height"],
        "num_bytes": pc.cast(pc.binary_length(media["bytes"]), pa.int64()),
        "time_s": pc.if_else(is_frame, media["t_s"], media["duration_s"]),
        "cuts_s": media["cuts_s"],
        "partition": pa.array(np.full(len(rows), partition, np.int32)),
        "batch": pa.array(np.full(len(rows), batch, np.int32)),
        "row": pa.array(rows.astype(np.int32)),
    }
    table = pa.table([columns[name] for name in HASHES.names], HASHES.names)
    usable = pc.and_(pc.is_null(media["error"]), pc.is_valid(media["pixels_id"]))
    return _one_batch(table.filter(usable), HASHES)


# ---- reduce


def nodes(hashes: pa.Table) -> pa.Table:
    """Return one row for each different content, in order of preference, pictures before videos."""
    table = hashes.filter(pc.not_equal(hashes["kind"], "frame"))
    area = pc.multiply(pc.cast(table["width"], pa.int64()), table["height"])
    orders = [("kind", "ascending"), ("area", "descending"), ("time_s", "descending")]
    orders += [
        ("num_bytes", "descending"),
        ("media_id", "ascending"),
        *((p.name, "ascending") for p in _PLACE),
    ]
    table = table.append_column("area", area).sort_by(orders).drop_columns(["area"])
    return table.take(pa.array(_first_of_each(table["content"])))


def frames(hashes: pa.Table, nodes: pa.Table) -> pa.Table:
    """Return the frames of the videos among the nodes (`FRAMES`), by node and time."""
    table = hashes.filter(pc.equal(hashes["kind"], "frame"))
    number = pc.index_in(table["content"], value_set=nodes["media_id"].combine_chunks())
    table = table.append_column("node", number).filter(pc.is_valid(number))
    table = table.sort_by([(name, "ascending") for name in ("node", "time_s", "partition", "batch", "row")])
    # A video that lies in several partitions has its frames in each: those beside the node's row count.
    home = nodes["partition"].combine_chunks().take(table["node"].combine_chunks())
    return table.filter(pc.equal(table["partition"], home)).select(FRAMES.names).cast(FRAMES)


def leaders(nodes: pa.Table, frames: pa.Table, same: pa.Table, spec: DedupeMediaSpec) -> pa.Table:
    """Return the pairs (`PAIRS`) of members and the first node of their component not yet compared."""
    roots = _components(nodes.num_rows, same)
    known = set(_pairs_of(same))
    pairs = [
        (int(root), node)
        for node, root in enumerate(roots)
        if root != node and (int(root), node) not in known
    ]
    return media_candidates.with_offsets(pairs, nodes, frames, spec)


def cluster(hashes: pa.Table, nodes: pa.Table, same: pa.Table) -> pa.Table:
    """Return the clusters of two and more media (`CLUSTERS`), ordered by media_id.

    Args:
        same: what `same` found, in both rounds.
    """
    leader = _stars(nodes.num_rows, same)
    media = hashes.filter(pc.not_equal(hashes["kind"], "frame"))
    media = media.take(pa.array(_first_of_each(media["media_id"])))
    node = pc.index_in(media["content"], value_set=nodes["content"].combine_chunks()).to_numpy()
    leading = leader[node] if len(node) else node.astype(np.int64)
    sizes = np.bincount(leading, minlength=nodes.num_rows)[leading]
    columns = [
        media["media_id"],
        media["kind"],
        nodes["media_id"].combine_chunks().take(pa.array(leading)),
        pa.array(sizes.astype(np.int32)),
    ]
    table = pa.table(columns, CLUSTERS.names).filter(pa.array(sizes > 1))
    return table.sort_by("media_id").cast(CLUSTERS)


def _first_of_each(column: pa.ChunkedArray) -> Array:
    """Return the places, in order, at which a value stands for the first time."""
    codes = column.combine_chunks().dictionary_encode().indices.to_numpy()
    return np.sort(np.unique(codes, return_index=True)[1])


# ---- map over pairs


def same(pairs: pa.Table, nodes: pa.Table, frames: pa.Table, load: Load, spec: DedupeMediaSpec) -> pa.Table:
    """Return which pairs are copies (`SAME`), from the pixels of both.

    Args:
        load: returns the bytes of a medium from where it lies.
    """
    media = _Media(nodes, frames, load)
    found = [
        media.is_same(pair["earlier"], pair["later"], pair["offsets_s"], spec) for pair in pairs.to_pylist()
    ]
    return pa.table([pairs["earlier"], pairs["later"], pa.array(found, pa.bool_())], schema=SAME)


class _Media:
    """The media of some pairs, decoded once as long as they are kept."""

    def __init__(self, nodes: pa.Table, frames: pa.Table, load: Load) -> None:
        self._nodes, self._frames, self._load = nodes, frames, load
        self._thumbnail = functools.lru_cache(KEPT_PICTURES)(self._read_thumbnail)
        self._clip = functools.lru_cache(KEPT_CLIPS)(self._read_clip)

    def is_same(self, first: int, second: int, offsets_s: list[float], spec: DedupeMediaSpec) -> bool:
        if self._nodes["kind"][first].as_py() == "image":
            return compare.difference(self._thumbnail(first), self._thumbnail(second)) <= 1
        try:
            shared = compare_video.matched_share(
                self._clip(first), self._clip(second), offsets_s, spec.min_overlap
            )
        except DecodeError:  # both are damaged; what could be sampled of them does not tell
            return False
        return shared >= spec.min_matched_frames

    def _bytes(self, table: pa.Table, row: int) -> bytes:
        return self._load(*(table[field.name][row].as_py() for field in _PLACE))

    def _read_thumbnail(self, number: int) -> compare.Thumbnail:
        decoded = images.decode(self._bytes(self._nodes, number), MAX_PIXELS)
        return compare.thumbnail(decoded.array, decoded.mime)

    def _read_clip(self, number: int) -> compare_video.Clip:
        mine = media_candidates.frames_of(number, self._frames)
        sampled = [
            (time_s, compare_video.shrunk(images.decode(self._bytes(mine, row), MAX_PIXELS).pixels))
            for row, time_s in enumerate(mine["time_s"].to_pylist())
        ]
        length_s = self._nodes["time_s"][number].as_py()
        return compare_video.Clip(self._bytes(self._nodes, number), length_s, sampled)


# ---- clusters of nodes


def _pairs_of(same: pa.Table) -> list[tuple[int, int]]:
    return list(zip(same["earlier"].to_pylist(), same["later"].to_pylist(), strict=True))


def _components(num_nodes: int, same: pa.Table) -> Array:
    """Return the first node of each node's component (union-find; a root is the smallest of its own)."""
    parents = list(range(num_nodes))

    def root(node: int) -> int:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for left, right in _pairs_of(same.filter(same["is_same"])):
        left, right = root(left), root(right)
        parents[max(left, right)] = min(left, right)
    return np.array([root(node) for node in range(num_nodes)], np.int64)


def _stars(num_nodes: int, same: pa.Table) -> Array:
    """Return for each node the first one before it that leads a cluster and is known to be the same."""
    leader = np.arange(num_nodes)
    edges = same.filter(same["is_same"]).sort_by([("later", "ascending"), ("earlier", "ascending")])
    for first, second in _pairs_of(edges):
        if leader[second] == second and leader[first] == first:
            leader[second] = first
    return leader


def _one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    batches = table.cast(schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)
