"""Text as numbers: the hash of every word, the set of shingles of a document, its MinHash and band keys.

Owns these hashes. What a word is, `datapipe.stages.words` says; this file finds the same words many
documents at a time. Knows neither tables nor what a duplicate is.

Everything is arithmetic on whole arrays and fixed constants: the same text has the same hashes in every
process, on every platform and in every batch. Arrays of many documents are flat, with `offsets` as in Arrow:
what belongs to document i stands at `offsets[i]` to `offsets[i + 1]`.

- Letters: Unicode NFKC, then case folding.
- Word: a polynomial over its code points modulo 2^64, its bits mixed.
- Shingle: `size` words in a row, 32 bits. Two documents share a shingle by chance with probability 2^-32 for
  each pair of their shingles: a similarity is wrong by a part in ten thousand where both have 400,000 words.
- MinHash: the smallest of the shingles, each multiplied by an odd number modulo 2^32; one odd number for each
  position of the signature.

Source: Broder, On the resemblance and containment of documents (1997); Bohman, Cooper and Frieze, Min-wise
independent linear permutations (2000); Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section
3.4 (banding).
"""

import functools
import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.stages.words import words

Array = npt.NDArray[Any]

CHUNK_CHARACTERS = 1 << 16  # of text looked at together: arrays of this length stay in the processor's cache
BAND_BITS = 8  # the lowest bits of a band key are the band's number

# What a character is: no part of a word, a letter of one, or a word by itself (scripts without spaces).
_NONE, _LETTER, _WORD, _UNKNOWN = 0, 1, 2, 255
_PAGE = 256


def word_hashes(texts: Sequence[str]) -> tuple[Array, Array]:
    """Return the hashes of all words (uint64), text after text, and the offsets of the texts in them."""
    parts, counts = [], [np.zeros(1, np.int64)]
    for chunk in _chunks(texts):
        hashes, lengths = _word_hashes_of_chunk(chunk)
        parts.append(hashes)
        counts.append(lengths)
    return np.concatenate([np.zeros(0, np.uint64), *parts]), np.cumsum(np.concatenate(counts))


def shingle_sets(hashes: Array, offsets: Array, size: int) -> tuple[Array, Array]:
    """Return the shingles of each document (uint32, ascending, each once) and their offsets.

    A document of fewer than `size` words has one shingle, of all its words; one without words has none.
    """
    num_words = np.diff(offsets)
    multipliers = _odd_numbers("shingle", size)
    padded = np.concatenate([hashes, np.zeros(size - 1, np.uint64)])
    combined = np.zeros(len(hashes), np.uint64)
    for place in range(size):
        combined += padded[place : place + len(hashes)] * multipliers[place]
    for short in np.flatnonzero((num_words > 0) & (num_words < size)):
        start, end = offsets[short], offsets[short + 1]
        combined[start] = (hashes[start:end] * multipliers[: end - start]).sum(dtype=np.uint64)
    # The last words of a document start no shingle, but for the first word of a short one.
    num_rest = np.where(num_words > 0, np.minimum(size, num_words) - 1, 0)
    starts_one = np.ones(len(hashes), bool)
    starts_one[ranges(offsets[1:] - num_rest, num_rest)] = False
    chosen = _mixed(combined[starts_one]) >> np.uint64(32)
    return unique_in_groups(
        np.repeat(np.arange(len(num_words)), num_words - num_rest), chosen, len(num_words)
    )


def sequence_hashes(hashes: Array, offsets: Array) -> Array:
    """Return a hash of the words of each document in their order, (documents, 2) uint64: 128 bits."""
    result = np.zeros((len(offsets) - 1, 2), np.uint64)
    num_words = np.diff(offsets)
    filled = np.flatnonzero(num_words)
    if len(filled):
        length = 1 << (len(hashes) - 1).bit_length()  # few different lengths, so that they are kept
        for half in range(2):
            powers, inverses = _powers(f"word {half}", length)
            sums = np.add.reduceat(hashes * powers[: len(hashes)], offsets[filled])
            result[filled, half] = _mixed(
                sums * inverses[offsets[filled]] + num_words[filled].astype(np.uint64)
            )
    return result


def unique_in_groups(groups: Array, values: Array, num_groups: int) -> tuple[Array, Array]:
    """Return the values of each group (uint32, ascending, each once) and the groups' offsets."""
    keyed = (groups.astype(np.uint64) << np.uint64(32)) | values.astype(np.uint64)
    keyed.sort()
    keyed = keyed[np.concatenate([np.ones(min(len(keyed), 1), bool), keyed[1:] != keyed[:-1]])]
    counts = np.bincount((keyed >> np.uint64(32)).astype(np.int64), minlength=num_groups)
    return keyed.astype(np.uint32), np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def minhash(values: Array, offsets: Array, num_permutations: int, seed: int) -> Array:
    """Return the MinHash signature of each set, (sets, num_permutations) uint32; all ones of an empty one."""
    result = np.full((num_permutations, len(offsets) - 1), 2**32 - 1, np.uint32)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        starts, permuted = offsets[filled], np.empty_like(values)
        smallest = np.empty(len(filled), np.uint32)
        multipliers = _odd_numbers(f"minhash {seed}", num_permutations).astype(np.uint32)
        for number, multiplier in enumerate(multipliers):
            np.multiply(values, multiplier, out=permuted)
            result[number, filled] = np.minimum.reduceat(permuted, starts, out=smallest)
    return np.ascontiguousarray(result.T)


