"""How similar two documents are by text and media, exactly, from their signatures.

Owns the measure and its computation for many pairs at once. Does not choose which pairs are looked at.

A document is a set of shingles and media clusters; a medium weighs as much as `media_words` shingles. The
similarity of two documents is the weighted Jaccard similarity of their sets:

    (shared shingles + media_words * shared media) / (all shingles + media_words * all media)

A medium one of them shows and the other does not counts as different, unless the other lacks media that could
not be had: each of those may have been it, and takes one out of the sum. Two documents are near-duplicates
where this is at least `min_similarity` and the Jaccard similarity of the shingles alone is at least
`min_text_similarity`; without the second, a translation that keeps all pictures or a stub full of the same
icons would be a duplicate.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.spec import DedupeTextSpec
from datapipe.stages.dedupe_signatures import SignatureTables
from datapipe.stages.shingles import ranges

Array = npt.NDArray[Any]

CHUNK_SHINGLES = 1 << 18  # compared at a time: bounds memory to about 15 MB, or to one pair of documents


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the similarity of documents needs but their sets: arrays by document."""

    references: Array
    num_shingles: Array
    num_media: Array
    num_missing: Array

    @classmethod
    def of(cls, signed: SignatureTables, references: Array) -> "Sizes":
        """Read the sizes of these documents."""
        return cls(
            references,
            signed.numbers("num_shingles", references),
            signed.numbers("num_media", references),
            signed.numbers("num_missing", references),
        )


def are_similar(
    signed: SignatureTables, sizes: Sizes, left: Array, right: Array, spec: DedupeTextSpec
) -> Array:
    """Return for each pair whether they are near-duplicates; `left` and `right` number documents of `sizes`.

    Memory: the shingles of `CHUNK_SHINGLES` at a time, or of one pair.
    """
    result = np.zeros(len(left), bool)
    smaller = np.minimum(sizes.num_shingles[left], sizes.num_shingles[right])
    larger = np.maximum(sizes.num_shingles[left], sizes.num_shingles[right])
    possible = np.flatnonzero(smaller >= min_text_similarity(sizes, left, right, spec) * larger)
    possible = possible[np.lexsort((right[possible], left[possible]))]  # so that few documents are read twice
    for chosen in _chunks(possible, (smaller + larger)[possible]):
        result[chosen] = _are_similar_now(signed, sizes, left[chosen], right[chosen], spec)
    return result


def min_text_similarity(sizes: Sizes, left: Array, right: Array, spec: DedupeTextSpec) -> Array:
    """Return what the shingles of each pair must reach: all of it where there are no media to help."""
    has_media = (sizes.num_media[left] > 0) & (sizes.num_media[right] > 0)
    return np.where(has_media, min(spec.min_text_similarity, spec.min_similarity), spec.min_similarity)


def _are_similar_now(
    signed: SignatureTables, sizes: Sizes, left: Array, right: Array, spec: DedupeTextSpec
) -> Array:
    shared = _num_shared(signed, "shingles", sizes.references[left], sizes.references[right])
    union = sizes.num_shingles[left] + sizes.num_shingles[right] - shared
    is_similar = shared >= min_text_similarity(sizes, left, right, spec) * union
    media = np.flatnonzero(is_similar & (sizes.num_media[left] + sizes.num_media[right] > 0))
    weight_shared, weight_all = shared.astype(float), union.astype(float)
    if len(media):
        left, right = left[media], right[media]
        same = _num_shared(signed, "media", sizes.references[left], sizes.references[right])
        only_left = np.maximum(sizes.num_media[left] - same - sizes.num_missing[right], 0)
        only_right = np.maximum(sizes.num_media[right] - same - sizes.num_missing[left], 0)
        weight_shared[media] += spec.media_words * same
        weight_all[media] += spec.media_words * (same + only_left + only_right)
    return is_similar & (weight_shared >= spec.min_similarity * weight_all) & (weight_all > 0)


def _num_shared(signed: SignatureTables, name: str, left: Array, right: Array) -> Array:
    """Return how many values the sets of each pair share."""
    unique, place = np.unique(np.concatenate([left, right]), return_inverse=True)
    values, starts, lengths = signed.lists(name, unique)
    # Each side is ascending as a whole, so the stable sort has only to merge the two.
    sides = (place[: len(left)], place[len(left) :])
    keyed = np.concatenate([_keyed(values, starts[side], lengths[side]) for side in sides])
    keyed.sort(kind="stable")
    pairs = keyed[1:][keyed[1:] == keyed[:-1]] >> np.uint64(32)
    return np.bincount(pairs.astype(np.int64), minlength=len(left))


def _keyed(values: Array, starts: Array, lengths: Array) -> Array:
    """Return the values of these lists, one after the other, with the number of the list above each."""
    numbers = np.repeat(np.arange(len(lengths), dtype=np.uint64) << np.uint64(32), lengths)
    return numbers | values[ranges(starts, lengths)].astype(np.uint64)


def _chunks(pairs: Array, sizes: Array) -> Iterator[Array]:
    """Cut into runs of about `CHUNK_SHINGLES`."""
    runs = np.cumsum(sizes) // CHUNK_SHINGLES
    return iter(np.split(pairs, np.flatnonzero(np.diff(runs)) + 1)) if len(pairs) else iter(())
