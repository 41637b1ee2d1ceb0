"""Search for 64-bit hashes that differ in few bits.

Owns the search; what the hashes are of, its callers know. Exact: finds the pairs that comparing all with all
would find, but in crowds, where a row is compared with the first `MAX_MET` only and says so (`num_cut`). So
the work grows with the number of rows, also where very many are alike.

Rows of equal hashes are found by sorting, and from there on a hash stands for its rows. The bits are cut into
four bands of 16. Of two hashes within a distance of `r`, at least one band differs in at most `r // 4` bits,
so only hashes in buckets of equal bands that are so near are compared.

Source: Norouzi, Punjani and Fleet, Fast exact search in Hamming space with multi-index hashing (2014),
section 3.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BAND_BITS, NUM_BANDS = 16, 4
# Rows before it that one is compared with under each band. Of 4 million evenly spread hashes at a distance of
# 10 a row meets as many there; ten thousand pictures of one template meet more.
MAX_MET = 8192
MAX_ALIKE = 1024  # rows of one hash among them: all frames of a video that shows one slide
_FEW = 2_000  # rows; below, comparing all with all is faster
_MAX_COMPARED = 4_000_000  # pairs at once
_MAX_HELD = 2_000_000  # pairs
_ROW_BITS, _DISTANCE_BITS = 30, 4

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Compatible = Callable[[Rows, Rows], Flags]


class Pairs(NamedTuple):
    """Pairs of rows, ordered by the later one and how near the other is, and what finding them took."""

    earlier: Rows
    later: Rows
    distance: Rows
    num_cut: int  # rows in a crowd, not compared with all that may be near them
    num_compared: int  # pairs of hashes and of rows that were looked at


def near_pairs(
    hashes: Hashes, max_distance: int, max_earlier: int, compatible: Compatible | None = None
) -> Pairs:
    """Return pairs of rows whose hashes differ in at most `max_distance` bits.

    A later row is paired with the nearest `max_earlier` of the rows before it, the earliest first among
    equally near ones. So there are no more than so many times the rows, also where very many are alike.

    In a crowd a row is compared, under each band, with rows before it until they are `MAX_MET`: first those
    whose band is equal, then those that differ in one bit there, and so on, the earliest first; and of the
    rows of one hash with the first `MAX_ALIKE`.

    Args:
        compatible: says of earlier and later rows, element by element, which pairs may be.
    """
    assert max_distance < 1 << _DISTANCE_BITS and len(hashes) < 1 << _ROW_BITS
    search = _Search(hashes, max_distance, max_earlier, compatible)
    search.among_equal()
    search.among_near()
    return Pairs(*search.found.pairs(), int(search.is_cut.sum()), search.num_compared)


@dataclasses.dataclass(frozen=True)
class _Alike:
    """Rows by hash. Different hashes are numbered in the order of their first rows."""

    number: Rows  # of each row's hash
    rows: Rows  # by hash, ascending for each
    starts: Rows  # of each hash in `rows`
    sizes: Rows
    rank: Rows  # of each row among those of its hash

    @classmethod
    def of(cls, hashes: Hashes) -> "_Alike":
        _, first, place = np.unique(hashes, return_index=True, return_inverse=True)
        number = np.argsort(np.argsort(first))[place]
        rows = np.argsort(number, kind="stable")
        sizes = np.bincount(number, minlength=len(first)).astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        rank = np.empty(len(hashes), np.int64)
        rank[rows] = np.arange(len(hashes)) - np.repeat(starts, sizes)
        return cls(number, rows, starts, sizes, rank)


class _Search:
    """One search: what was found so far, and which rows need no more."""

    def __init__(
        self, hashes: Hashes, max_distance: int, max_earlier: int, compatible: Compatible | None
    ) -> None:
        self.hashes, self.alike = hashes, _Alike.of(hashes)
        self.max_distance, self.max_earlier, self.compatible = max_distance, max_earlier, compatible
        # Of rows of one hash the first are as good as any, if all are compatible.
        self.max_alike = max_earlier if compatible is None else max(MAX_ALIKE, max_earlier)
        self.found = _Nearest(max_earlier, len(hashes))
        self.is_full = np.zeros(len(hashes), bool)  # rows with enough of their own hash before them
        self.is_cut = np.zeros(len(hashes), bool)
        self.num_compared = 0

    def among_equal(self) -> None:
        """Pair rows with those of the same hash, until each has enough."""
        alike, num_found = self.alike, np.zeros(len(self.hashes), np.int64)
        waiting = np.flatnonzero(alike.rank > 0)
        start, stop = 0, min(self.max_earlier, self.max_alike)
        while len(waiting) and start < stop:
            for item, offset in _spread(np.minimum(alike.rank[waiting], stop) - start):
                later = waiting[item]
                earlier = alike.rows[alike.starts[alike.number[later]] + start + offset]
                later = self._add(earlier, later, np.zeros(len(later), np.int64))
                num_found += np.bincount(later, minlength=len(num_found))
            self.is_full = num_found >= self.max_earlier
            waiting = waiting[~self.is_full[waiting] & (alike.rank[waiting] > stop)]
            start, stop = stop, min(2 * stop, self.max_alike)
        self.is_cut[waiting] = True

    def among_near(self) -> None:
        """Pair rows with those of other hashes."""
        alike, found = self.alike, self.found
        rows = alike.rows[~self.is_full[alike.rows]]  # which still look for others, by hash
        sizes = np.bincount(alike.number[rows], minlength=len(alike.sizes)).astype(np.int64)
        starts, met = np.cumsum(sizes) - sizes, np.minimum(alike.sizes, self.max_alike)
        looking = np.flatnonzero(sizes)
        first_row, last_row = alike.rows[alike.starts], np.full(len(sizes), -1)
        last_row[looking] = rows[(starts + sizes - 1)[looking]]
        furthest = np.full(len(sizes), found.furthest.max(initial=0))  # at which a hash's rows want others
        num_sorted = found.num_sorted
        for one, two, distance in self._near_hashes(self.hashes[first_row], met):
            if found.num_sorted > num_sorted:
                furthest[looking] = np.maximum.reduceat(found.furthest[rows], starts[looking])
                num_sorted = found.num_sorted
            for later, earlier in ((one, two), (two, one)):
                wanted = (first_row[earlier] < last_row[later]) & (distance <= furthest[later])
                later, earlier, distances = later[wanted], earlier[wanted], distance[wanted]
                # All rows of the one hash, each with the first rows of the other.
                for item, offset in _spread(sizes[later] * met[earlier]):
                    row, number = np.divmod(offset, met[earlier[item]])
                    after, before = rows[starts[later[item]] + row], earlier[item]
                    self._note_cut(after, before, met)
                    before = alike.rows[alike.starts[before] + number]
                    kept = before < after
                    self._add(before[kept], after[kept], distances[item[kept]])

    def _near_hashes(self, hashes: Hashes, met: Rows) -> Iterator[tuple[Rows, Rows, Rows]]:
        """Yield the pairs of different hashes that are near, by number, and distances; some more than once.

        Args:
            met: how many rows of each hash others meet.
        """
        if len(self.hashes) <= _FEW:
            one, two = np.triu_indices(len(hashes), 1)
            yield self._near_of(hashes, one, two)
            return
        masks = [
            sum(1 << bit for bit in bits)
            for num_flips in range(self.max_distance // NUM_BANDS + 1)
            for bits in itertools.combinations(range(BAND_BITS), num_flips)
        ]
        is_cut = np.zeros(len(hashes), bool)
        for number in range(NUM_BANDS):
            keys = (hashes >> np.uint64(number * BAND_BITS)).astype(np.uint16).astype(np.int64)
            band = _Band(keys, met, masks)
            in_order = hashes[band.order]
            for mask in masks:
                for places in itertools.chain(band.in_quiet(mask), band.in_crowds(mask)):
                    one, two, distance = self._near_of(in_order, *places)
                    yield band.order[one], band.order[two], distance
            is_cut[band.order[band.is_cut]] = True
        self.is_cut |= is_cut[self.alike.number] & ~self.is_full

    def _near_of(self, hashes: Hashes, one: Rows, two: Rows) -> tuple[Rows, Rows, Rows]:
        """Compare pairs; return those that are near, and their distances."""
        self.num_compared += len(one)
        distance = np.bitwise_count(hashes[one] ^ hashes[two])
        near = np.flatnonzero(distance <= self.max_distance)
        return one[near], two[near], distance[near].astype(np.int64)

    def _note_cut(self, after: Rows, other: Rows, met: Rows) -> None:
        """Note rows before which there are more rows of another hash than they meet."""
        more = met[other] < self.alike.sizes[other] if self.compatible else np.zeros(len(other), bool)
        after, other = after[more], other[more]
        unmet = self.alike.rows[self.alike.starts[other] + met[other]]
        self.is_cut[after[unmet < after]] = True

    def _add(self, earlier: Rows, later: Rows, distance: Rows) -> Rows:
        """Keep the pairs that may be; return their later rows."""
        self.num_compared += len(earlier)
        if self.compatible is not None:
            kept = self.compatible(earlier, later)
            earlier, later, distance = earlier[kept], later[kept], distance[kept]
        self.found.add(earlier, later, distance)
        return later


class _Band:
    """The hashes in buckets of one band. Places are those in `order`: by bucket, then by number.

    A bucket is crowded if a hash there would meet more than `MAX_MET` rows under all masks.
    """

    def __init__(self, keys: Rows, met: Rows, masks: list[int]) -> None:
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        self.ends = np.cumsum(np.bincount(keys, minlength=1 << BAND_BITS))
        self.starts = np.append(0, self.ends[:-1])
        self.met_before = np.append(0, np.cumsum(met[self.order]))  # rows that those before a place stand for
        in_bucket = self.met_before[self.ends] - self.met_before[self.starts]
        bucket = np.arange(1 << BAND_BITS)
        self.is_crowded = sum(in_bucket[bucket ^ mask] for mask in masks) > MAX_MET
        self.room = np.full(len(keys), MAX_MET)
        self.is_cut = np.zeros(len(keys), bool)

    def in_quiet(self, mask: int) -> Iterator[tuple[Rows, Rows]]:
        """Yield the pairs of places of buckets that differ in just the bits of `mask`, where neither is
        crowded.
        """
        others = self.keys ^ mask
        first = self.starts[others] if mask else np.arange(1, len(others) + 1)
        counts = np.where(others >= self.keys, self.ends[others] - first, 0)
        counts[self._busy(others)] = 0
        for item, offset in _spread(counts):
            yield item, first[item] + offset

    def _busy(self, others: Rows) -> Rows:
        """Return the places of which the own bucket or the other is crowded."""
        if not self.is_crowded.any():
            return np.empty(0, np.int64)
        return np.flatnonzero(self.is_crowded[self.keys] | self.is_crowded[others])

    def in_crowds(self, mask: int) -> Iterator[tuple[Rows, Rows]]:
        """Yield each place with the first before it of the other bucket for which it has room, where one of
        them is crowded.
        """
        others = self.keys ^ mask
        busy = self._busy(others)
        others = others[busy]
        first = self.starts[others]
        end = np.searchsorted(self.keys << _ROW_BITS | self.order, others << _ROW_BITS | self.order[busy])
        room_ends = self.met_before[first] + self.room[busy]
        last = np.minimum(np.searchsorted(self.met_before, room_ends, side="right") - 1, end)
        used = self.met_before[last] - self.met_before[first]
        self.is_cut[busy[last < end]] = True
        self.room[busy] = np.where(last < end, 0, self.room[busy] - used)
        for item, offset in _spread(last - first):
            yield busy[item], first[item] + offset


def _spread(sizes: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Yield the place of each size as often as it says, and which time it is, from 0 on; part by part."""
    chosen = np.flatnonzero(sizes)
    ends = np.cumsum(sizes[chosen])
    for start in range(0, int(ends[-1]) if len(ends) else 0, _MAX_COMPARED):
        stop = min(start + _MAX_COMPARED, int(ends[-1]))
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        part = chosen[first : last + 1]
        begins = ends[first : last + 1] - sizes[part]
        counts = np.minimum(ends[first : last + 1], stop) - np.maximum(begins, start)
        yield np.repeat(part, counts), np.arange(start, stop) - np.repeat(begins, counts)