def band_keys(signatures: Array, num_bands: int) -> Array:
    """Return a key for each band of each signature, (sets, num_bands) uint64; `BAND_BITS` number the band."""
    shape = (len(signatures), num_bands, signatures.shape[1] // num_bands)
    banded = signatures.reshape(shape).astype(np.uint64)
    combined = (banded * _odd_numbers("band", banded.shape[2])).sum(axis=2, dtype=np.uint64)
    return numbered(_mixed(combined), np.arange(num_bands, dtype=np.uint64))


def numbered(keys: Array, bands: Array | int) -> Array:
    """Return keys with their lowest bits replaced by the number of a band."""
    return (keys & ~np.uint64(2**BAND_BITS - 1)) | np.asarray(bands, np.uint64)


def ranges(starts: Array, lengths: Array) -> Array:
    """Return the indices of many ranges, one after the other.

    >>> ranges(np.array([5, 9]), np.array([2, 1])).tolist()
    [5, 6, 9]
    """
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


# ---- words


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut into runs of about `CHUNK_CHARACTERS`; a longer text is a run by itself."""
    start, size = 0, 0
    for number, text in enumerate(texts):
        if size and size + len(text) > CHUNK_CHARACTERS:
            yield texts[start:number]
            start, size = number, 0
        size += len(text) + 1
    if size:
        yield texts[start:]


def _word_hashes_of_chunk(texts: Sequence[str]) -> tuple[Array, Array]:
    """Return the hashes of the words of these texts, and how many words each has."""
    joined = "\n".join(texts)
    if joined.isascii():
        codes, starts = _ascii_letters(joined)
    else:
        texts = [_folded(text) for text in texts]
        codes, starts = _letters("\n".join(texts))
    ends = np.cumsum([len(text) + 1 for text in texts])
    counts = np.diff(np.searchsorted(starts, ends), prepend=0)
    if not len(starts):
        return np.zeros(0, np.uint64), counts
    powers, inverses = _powers("letter", max(len(codes), CHUNK_CHARACTERS))
    sums = np.zeros(len(codes) + 1, np.uint64)
    terms = codes.astype(np.uint64)
    terms *= powers[: len(codes)]
    np.cumsum(terms, out=sums[1:])
    before = sums[starts]
    after = np.append(before[1:], sums[-1])
    return _mixed((after - before) * inverses[starts]), counts


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def _ascii_letters(text: str) -> tuple[Array, Array]:
    """Return the code point of each letter of a word, 0 for other characters; and where words start."""
    codes = np.frombuffer(text.encode().translate(_ascii_table()), np.uint8)
    inside = codes != 0
    starts = inside.copy()
    np.greater(inside[1:], inside[:-1], out=starts[1:])
    return codes, np.flatnonzero(starts)


@functools.cache
def _ascii_table() -> bytes:
    """What each ASCII character becomes: a letter in lower case, or 0."""
    return bytes(ord(chr(code).lower()) if code < 128 and words(chr(code)) else 0 for code in range(256))


def _letters(text: str) -> tuple[Array, Array]:
    """The same for folded text of any script, where characters may be words by themselves."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    classes = _classes(codes)
    letters = classes == _LETTER
    starts = classes == _WORD
    starts |= letters
    starts[1:] &= ~(letters[1:] & letters[:-1])
    return codes * (classes != _NONE), np.flatnonzero(starts)


def _classes(codes: Array) -> Array:
    table = _class_table()
    found = table.take(codes)
    if found.max(initial=0) == _UNKNOWN:
        for page in np.unique(codes[found == _UNKNOWN] // _PAGE).tolist():
            for code in range(page * _PAGE, (page + 1) * _PAGE):
                table[code] = (_NONE, _LETTER, _WORD)[len(words(chr(code) * 2))]
        found = table.take(codes)
    return found


@functools.cache
def _class_table() -> Array:
    """The class of every code point, filled page by page as they are met: most scripts never are."""
    return np.full(0x110000, _UNKNOWN, np.uint8)


# ---- fixed numbers


def _mixed(values: Array) -> Array:
    """Return 64-bit numbers in which every bit depends on every bit of the input (xor-shift-multiply)."""
    multiplier = np.uint64(0xD6E8FEB86659FD93)
    for _ in range(2):
        values = (values ^ (values >> np.uint64(32))) * multiplier
    return values ^ (values >> np.uint64(32))


@functools.cache
def _odd_numbers(name: str, count: int) -> Array:
    """Return `count` odd 64-bit numbers that depend on nothing but the name."""
    drawn = hashlib.shake_256(name.encode()).digest(8 * count)
    return np.frombuffer(drawn, "<u8").astype(np.uint64) | np.uint64(1)


@functools.lru_cache(maxsize=8)
def _powers(name: str, length: int) -> tuple[Array, Array]:
    """Return the powers 0 to length - 1, modulo 2^64, of an odd number of this name and of its inverse."""
    base = int(_odd_numbers(name, 1)[0])
    result = []
    for factor in (base, pow(base, -1, 2**64)):
        powers = np.full(length, factor, np.uint64)
        powers[0] = 1
        result.append(np.cumprod(powers))
    return result[0], result[1]
