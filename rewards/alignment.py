"""Alignment: how well a picture fits the text beside it.

Score of a picture: the probability that picture and text are a true pair and not two that were mixed up
between documents, both taken as equally likely. Range 0 to 1, higher is better, no unit. Score of a document
(the row whose segment is null): the mean over its pictures, with their standard deviation as uncertainty
where there are two or more. For a video stretch the picture is its middle frame and the text its transcript.
`rewards.pairs` says which text counts.

Two ways to get there, the same from then on. Without `clip_checkpoint`, a locked ImageNet network looks at
the picture and small heads trained on the corpus' own pairs compare it with the text; each document is judged
by heads that did not see it (`rewards.crossfit`). With it, the given CLIP model compares them, and only the
probability curve is fitted.

What it cannot do: the small model sorts matched from random captions far better than chance and far worse
than a CLIP model; it knows the objects of ImageNet and the words of this corpus, cannot read text in
pictures, and hardly tells variants of one picture apart. Scores of different languages, collections or models
are not comparable: select inside a stratum.

Errors: `no_picture` (a document of text only), `no_medium` (the picture could not be had), `no_text`,
`decode_failed`, `too_few_pairs` (below 50, or too few to hold some out: nothing is trained, and the documents
are left unscored rather than refused), `no_pair` (a document whose pictures failed for different reasons).
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rewards import calibrate, crossfit, heads, towers
from rewards.errors import StateError
from rewards.pairs import Pair, pairs
from rewards.spec import AlignmentSpec
from rewards.state import UNTRAINED, Fitted, from_bytes, to_bytes
from schemas import scores

SCORER = "alignment"
VERSION = "1"

MIN_PAIRS = 50
MIN_HELD_OUT = 20
_NUM_NEGATIVES = 20  # random texts of other documents, for each pair

PAIR = pa.struct(
    [
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("media_id", pa.string()),
        pa.field("text", pa.large_string()),
        pa.field("text_from", pa.string()),
        pa.field("feature", pa.list_(pa.float32())),  # of the picture
        pa.field("text_feature", pa.list_(pa.float32())),  # of the text, with CLIP only
        pa.field("error", pa.string()),
    ]
)
# One row a document, so that batches may be split anywhere.
FEATURES = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("pairs", pa.list_(PAIR), nullable=False),
    ]
)
_ENCODER_ARRAYS = {"picture_mean", "picture_map", "text_weight", "text_map"}
_HEAD_ARRAYS = {"picture_heads", "text_heads"}

Row = dict[str, Any]


def features(batch: pa.RecordBatch, spec: AlignmentSpec) -> pa.RecordBatch:
    """Return the pairs of each document with the features of their pictures; the heavy part, one picture
    after another.

    Raises:
        CheckpointError: the CLIP model cannot be loaded.
    """
    seen: dict[str, np.ndarray | None] = {}
    rows = [
        [_row(pair, seen, spec) for pair in pairs(segments, media)]
        for segments, media in zip(batch["segments"].to_pylist(), batch["media"].to_pylist(), strict=True)
    ]
    return pa.record_batch([batch["doc_id"], pa.array(rows, FEATURES.field("pairs").type)], schema=FEATURES)


def fit(features: pa.Table, spec: AlignmentSpec) -> Fitted:
    """Train the heads, one pair of heads a fold, and fit the probability curve on pairs they have not seen.

    Held-out pairs whose picture is also in a document that the heads saw are left out of the curve and the
    report.
    """
    rows = [row for row in _flat(features) if row["error"] is None]
    wanted = set(crossfit.sampled((_key(row) for row in rows), spec.max_pairs, spec.seed))
    rows = sorted(
        (row for row in rows if _key(row) in wanted), key=lambda row: (row["doc_id"], row["segment"])
    )
    num_folds = crossfit.num_folds(spec.held_out_frac)
    folds = np.array([crossfit.fold_of(row["doc_id"], num_folds, spec.seed) for row in rows])
    held_out = _held_out(rows, folds, num_folds)
    report: Row = {
        "scorer": SCORER,
        "trained": False,
        "model": spec.clip_model or "efficientnet-lite0",
        "num_models": 0 if spec.clip_model else num_folds,
        "num_pairs": len(rows),
        "num_documents": len({row["doc_id"] for row in rows}),
    }
    if len(rows) < MIN_PAIRS or sum(map(len, held_out)) < MIN_HELD_OUT:
        return Fitted(UNTRAINED, {**report, "num_models": 0, "reason": "too_few_pairs"})
    arrays = {} if spec.clip_model else _trained(rows, folds, num_folds, spec)
    judged = [_judged(rows, held, fold, arrays, spec) for fold, held in enumerate(held_out) if len(held)]
    matched, random, ranks = (np.concatenate([part[i] for part in judged]) for i in range(3))
    if not len(random):
        return Fitted(UNTRAINED, {**report, "num_models": 0, "reason": "too_few_pairs"})
    text_from = np.array([rows[i]["text_from"] for held in held_out for i in held])
    report |= {
        "trained": True,
        "num_held_out": len(matched),
        "auc": calibrate.auc(matched, random),
        "auc_by_text": {
            kind: calibrate.auc(matched[text_from == kind], random)
            for kind in sorted(set(text_from.tolist()))
        },
        "recall_at_1": float((ranks < 1).mean()),
        "recall_at_10": float((ranks < 10).mean()),
        "num_candidates": int(np.mean([len(part[0]) for part in judged])),
    }
    return Fitted(to_bytes({**arrays, "platt": calibrate.fit_platt(matched, random)}), report)


def score(features: pa.RecordBatch, state: bytes, spec: AlignmentSpec) -> pa.RecordBatch:
    """Score each picture of each document, then the document: its rows follow each other, that of the
    document last.

    Raises:
        StateError: the state was not made by `fit` with this spec.
    """
    arrays = None if state == UNTRAINED else _loaded(state, spec)
    of_document: dict[int, list[Row]] = {}
    for row in _flat(features):
        of_document.setdefault(row["document"], []).append(row)
    result: list[Row] = []
    for number, doc_id in enumerate(features["doc_id"].to_pylist()):
        rows = of_document.get(number, [])
        scored = [_pair_score(row, arrays, spec) for row in rows]
        result += [
            _score_row(doc_id, row["segment"], value, None, error)
            for row, (value, error) in zip(rows, scored, strict=True)
        ]
        result.append(_document_row(doc_id, scored))
    return pa.RecordBatch.from_pylist(result, schema=scores.SCHEMA)


def _row(pair: Pair, seen: dict[str, np.ndarray | None], spec: AlignmentSpec) -> Row:
    """Return a pair as a features row; pictures that occur again are not looked at again."""
    row = {
        "segment": pair.segment,
        "media_id": pair.media_id,
        "text": pair.text,
        "text_from": pair.text_from,
        "feature": None,
        "text_feature": None,
        "error": pair.error,
    }
    if pair.error is not None or pair.data is None or pair.media_id is None or pair.text is None:
        return row
    picture_tower, text_tower = _towers(spec)
    if pair.media_id not in seen:
        try:
            image = towers.decode(pair.data)
        except Exception:  # one bad picture: broken files make Pillow raise nearly anything
            image = None
        seen[pair.media_id] = None if image is None else picture_tower(image)
    if seen[pair.media_id] is None:
        return row | {"error": "decode_failed"}
    return row | {
        "feature": seen[pair.media_id],
        "text_feature": text_tower(pair.text) if text_tower else None,
    }


def _towers(spec: AlignmentSpec) -> tuple[towers.Tower, Any]:
    if spec.clip_model is not None and spec.clip_checkpoint is not None:
        return towers.clip(spec.clip_model, spec.clip_checkpoint)
    return towers.efficientnet, None


def _flat(features: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return all pairs as rows with their document's id and number, the features as arrays."""
    rows: list[Row] = []
    batches = features.to_batches() if isinstance(features, pa.Table) else [features]
    for batch in batches:
        structs, parents = batch["pairs"].flatten(), pc.list_parent_indices(batch["pairs"]).to_pylist()
        plain = {
            name: structs.field(name).to_pylist()
            for name in ("segment", "media_id", "text", "text_from", "error")
        }
        for i, parent in enumerate(parents):
            row = {name: values[i] for name, values in plain.items()}
            row |= {name: _vector(structs.field(name)[i]) for name in ("feature", "text_feature")}
            rows.append(row | {"document": parent, "doc_id": batch["doc_id"][parent].as_py()})
    return rows


