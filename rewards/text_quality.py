"""Text quality: how much a document reads like natural text of its own corpus, and not like a damaged copy of
it.

Score: mean probability, over the document's stretches of about 600 characters, that a stretch is natural and
not one of the corruptions of `rewards.corruptions`, both taken as equally likely. Range 0 to 1, higher is
better, no unit. Uncertainty: standard deviation over the stretches; null where there is one only.

A linear classifier of hashed n-grams and a few measures of shape, trained on the corpus itself. Every
document is scored by a model that did not see it (`rewards.crossfit`).

What it cannot do: it knows nothing of truth, usefulness or style, and it takes the corpus as it is for
natural, so what is common there passes. Text made of whole sentences that do not belong together is hardly
noticed (the report's `auc_by_corruption` says how well each kind is). Languages, code and tables that are
rare in the corpus score low for being rare. Scores of different corpora, languages or formats are therefore
not comparable: select inside a stratum.

Errors: `too_short` (fewer than 100 characters), `too_few_documents` (fewer than 20 documents with enough text
to train on; a small folder is then not scored rather than refused).
"""

import dataclasses
import zlib
from typing import Any

import numpy as np
import pyarrow as pa

from rewards import calibrate, corruptions, crossfit, ngrams
from rewards.errors import StateError
from rewards.spec import TextQualitySpec
from rewards.state import UNTRAINED, Fitted, from_bytes, to_bytes
from schemas import scores

SCORER = "text_quality"
VERSION = "1"

CHUNK_CHARS = 600
MIN_CHARS = 100
MIN_DOCUMENTS = 20
MAX_CHUNKS_PER_DOCUMENT = 4  # for training: a book must not outvote the other documents
_BATCH_SIZE = 64
_NUM_BINS = 16
_NUM_SHAPES = 7
_BETA_1, _BETA_2 = 0.9, 0.999  # Adam
_SHAPE_WEIGHT = 1.0  # the norm of all n-grams of a stretch together

FEATURES = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)


@dataclasses.dataclass(frozen=True)
class _Example:
    """One stretch of text as the classifier sees it; `kind` is "natural" or the corruption."""

    fold: int
    kind: str
    rows: np.ndarray
    weights: np.ndarray


def features(batch: pa.RecordBatch, spec: TextQualitySpec) -> pa.RecordBatch:
    """Return the text of each document, its text segments joined by empty lines."""
    texts = [
        "\n\n".join(s["text"] for s in segments if s["kind"] == "text" and s["text"].strip())
        for segments in batch["segments"].to_pylist()
    ]
    return pa.record_batch([batch["doc_id"], pa.array(texts, FEATURES.field("text").type)], schema=FEATURES)


def fit(features: pa.Table, spec: TextQualitySpec) -> Fitted:
    """Train one classifier a fold on natural and corrupted stretches, and calibrate them on what they have
    not seen.
    """
    long_enough = {
        doc_id: text
        for doc_id, text in zip(features["doc_id"].to_pylist(), features["text"].to_pylist(), strict=True)
        if len(text) >= MIN_CHARS
    }
    doc_ids = crossfit.sampled(long_enough, spec.max_documents, spec.seed)
    num_folds = crossfit.num_folds(spec.held_out_frac)
    folds = {doc_id: crossfit.fold_of(doc_id, num_folds, spec.seed) for doc_id in doc_ids}
    report: dict[str, Any] = {
        "scorer": SCORER,
        "trained": False,
        "num_documents": len(doc_ids),
        "num_too_short": features.num_rows - len(long_enough),
    }
    if len(doc_ids) < MIN_DOCUMENTS or len(set(folds.values())) < 2:
        return Fitted(UNTRAINED, {**report, "reason": "too_few_documents"})
    examples = _examples({doc_id: long_enough[doc_id] for doc_id in doc_ids}, folds, spec)
    models = np.stack([_train([e for e in examples if e.fold != fold], spec) for fold in range(num_folds)])
    logits = np.array([_logit(models[e.fold], e.rows, e.weights) for e in examples])
    kinds = np.array([e.kind for e in examples])
    natural, corrupted = logits[kinds == "natural"], logits[kinds != "natural"]
    by_kind = {kind: calibrate.auc(natural, logits[kinds == kind]) for kind in corruptions.KINDS}
    report |= {
        "trained": True,
        "num_models": num_folds,
        "num_natural": len(natural),
        "num_corrupted": len(corrupted),
        "auc": calibrate.auc(natural, corrupted),
        "auc_by_corruption": by_kind,
        "num_by_corruption": {kind: int((kinds == kind).sum()) for kind in corruptions.KINDS},
    }
    platt = calibrate.fit_platt(natural, corrupted)
    return Fitted(to_bytes({"models": models, "platt": platt}), report)


def score(features: pa.RecordBatch, state: bytes, spec: TextQualitySpec) -> pa.RecordBatch:
    """Score each document; one row a document.

    Raises:
        StateError: the state was not made by `fit` with this spec.
    """
    model = None if state == UNTRAINED else _loaded(state, spec)
    rows = []
    for doc_id, text in zip(features["doc_id"].to_pylist(), features["text"].to_pylist(), strict=True):
        row = dict.fromkeys(scores.SCHEMA.names) | {"doc_id": doc_id, "scorer": SCORER, "version": VERSION}
        if len(text) < MIN_CHARS:
            row["error"] = "too_short"
        elif model is None:
            row["error"] = "too_few_documents"
        else:
            weights = model["models"][crossfit.fold_of(doc_id, len(model["models"]), spec.seed)]
            logits = np.array([_logit(weights, *_seen(chunk, spec.num_buckets)) for chunk in chunks(text)])
            natural = calibrate.probability(logits, model["platt"])
            row |= {
                "score": float(natural.mean()),
                "uncertainty": float(natural.std()) if len(natural) > 1 else None,
            }
        rows.append(row)
    return pa.RecordBatch.from_pylist(rows, schema=scores.SCHEMA)


