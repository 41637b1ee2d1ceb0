"""Dedupe of whole documents by text and media: copies and near-duplicates leave, one of each cluster stays.

Owns the order of the parts, the columns `cluster_id` and `cluster_size`, and the drop reasons
`duplicate_exact` and `duplicate_near`. It looks at no pixels (`dedupe_media` does, and its clusters may be
given) and removes no repeated paragraphs.

Five parts: `signatures` and `keys` (map, over documents), `pairs` (reduce, over one bucket of keys),
`cluster` (reduce, over all pairs), `mark` (map). Memory is bounded by a batch, a bucket and the documents
that have duplicates. The result depends on the set of documents alone: neither the order of rows nor the
split into partitions and buckets changes it.

- Exact: the same words in the same order, and the same media. Case, compatibility characters (NFKC),
  punctuation, white space and line structure do not count.
- Near: `dedupe_similarity` says how similar; candidates come from MinHash bands and are compared exactly.
- Clusters: `dedupe_clusters`; every member is similar to the representative, which stays.
- A document of neither words nor media, or dropped for another reason, takes no part.
"""

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.stages.dedupe_clusters import CLUSTERS, cluster
from datapipe.stages.dedupe_pairs import PAIRS, pairs
from datapipe.stages.dedupe_signatures import DUPLICATE, KEYS, SIGNATURES, keys, signatures
from schemas import document

__all__ = ["CLUSTERS", "KEYS", "PAIRS", "SIGNATURES", "cluster", "keys", "mark", "pairs", "signatures"]

VERSION = "3"


def mark(batch: pa.RecordBatch, clusters: pa.Table) -> pa.RecordBatch:
    """Return the documents with their cluster and, for duplicates, `drop_reason`.

    `clusters` (`CLUSTERS`) must hold those of the batch that have duplicates and may hold others.
    """
    place = pc.index_in(batch["doc_id"].cast(pa.large_string()), value_set=clusters["doc_id"])
    kind = clusters["duplicate"].combine_chunks().take(place)
    reason = pc.binary_join_element_wise(pa.scalar(DUPLICATE), kind, "")
    size = clusters["cluster_size"].combine_chunks().take(place)
    columns = {name: batch[name] for name in document.SCHEMA.names}
    columns["cluster_id"] = clusters["cluster_id"].combine_chunks().take(place).cast(pa.string())
    columns["cluster_size"] = pc.fill_null(size, 1)
    columns["drop_reason"] = pc.coalesce(batch["drop_reason"], reason)
    return pa.record_batch(list(columns.values()), schema=document.SCHEMA)