def _vector(value: pa.ListScalar) -> np.ndarray | None:
    return value.values.to_numpy() if value.is_valid else None


def _key(row: Row) -> str:
    return f"{row['doc_id']}/{row['segment']}"


def _held_out(rows: list[Row], folds: np.ndarray, num_folds: int) -> list[np.ndarray]:
    """Return, for each fold, the pairs of which its heads have seen neither the document nor the picture.

    A fold with a single such pair has nothing to compare it with and gets none; no fold gets any when some
    heads would have too few pairs to train on.
    """
    media_ids = np.array([row["media_id"] for row in rows])
    held_out = []
    for fold in range(num_folds):
        trained_on = media_ids[folds != fold]
        held = np.flatnonzero((folds == fold) & ~np.isin(media_ids, trained_on))
        held_out.append(held if len(held) > 1 else held[:0])
        if len(trained_on) < MIN_HELD_OUT:
            return []
    return held_out


def _trained(
    rows: list[Row], folds: np.ndarray, num_folds: int, spec: AlignmentSpec
) -> dict[str, np.ndarray]:
    pictures = np.stack([row["feature"] for row in rows])
    encoders = heads.fit_encoders(pictures, [row["text"] for row in rows], spec.num_buckets, spec.seed)
    encoded, said = encoders.pictures(pictures), np.stack([encoders.text(row["text"]) for row in rows])
    identities = [(row["media_id"], row["text"]) for row in rows]
    trained = []
    for fold in range(num_folds):
        seen = np.flatnonzero(folds != fold)
        trained.append(
            heads.fit_heads(
                encoded[seen],
                said[seen],
                [identities[i] for i in seen],
                size=spec.embedding_size,
                num_epochs=spec.num_epochs,
                learning_rate=spec.learning_rate,
                seed=spec.seed,
            )
        )
    return {
        "picture_mean": encoders.picture_mean_F,
        "picture_map": encoders.picture_map_FE,
        "text_weight": encoders.text_weight_B,
        "text_map": encoders.text_map_BE,
        "picture_heads": np.stack([pair[0] for pair in trained]),
        "text_heads": np.stack([pair[1] for pair in trained]),
    }


