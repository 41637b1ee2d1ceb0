"""Search for 64-bit hashes that differ in few bits.

Owns the search; what the hashes are of, its callers know. Exact: finds the pairs that comparing all with all
would find, whatever the number of hashes.

The bits are cut into four bands of 16. Of two hashes within a distance of `r`, at least one band differs in
at most `r // 4` bits, so only hashes in buckets of equal bands that are so near are compared.

Source: Norouzi, Punjani and Fleet, Fast exact search in Hamming space with multi-index hashing (2014),
section 3.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

BAND_BITS, NUM_BANDS = 16, 4
_FEW = 2_000  # hashes; below, comparing all with all is faster
_MAX_COMPARED = 4_000_000  # pairs at once
_MAX_HELD = 8_000_000  # pairs

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Compatible = Callable[[Rows, Rows], npt.NDArray[np.bool_]]


def near_pairs(
    hashes: Hashes, max_distance: int, max_earlier: int, compatible: Compatible | None = None
) -> tuple[Rows, Rows, Rows]:
    """Return pairs of rows whose hashes differ in at most `max_distance` bits: earlier, later, distance.

    A later row is paired with the nearest `max_earlier` of the rows before it, the earliest first among
    equally near ones. So there are no more than so many times the rows, also where very many are alike.

    Args:
        compatible: says of earlier and later rows, element by element, which pairs may be.
    """
    found = _Nearest(max_earlier)
    for left, right in _near(hashes, max_distance):
        earlier, later = np.minimum(left, right), np.maximum(left, right)
        if compatible is not None:
            kept = compatible(earlier, later)
            earlier, later = earlier[kept], later[kept]
        found.add(earlier, later, np.bitwise_count(hashes[earlier] ^ hashes[later]).astype(np.int64))
    return found.pairs()


def _near(hashes: Hashes, max_distance: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield the pairs of different rows that are near; some come more than once."""
    if len(hashes) <= _FEW:
        left, right = np.triu_indices(len(hashes), 1)
        is_near = np.bitwise_count(hashes[left] ^ hashes[right]) <= max_distance
        yield left[is_near], right[is_near]
        return
    masks = [
        sum(1 << bit for bit in bits)
        for num_flips in range(max_distance // NUM_BANDS + 1)
        for bits in itertools.combinations(range(BAND_BITS), num_flips)
    ]
    for band in range(NUM_BANDS):
        keys = (hashes >> np.uint64(band * BAND_BITS)).astype(np.uint16).astype(np.int64)
        order = np.argsort(keys, kind="stable")
        keys, in_order = keys[order], hashes[order]
        ends = np.cumsum(np.bincount(keys, minlength=1 << BAND_BITS))
        for mask in masks:
            for left, right in _bucket_pairs(keys, ends, mask):
                is_near = np.bitwise_count(in_order[left] ^ in_order[right]) <= max_distance
                yield order[left[is_near]], order[right[is_near]]


def _bucket_pairs(keys: Rows, ends: Rows, mask: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield the pairs of places in sorted keys where these differ in just the bits of `mask`, part by part.

    Args:
        ends: for each key, the place behind its last one.
    """
    others = keys ^ mask
    first = ends[others - 1] * (others > 0) if mask else np.arange(1, len(keys) + 1)
    counts = np.where(others >= keys, ends[others] - first, 0)
    places = np.flatnonzero(counts)
    totals = np.cumsum(counts[places])
    at, done = 0, 0
    while at < len(places):
        end = max(at + 1, int(np.searchsorted(totals, done + _MAX_COMPARED, side="right")))
        part = places[at:end]
        size = counts[part]
        before = np.cumsum(size) - size
        yield np.repeat(part, size), np.repeat(first[part] - before, size) + np.arange(size.sum())
        at, done = end, int(totals[end - 1])


class _Nearest:
    """The nearest earlier rows of each row among the pairs added so far."""

    def __init__(self, max_earlier: int) -> None:
        self._max_earlier = max_earlier
        self._parts: list[tuple[Rows, Rows, Rows]] = []
        self._held, self._limit = 0, _MAX_HELD

    def add(self, earlier: Rows, later: Rows, distances: Rows) -> None:
        self._parts.append((earlier, later, distances))
        self._held += len(earlier)
        if self._held > self._limit:
            self._parts = [self.pairs()]
            self._held = len(self._parts[0][0])
            self._limit = max(_MAX_HELD, 2 * self._held)

    def pairs(self) -> tuple[Rows, Rows, Rows]:
        empty = np.empty(0, np.int64)
        earlier, later, distances = (
            np.concatenate([part[i] for part in self._parts]) if self._parts else empty for i in range(3)
        )
        order = np.lexsort((earlier, distances, later))
        earlier, later, distances = earlier[order], later[order], distances[order]
        is_new = np.ones(
            len(later), bool
        )  # bands find a pair more than once, each time with the same distance
        is_new[1:] = (earlier[1:] != earlier[:-1]) | (later[1:] != later[:-1])
        earlier, later, distances = earlier[is_new], later[is_new], distances[is_new]
        starts = np.searchsorted(later, later)
        nearest = np.arange(len(later)) - starts < self._max_earlier
        return earlier[nearest], later[nearest], distances[nearest]