class _Nearest:
    """The nearest earlier rows of each row among the pairs added so far.

    A pair is one number: the later row, the distance, the earlier row. `furthest` says for each row at which
    distance another may still be among its nearest, as far as the first `num_sorted` pairs tell.
    """

    def __init__(self, max_earlier: int, num_rows: int) -> None:
        self._max_earlier = max_earlier
        self._parts = [np.empty(0, np.uint64)]
        self._held, self._limit = 0, _MAX_HELD
        self.num_sorted, self.furthest = 0, np.full(num_rows, (1 << _DISTANCE_BITS) - 1)

    def add(self, earlier: Rows, later: Rows, distance: Rows) -> None:
        packed = (later << _DISTANCE_BITS | distance).astype(np.uint64) << np.uint64(_ROW_BITS)
        self._parts.append(packed | earlier.astype(np.uint64))
        self._held += len(earlier)
        if self._held > self._limit:
            self.num_sorted += self._held
            self._parts = [self._nearest()]
            self._held = len(self._parts[0])
            self._limit = max(_MAX_HELD, 2 * self._held)

    def pairs(self) -> tuple[Rows, Rows, Rows]:
        """Return earlier and later rows and distances."""
        found = self._nearest()
        later, distance = self._rows_and_distances(found)
        return (found & np.uint64((1 << _ROW_BITS) - 1)).astype(np.int64), later, distance

    def _nearest(self) -> Hashes:
        found = np.concatenate(self._parts)
        found.sort()
        found = found[np.diff(found, prepend=~found[:1]) != 0]  # bands find a pair more than once
        later, distance = self._rows_and_distances(found)
        number = np.arange(len(later)) - np.searchsorted(later, later)
        last = number == self._max_earlier - 1
        self.furthest[later[last]] = distance[last]
        return found[number < self._max_earlier]

    def _rows_and_distances(self, found: Hashes) -> tuple[Rows, Rows]:
        upper = (found >> np.uint64(_ROW_BITS)).astype(np.int64)
        return upper >> _DISTANCE_BITS, upper & ((1 << _DISTANCE_BITS) - 1)