def _judged(
    rows: list[Row], held: np.ndarray, fold: int, arrays: dict[str, np.ndarray], spec: AlignmentSpec
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cosines of held-out pairs, of random pairs across documents, and how many other texts beat
    the true one.
    """
    chosen = [rows[i] for i in held]
    vectors = [_vectors(row, arrays, fold) for row in chosen]
    cosines = np.stack([picture for picture, _ in vectors]) @ np.stack([text for _, text in vectors]).T
    matched = cosines.diagonal().copy()
    texts, doc_ids = np.array([row["text"] for row in chosen]), np.array([row["doc_id"] for row in chosen])
    other_text = texts[:, None] != texts
    strange = other_text & (doc_ids[:, None] != doc_ids)
    rng = np.random.default_rng((spec.seed, fold))
    random = [rng.permutation(cosines[i, strange[i]])[:_NUM_NEGATIVES] for i in range(len(chosen))]
    return matched, np.concatenate(random), ((cosines > matched[:, None]) & other_text).sum(1)


def _vectors(row: Row, arrays: dict[str, np.ndarray], fold: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a pair's picture and text in the space where they are compared, both of length 1."""
    if "text_heads" not in arrays:
        return row["feature"], row["text_feature"]
    encoders = heads.Encoders(
        *(arrays[name] for name in ("picture_mean", "picture_map", "text_weight", "text_map"))
    )
    return (
        heads.project(encoders.pictures(row["feature"]), arrays["picture_heads"][fold]),
        heads.project(encoders.text(row["text"]), arrays["text_heads"][fold]),
    )


def _pair_score(
    row: Row, arrays: dict[str, np.ndarray] | None, spec: AlignmentSpec
) -> tuple[float | None, str | None]:
    if row["error"] is not None:
        return None, row["error"]
    if arrays is None:
        return None, "too_few_pairs"
    fold = crossfit.fold_of(row["doc_id"], crossfit.num_folds(spec.held_out_frac), spec.seed)
    picture, text = _vectors(row, arrays, fold)
    return float(calibrate.probability(picture @ text, arrays["platt"])), None


def _document_row(doc_id: str, scored: list[tuple[float | None, str | None]]) -> Row:
    values = [value for value, _ in scored if value is not None]
    if values:
        deviation = float(np.std(values)) if len(values) > 1 else None
        return _score_row(doc_id, None, float(np.mean(values)), deviation, None)
    errors = {error for _, error in scored}
    if len(errors) > 1:
        return _score_row(doc_id, None, None, None, "no_pair")
    return _score_row(doc_id, None, None, None, errors.pop() if errors else "no_picture")


def _score_row(
    doc_id: str, segment: int | None, value: float | None, uncertainty: float | None, error: str | None
) -> Row:
    return {
        "doc_id": doc_id,
        "segment": segment,
        "scorer": SCORER,
        "version": VERSION,
        "score": value,
        "uncertainty": uncertainty,
        "error": error,
    }


def _loaded(state: bytes, spec: AlignmentSpec) -> dict[str, np.ndarray]:
    trained = set() if spec.clip_model else _ENCODER_ARRAYS | _HEAD_ARRAYS
    arrays = from_bytes(state, trained | {"platt"}, SCORER)
    if trained:
        made = (len(arrays["text_heads"]), len(arrays["text_weight"]))
        expected = (crossfit.num_folds(spec.held_out_frac), spec.num_buckets)
        if made != expected:
            raise StateError(f"state: (heads, buckets) are {made}, this spec makes {expected}")
    return arrays
