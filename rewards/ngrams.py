"""Hashed n-grams: text to bucket numbers, for the small trained scorers.

Owns what these scorers see of a text: words and pairs of words, and runs of 3 to 5 characters, each hashed to
one of `num_buckets`. Case, digits (all become 0), width variants and white space make no difference.
Characters of scripts written without spaces count as words of their own.
"""

import functools
import re
import unicodedata
import zlib

import numpy as np

_WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # kana and Han: no spaces between words
_WORD = re.compile(rf"[{_WIDE}]|[^\W{_WIDE}]+|[^\w\s]")
_SPACE_BESIDE_WIDE = re.compile(rf"(?<=[{_WIDE}]) | (?=[{_WIDE}])")
_DIGIT = re.compile(r"\d")
_CHARACTER_RUNS = (3, 4, 5)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def normalised(text: str) -> str:
    """Return the text as the n-grams see it: NFKC, lower case, digits as 0, single spaces."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _SPACE_BESIDE_WIDE.sub("", _DIGIT.sub("0", folded))


def words(text: str) -> list[str]:
    """Return the words, punctuation marks and single wide characters of a text, in order."""
    return _WORD.findall(text)


def buckets(text: str, num_buckets: int) -> np.ndarray:
    """Return the bucket numbers (int64) of all n-grams of a normalised text, repeats included; empty for an
    empty text.
    """
    spelled = np.array([_word_hash(word) for word in words(text)], dtype=np.uint64)
    padded = np.frombuffer(f" {text} ".encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    hashes = [_mixed(spelled), _mixed(_runs(spelled, 2))]
    hashes += [_mixed(_runs(padded, length)) for length in _CHARACTER_RUNS] if text else []
    return (np.concatenate(hashes) % np.uint64(num_buckets)).astype(np.int64)


@functools.lru_cache(maxsize=1 << 16)
def _word_hash(word: str) -> int:
    return zlib.crc32(word.encode()) | 1 << 32  # apart from characters, whose code points are small


def _runs(values: np.ndarray, length: int) -> np.ndarray:
    """Return a hash of each run of `length` values; order counts."""
    num_runs = max(0, len(values) - length + 1)
    hashed = np.full(num_runs, length, dtype=np.uint64)
    for offset in range(length):
        hashed = hashed * _PRIME + values[offset : offset + num_runs]
    return hashed


def _mixed(hashed: np.ndarray) -> np.ndarray:
    """Return the hashes with their bits spread, so that the remainder by the number of buckets uses all of
    them.
    """
    spread = (hashed ^ (hashed >> np.uint64(31))) * _MIX
    return spread ^ (spread >> np.uint64(29))