def chunks(text: str) -> list[str]:
    """Return a text cut into equal stretches of about `CHUNK_CHARS`, at white space where there is some
    nearby.
    """
    num_chunks = max(1, round(len(text) / CHUNK_CHARS))
    cuts = [0]
    for number in range(1, num_chunks):
        target = len(text) * number // num_chunks
        space = text.find(" ", target, target + 30)
        cuts.append(space if space >= 0 else target)
    return [text[start:end] for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def _examples(texts: dict[str, str], folds: dict[str, int], spec: TextQualitySpec) -> list[_Example]:
    """Return each chosen stretch twice: as it is, and as a corrupted copy of a random kind."""
    doc_ids, examples = list(texts), []
    for number, (doc_id, text) in enumerate(texts.items()):
        rng = crossfit.rng_of(doc_id, "corrupt", spec.seed)
        others = [texts[doc_ids[i]] for i in (number + rng.integers(1, len(doc_ids), size=32)) % len(doc_ids)]
        stretches = chunks(text)
        for index in sorted(rng.permutation(len(stretches))[:MAX_CHUNKS_PER_DOCUMENT]):
            kind = corruptions.KINDS[int(rng.integers(len(corruptions.KINDS)))]
            copy = corruptions.corrupt(kind, stretches[index], others, rng)
            if ngrams.normalised(copy) != ngrams.normalised(stretches[index]):
                examples += [
                    _Example(folds[doc_id], label, *_seen(shown, spec.num_buckets))
                    for label, shown in (("natural", stretches[index]), (kind, copy))
                ]
    return examples


def _seen(text: str, num_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the classifier's weights that a stretch adds up, and how much each counts."""
    plain = ngrams.normalised(text)
    hashed = ngrams.buckets(plain, num_buckets)
    binned = np.clip((np.array(_shapes(plain)) * _NUM_BINS).astype(np.int64), 0, _NUM_BINS - 1)
    shape_rows = num_buckets + np.arange(_NUM_SHAPES) * _NUM_BINS + binned
    weights = np.concatenate(
        [np.full(len(hashed), 1 / np.sqrt(max(1, len(hashed)))), np.full(_NUM_SHAPES, _SHAPE_WEIGHT)]
    )
    return np.concatenate([hashed, shape_rows]), weights.astype(np.float32)


def _shapes(text: str) -> tuple[float, ...]:
    """Return measures between 0 and 1 that n-grams do not show: repetition, variety, length of words,
    letters.
    """
    words = ngrams.words(text)
    long_words = [word for word in words if len(word) >= 5]
    runs = [text[start : start + 20] for start in range(0, len(text) - 20)]
    num_words, num_chars = max(1, len(words)), max(1, len(text))
    return (
        len(zlib.compress(text.encode(), 6)) / max(1, len(text.encode())),
        len(set(words)) / num_words,
        1 - len(set(long_words)) / max(1, len(long_words)),
        sum(map(len, words)) / num_words / 10,
        sum(len(word) == 1 for word in words) / num_words,
        sum(map(str.isalpha, text)) / num_chars,
        (1 - len(set(runs)) / max(1, len(runs))) ** 0.5,
    )


def _train(examples: list[_Example], spec: TextQualitySpec) -> np.ndarray:
    """Return the weights of a logistic regression, trained by Adam: one a bucket and bin, then the offset."""
    model = np.zeros(_num_weights(spec))
    mean, square = np.zeros_like(model), np.zeros_like(model)
    rng = np.random.default_rng(spec.seed)
    batches = [
        order[start : start + _BATCH_SIZE]
        for order in (rng.permutation(len(examples)) for _ in range(spec.num_epochs))
        for start in range(0, len(order), _BATCH_SIZE)
    ]
    for step, batch in enumerate(batches, start=1):
        gradient = _gradient(model, [examples[i] for i in batch])
        mean += (1 - _BETA_1) * (gradient - mean)
        square += (1 - _BETA_2) * (gradient**2 - square)
        update = mean / (1 - _BETA_1**step) / (np.sqrt(square / (1 - _BETA_2**step)) + 1e-8)
        model -= spec.learning_rate * (1 - step / len(batches)) * update
    return model.astype(np.float32)


def _gradient(model: np.ndarray, batch: list[_Example]) -> np.ndarray:
    """Return the gradient of the mean cross-entropy of a batch."""
    rows, weights = np.concatenate([e.rows for e in batch]), np.concatenate([e.weights for e in batch])
    lengths = np.array([len(e.rows) for e in batch])
    logits = np.add.reduceat(model[rows] * weights, np.cumsum(lengths) - lengths) + model[-1]
    is_natural = np.array([e.kind == "natural" for e in batch])
    excess = (1 / (1 + np.exp(-logits)) - is_natural) / len(batch)
    gradient = np.bincount(rows, weights=weights * np.repeat(excess, lengths), minlength=len(model))
    gradient[-1] = excess.sum()
    return gradient


def _num_weights(spec: TextQualitySpec) -> int:
    return spec.num_buckets + _NUM_SHAPES * _NUM_BINS + 1


def _logit(model: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> float:
    return float(model[rows] @ weights + model[-1])


def _loaded(state: bytes, spec: TextQualitySpec) -> dict[str, np.ndarray]:
    arrays = from_bytes(state, {"models", "platt"}, SCORER)
    expected = (crossfit.num_folds(spec.held_out_frac), _num_weights(spec))
    if arrays["models"].shape != expected:
        raise StateError(f"state: models of shape {arrays['models'].shape}, this spec makes {expected}")
    return arrays
