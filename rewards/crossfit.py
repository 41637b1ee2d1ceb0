"""Cross-fitting: which of several models scores a document, so that none judges a document it was trained on.

A scorer that trains on the corpus it scores would praise what it remembers. The documents are therefore split
in folds by a hash of their id; for each fold a model is trained on all the other folds, and scores this one.
So each score, and each number in the report, is out of sample.
"""

import hashlib
from collections.abc import Iterable

import numpy as np


def num_folds(held_out_frac: float) -> int:
    """Return how many models hold out `held_out_frac` of the documents each, so that each document is held
    out once.
    """
    return max(2, round(1 / held_out_frac))


def fold_of(doc_id: str, num_folds: int, seed: int) -> int:
    """Return the fold of a document, that is the number of the model which has not seen it."""
    return _rank(doc_id, "fold", seed) % num_folds


def sampled(doc_ids: Iterable[str], limit: int, seed: int) -> list[str]:
    """Return at most `limit` of the documents, sorted; which ones depends on their ids and the seed, not on
    order.
    """
    chosen = sorted(set(doc_ids), key=lambda doc_id: _rank(doc_id, "sample", seed))[:limit]
    return sorted(chosen)


def rng_of(doc_id: str, purpose: str, seed: int) -> np.random.Generator:
    """Return a document's own source of chance for one purpose."""
    return np.random.default_rng(_rank(doc_id, purpose, seed))


def _rank(doc_id: str, purpose: str, seed: int) -> int:
    return int.from_bytes(
        hashlib.blake2b(f"{seed}\0{purpose}\0{doc_id}".encode(), digest_size=8).digest(), "big"
    )
