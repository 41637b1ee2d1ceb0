"""Clusters of duplicates: every member is similar to the document that stays for it.

Owns the choice of representatives and the table `CLUSTERS`. Works on the documents that occur in pairs only.

Clusters are stars. The best document of all (most words, a medium counting as `media_words`; then the
smallest content hash) represents those similar to it; the best of the others the next ones, and so on. Where
A is like B and B like C, but A is not like C, A and C never share a cluster: nothing leaves because of a
document it does not resemble, and those that stay do not resemble each other. By the triangle inequality of
the Jaccard distance, two texts in one cluster are at most twice `1 - min_similarity` apart: 0.8 excludes
false merges below 0.6. Among documents of equal content the smallest doc_id comes first.

This is the lexicographically first maximal independent set of the pairs, so the set of documents alone
determines it. Where a bucket held too many to compare all with all, two documents that resemble a third may
not have been compared with each other; where the third does not stay, that is made good here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datapipe.spec import DedupeTextSpec
from datapipe.stages.dedupe_pairs import by_rank
from datapipe.stages.dedupe_signatures import SignatureTables
from datapipe.stages.dedupe_similarity import Sizes, are_similar

Array = npt.NDArray[Any]

CLUSTERS = pa.schema(  # documents that have duplicates only, in the order of their references
    [
        pa.field("reference", pa.uint64(), nullable=False),  # as in `SignatureTables`
        pa.field("doc_id", pa.large_string(), nullable=False),
        pa.field("cluster_id", pa.large_string(), nullable=False),  # doc_id of the representative
        pa.field("cluster_size", pa.int32(), nullable=False),
        pa.field("duplicate", pa.string()),  # exact, near; null for the document that stays
    ]
)


def cluster(pairs: pa.Table, signatures: Sequence[pa.Table], spec: DedupeTextSpec) -> pa.Table:
    """Return for each document that has duplicates its cluster and whether it leaves (`CLUSTERS`).

    Memory: about 200 bytes for each of these documents, 100 for each pair.
    """
    signed = SignatureTables(signatures)
    left, right = pairs["left"].to_numpy(), pairs["right"].to_numpy()
    references, place = np.unique(np.concatenate([left, right]), return_inverse=True)
    if not len(references):
        return CLUSTERS.empty_table()
    doc_ids = np.array(signed.column("doc_id", references).to_pylist())
    # Contents are numbered by rank: better ones come first. Its first copy stands for each.
    content = by_rank(signed, references, spec)
    order = np.lexsort((doc_ids, content))
    firsts = order[np.unique(content[order], return_index=True)[1]]
    edges = content[place].reshape(2, -1)
    beside = _neighbours(edges, len(firsts))
    by_star = _neighbours(edges[:, pairs["by_star"].to_numpy()], len(firsts))
    representative = _representatives(beside, by_star, Sizes.of(signed, references[firsts]), signed, spec)
    representative = representative[content]
    sizes = np.bincount(representative)
    is_first = firsts[content] == np.arange(len(references))
    stays = is_first & (content == representative)
    kinds = pa.array(np.where(is_first, "near", "exact"), pa.string(), mask=stays)
    clustered = pa.table(
        [
            pa.array(references),
            pa.array(doc_ids, pa.large_string()),
            pa.array(doc_ids[firsts[representative]], pa.large_string()),
            pa.array(sizes[representative], pa.int32()),
            kinds,
        ],
        schema=CLUSTERS,
    )
    return clustered.filter(pa.array(sizes[representative] > 1))


def _representatives(
    beside: list[Array], by_star: list[Array], sizes: Sizes, signed: SignatureTables, spec: DedupeTextSpec
) -> Array:
    """Return the representative of every content, one after the other from the best.

    `stars[c]` are the representatives known to be similar to c. A content with none, which stars found
    similar to others, is compared with the representatives of those before it becomes one.
    """
    representative = np.arange(len(beside))
    stars: list[list[int]] = [[] for _ in beside]
    for content, neighbours in enumerate(beside):
        if not stars[content] and len(by_star[content]):
            near = {star for other in by_star[content].tolist() for star in stars[other]}
            others = np.array(sorted(near), np.int64)
            similar = are_similar(signed, sizes, others, np.full(len(others), content), spec)
            stars[content] = others[similar].tolist()
        if stars[content]:
            representative[content] = stars[content][0]
            continue
        for other in [content, *neighbours.tolist()]:
            stars[other].append(content)
    return representative


def _neighbours(edges: Array, num_contents: int) -> list[Array]:
    """Return the neighbours of each content, ascending, each once."""
    edges = edges[:, edges[0] != edges[1]].astype(np.uint64)
    both = np.unique(
        np.concatenate([edges[0] << np.uint64(32) | edges[1], edges[1] << np.uint64(32) | edges[0]])
    )
    limits = np.searchsorted(both, np.arange(1, num_contents, dtype=np.uint64) << np.uint64(32))
    return np.split((both & np.uint64(2**32 - 1)).astype(np.int64), limits)
