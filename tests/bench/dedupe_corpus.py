"""The corpus of the text dedupe benchmark: documents with planted near-duplicates of known similarity.

150 to 450 words each, drawn by Zipf's law from a vocabulary of 40,000; 30 % are copies of another one in
which each word was drawn anew with probability 0, 1, 2, 5 or 10 %. The similarity of a planted pair is the
exact Jaccard similarity of their 5-word shingles. The same number of documents is the same corpus everywhere.
"""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas import document, shard
from tests import make

VOCABULARY = 40_000
EDIT_RATES = (0.0, 0.01, 0.02, 0.05, 0.1)
COPIED = 0.3
SHINGLE_WORDS = 5
BINS = {"from 0.9": (0.9, 1.01), "0.8 to 0.9": (0.8, 0.9), "0.6 to 0.8": (0.6, 0.8), "below 0.6": (0.0, 0.6)}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Texts, and the planted pairs as (original, copy, similarity)."""

    texts: list[str]
    planted: list[tuple[int, int, float]]

    def bins(self) -> dict[str, list[int]]:
        """Return the numbers of the planted pairs by similarity."""
        return {
            name: [i for i, (_, _, similarity) in enumerate(self.planted) if low <= similarity < high]
            for name, (low, high) in BINS.items()
        }


def corpus(num_documents: int, cache: Path) -> Corpus:
    """Make the corpus, or read it where it was made before."""
    path = cache / f"dedupe-{num_documents}.json"
    if not path.exists():
        made = _make(num_documents)
        cache.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(made)))
    return Corpus(**json.loads(path.read_text()))


def similarity(left: str, right: str) -> float:
    """Return the exact Jaccard similarity of two texts' shingles."""
    a, b = _shingles(left), _shingles(right)
    return len(a & b) / len(a | b)


def write_step(texts: list[str], order: list[int], rows_per_partition: int, path: Path) -> None:
    """Write the documents in this order as a finished step; their uri is their number."""
    files = []
    for number, start in enumerate(range(0, len(order), rows_per_partition)):
        rows = [
            make.document_row([make.text(texts[i])], str(i))
            for i in order[start : start + rows_per_partition]
        ]
        table = pa.Table.from_pylist(rows, schema=document.SCHEMA)
        files.append(shard.write_table(str(path / shard.shard_name("documents", number)), table))
    manifest = shard.Manifest(path.name, "1", {}, [], len(order), len(order), {}, {}, files)
    shard.write_manifest(str(path), manifest)


def _make(num_documents: int) -> Corpus:
    rng = np.random.default_rng(1)
    words = _vocabulary()
    chances = np.cumsum(1 / np.arange(1, VOCABULARY + 1))

    def draw(count: int) -> np.ndarray:
        return np.searchsorted(chances, rng.random(count) * chances[-1])

    num_originals = round(num_documents * (1 - COPIED))
    documents = [draw(int(rng.integers(150, 451))) for _ in range(num_originals)]
    sources = rng.integers(0, num_originals, num_documents - num_originals).tolist()
    for source in sources:
        copy = documents[source].copy()
        edited = rng.random(len(copy)) < rng.choice(EDIT_RATES)
        copy[edited] = draw(int(edited.sum()))
        documents.append(copy)
    texts = [" ".join(words[number] for number in numbers.tolist()) for numbers in documents]
    planted = [
        (source, copy, similarity(texts[source], texts[copy]))
        for copy, source in enumerate(sources, num_originals)
    ]
    return Corpus(texts, planted)


def _vocabulary() -> list[str]:
    """Return distinct words of six letters."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ("".join(word) for word in itertools.product(syllables, repeat=3))
    return list(itertools.islice(words, VOCABULARY))


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return set(zip(*(words[place:] for place in range(SHINGLE_WORDS)), strict=False))
