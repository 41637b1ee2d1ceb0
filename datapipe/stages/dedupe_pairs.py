"""The duplicates of one bucket: documents that share a key, compared exactly.

Owns which of them are compared, and the table `PAIRS`. How similar two documents are, `dedupe_similarity`
says; what becomes of the pairs, `dedupe_clusters`.

Documents of equal content count as one here, so a million copies of a page cost one pass. Of the rest, those
under one key are compared

- all with all, where there are at most `ALL_PAIRS`: each pair under the first band it shares, so once;
- else with stars: the best document (see `by_rank`) with all others, then the best of those that were not
  similar with what remains, and so on. That is linear where a key stands for one template; where it stands
  for none, it ends after `MAX_STARS` and leaves the rest to their other bands. What a star was found similar
  to under another key of the bucket is not compared with it again.

MinHash signatures that agree in too few places spare the comparison. None of this depends on the order of
documents or on how they are split into tables.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datapipe.spec import DedupeTextSpec
from datapipe.stages.dedupe_signatures import COPIES, SignatureTables
from datapipe.stages.dedupe_similarity import Sizes, are_similar, min_text_similarity
from datapipe.stages.shingles import BAND_BITS, ranges

Array = npt.NDArray[Any]

PAIRS = pa.schema(  # references as in `SignatureTables`
    [
        pa.field("left", pa.uint64(), nullable=False),
        pa.field("right", pa.uint64(), nullable=False),
        pa.field("by_star", pa.bool_(), nullable=False),  # others under their key were not compared with both
    ]
)
ALL_PAIRS = 32
MAX_STARS = 256
CHUNK_DOCUMENTS = 1 << 14  # whose signatures are read at a time
CHUNK_PAIRS = 1 << 12  # whose signatures are compared at a time
# By how many standard deviations the estimate of a signature may fall short of the true similarity. That of
# num_permutations places, each equal with probability p, is at most 1 / (2 * sqrt(num_permutations)).
MARGIN_DEVIATIONS = 4.5


def pairs(keys: Sequence[pa.RecordBatch], signatures: Sequence[pa.Table], spec: DedupeTextSpec) -> pa.Table:
    """Return pairs of duplicates (`PAIRS`), exact copies and near-duplicates, enough to cluster a bucket.

    `keys` holds the bucket's batch of each `KEYS` table, in the order of `signatures`.
    Memory: the bucket's keys, and the signatures of `CHUNK_DOCUMENTS`.
    """
    signed = SignatureTables(signatures)
    key, reference = _shared_keys(keys)
    unique, place = np.unique(reference, return_inverse=True)
    first = by_rank(signed, unique, spec)
    copies = _copies(key, reference, first[place], unique)
    near = (key & np.uint64(2**BAND_BITS - 1)) != COPIES
    # From here on a document is its rank among the distinct contents of the bucket.
    sizes = Sizes.of(signed, unique[_first_places(first)])
    left, right, by_star = _near_pairs(signed, sizes, *_groups(key[near], first[place][near]), spec)
    columns = [
        np.concatenate([copies[0], sizes.references[left]]),
        np.concatenate([copies[1], sizes.references[right]]),
        np.concatenate([np.zeros(len(copies[0]), bool), by_star]),
    ]
    return pa.table(columns, schema=PAIRS)


def by_rank(signed: SignatureTables, references: Array, spec: DedupeTextSpec) -> Array:
    """Return the rank of each document's content among all of theirs, best first; equal contents share one.

    The best has the most words, a medium counting as `media_words`; then the smallest content hash.
    """
    content = np.frombuffer(b"".join(signed.column("content", references).to_pylist()), ">u8").reshape(-1, 2)
    weight = signed.numbers("num_words", references) + spec.media_words * signed.numbers(
        "num_media", references
    )
    order = np.lexsort((content[:, 1], content[:, 0], -weight))
    is_new = np.ones(len(order), bool)
    is_new[1:] = (content[order][1:] != content[order][:-1]).any(axis=1)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(is_new) - 1
    return ranks


# ---- who meets whom


def _shared_keys(keys: Sequence[pa.RecordBatch]) -> tuple[Array, Array]:
    """Return the keys more than one document has, ascending, and the reference of each."""
    parts, references = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for number, batch in enumerate(keys):
        parts.append(batch["key"].to_numpy())
        references.append(batch["row"].to_numpy().astype(np.uint64) | np.uint64(number << 32))
    key = np.concatenate(parts)
    order = np.argsort(key, kind="stable")
    key = key[order]
    same = key[1:] == key[:-1]
    shared = np.zeros(len(key), bool)
    shared[1:] |= same
    shared[:-1] |= same
    return key[shared], np.concatenate(references)[order[shared]]


def _copies(key: Array, reference: Array, rank: Array, unique: Array) -> tuple[Array, Array]:
    """Return each document whose content another has, with the first of those."""
    chosen = np.flatnonzero((key & np.uint64(2**BAND_BITS - 1)) == COPIES)
    order = chosen[np.lexsort((reference[chosen], rank[chosen]))]
    starts = np.flatnonzero(np.diff(rank[order], prepend=-1))
    first = np.repeat(reference[order][starts], np.diff(np.append(starts, len(order))))
    copies = np.flatnonzero(first != reference[order])
    return first[copies], reference[order][copies]


def _first_places(ranks: Array) -> Array:
    """Return where each rank stands first."""
    return np.unique(ranks, return_index=True)[1]


def _groups(key: Array, rank: Array) -> tuple[Array, Array, Array]:
    """Return the groups of two or more distinct contents under one key: members by rank, offsets, bands."""
    order = np.lexsort((rank, key))
    key, rank = key[order], rank[order]
    is_new = np.ones(len(key), bool)
    is_new[1:] = (key[1:] != key[:-1]) | (rank[1:] != rank[:-1])
    key, rank = key[is_new], rank[is_new]
    starts = np.flatnonzero(np.concatenate([np.ones(min(len(key), 1), bool), key[1:] != key[:-1]]))
    lengths = np.diff(np.append(starts, len(key)))
    kept = lengths > 1
    starts, lengths = starts[kept], lengths[kept]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    bands = (key[starts] & np.uint64(2**BAND_BITS - 1)).astype(np.int64)
    return rank[ranges(starts, lengths)], offsets, bands


# ---- near-duplicates; documents are numbers in `sizes`, better ones first


def _near_pairs(
    signed: SignatureTables, sizes: Sizes, members: Array, offsets: Array, bands: Array, spec: DedupeTextSpec
) -> tuple[Array, Array, Array]:
    """Return the near-duplicates of all groups, and which of them stars found."""
    lengths = np.diff(offsets)
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    small = np.flatnonzero(lengths <= ALL_PAIRS)
    for chunk in np.split(small, np.flatnonzero(np.diff(np.cumsum(lengths[small]) // CHUNK_DOCUMENTS)) + 1):
        left, right, band = _all_pairs(members, offsets[chunk], lengths[chunk], bands[chunk])
        chosen = _are_candidates(signed, sizes, left, right, band, spec)
        left, right = left[chosen], right[chosen]
        similar = are_similar(signed, sizes, left, right, spec)
        found.append((left[similar], right[similar]))
    num_by_all = sum(len(left) for left, _ in found)
    similar_to: dict[int, Array] = {}
    for group in np.flatnonzero(lengths > ALL_PAIRS):
        found += _stars(signed, sizes, members[offsets[group] : offsets[group + 1]], similar_to, spec)
    left, right = (np.concatenate(side) for side in zip(*found, strict=True))
    return left, right, np.arange(len(left)) >= num_by_all


def _all_pairs(members: Array, starts: Array, lengths: Array, bands: Array) -> tuple[Array, Array, Array]:
    """Return all pairs within each group, the better one left, and the band they meet under."""
    left, right, band = [], [], []
    for distance in range(1, int(lengths.max(initial=1))):
        reaching = lengths > distance
        places = ranges(starts[reaching], lengths[reaching] - distance)
        left.append(members[places])
        right.append(members[places + distance])
        band.append(np.repeat(bands[reaching], lengths[reaching] - distance))
    nothing = [np.zeros(0, np.int64)]
    return np.concatenate(left or nothing), np.concatenate(right or nothing), np.concatenate(band or nothing)


def _are_candidates(
    signed: SignatureTables, sizes: Sizes, left: Array, right: Array, band: Array, spec: DedupeTextSpec
) -> Array:
    """Return for each pair whether it is to be compared: it shares no band before this one, and its
    signatures are near.
    """
    result = np.zeros(len(left), bool)
    unique, place = np.unique(np.concatenate([left, right]), return_inverse=True)
    minhash, rows = _minhash(signed, sizes, unique, spec)
    left_row, right_row = rows[place[: len(left)]], rows[place[len(left) :]]
    for start in range(0, len(left), CHUNK_PAIRS):
        chunk = slice(start, start + CHUNK_PAIRS)
        agree = minhash[left_row[chunk]] == minhash[right_row[chunk]]
        is_first = agree.reshape(len(agree), spec.num_bands, -1).all(axis=2).argmax(axis=1) == band[chunk]
        result[chunk] = is_first & _are_near(agree, sizes, left[chunk], right[chunk], spec)
    return result


def _stars(
    signed: SignatureTables, sizes: Sizes, members: Array, similar_to: dict[int, Array], spec: DedupeTextSpec
) -> list[tuple[Array, Array]]:
    """Compare the best with all others, then the best of the rest with what remains; a chunk at a time.

    `similar_to` holds what each star is known to be similar to, and is added to.
    """
    found = []
    stars: list[int] = []
    signatures: list[Array] = []
    for start in range(0, len(members), CHUNK_DOCUMENTS):
        waiting = members[start : start + CHUNK_DOCUMENTS]
        unordered, rows = _minhash(signed, sizes, waiting, spec)
        minhash = unordered[rows]
        for number in range(MAX_STARS):
            if number == len(stars) and len(waiting):
                stars.append(int(waiting[0]))
                signatures.append(minhash[0])
                waiting, minhash = waiting[1:], minhash[1:]
            if not len(waiting):
                break
            known = similar_to.get(stars[number], waiting[:0])
            similar = np.isin(waiting, known)
            star, agree = np.full(len(waiting), stars[number]), minhash == signatures[number]
            chosen = np.flatnonzero(~similar & _are_near(agree, sizes, star, waiting, spec))
            chosen = chosen[are_similar(signed, sizes, star[chosen], waiting[chosen], spec)]
            found.append((star[chosen], waiting[chosen]))
            similar_to[stars[number]] = np.concatenate([known, waiting[chosen]])
            similar[chosen] = True
            waiting, minhash = waiting[~similar], minhash[~similar]
    return found


def _minhash(
    signed: SignatureTables, sizes: Sizes, documents: Array, spec: DedupeTextSpec
) -> tuple[Array, Array]:
    """Return the signatures of these documents in some order, and the row of each."""
    values, starts, _ = signed.lists("minhash", sizes.references[documents])
    return values.reshape(len(documents), spec.num_permutations), starts // spec.num_permutations


def _are_near(agree: Array, sizes: Sizes, left: Array, right: Array, spec: DedupeTextSpec) -> Array:
    """Return for each pair whether signatures that agree in these places can be of similar documents."""
    margin = MARGIN_DEVIATIONS / (2 * math.sqrt(spec.num_permutations))
    estimate = agree.sum(axis=1, dtype=np.int32) / spec.num_permutations
    return estimate >= min_text_similarity(sizes, left, right, spec) - margin
