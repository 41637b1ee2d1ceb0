"""Select: scores to document weights, under the policy of a spec.

Owns what a score means for training: weight 0 leaves the document out, and `reason` says why; any other
weight multiplies its loss. Scores are compared inside a stratum only. Equal scores are told apart by doc_id,
so the result does not depend on the order of rows.
"""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rewards.errors import SelectError
from rewards.spec import SelectSpec
from schemas import check

VERSION = "1"

STRATA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("stratum", pa.string(), nullable=False),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("weight", pa.float32(), nullable=False),
        pa.field("reason", pa.string()),  # where the weight is 0: below_threshold, below_top_frac, null_score
    ]
)
KEEP_FRAC, TEMPERATURE, FLOOR = 0.9, 1.0, 0.1  # where the spec leaves them unset
_SMALLEST_WEIGHT = 1e-6  # temperature weighs documents, it never drops one

Scores = dict[str, float]


def select(scores: pa.Table, strata: pa.Table, spec: SelectSpec) -> pa.Table:
    """Return the weight of each document of `strata`, in its order.

    Only whole-document scores of the spec's scorer count. A document whose score is null or missing takes no
    part in the comparison; it gets weight 1 or 0 as `null_score` says. With `threshold` and `top_frac` the
    others get 1 or 0, and `top_frac` keeps at least one of each stratum. With `temperature` the weights of a
    stratum have mean 1 and the lowest is the floor.

    Raises:
        SchemaError: `strata` has other columns.
        SelectError: the scorer has no rows, or two for one document.
    """
    check.matches(strata, STRATA, "strata")
    known = _scores_of(scores, spec.scorer)
    doc_ids = strata["doc_id"].to_pylist()
    by_stratum: dict[str, Scores] = {}
    for doc_id, stratum in zip(doc_ids, strata["stratum"].to_pylist(), strict=True):
        if known.get(doc_id) is not None:
            by_stratum.setdefault(stratum, {})[doc_id] = known[doc_id]
    weights: dict[str, float] = {}
    for of_stratum in by_stratum.values():
        weights |= _weights(of_stratum, spec)
    when_null = 1.0 if spec.null_score == "keep" else 0.0
    column = [weights.get(doc_id, when_null) for doc_id in doc_ids]
    reason = "below_threshold" if spec.method == "threshold" else "below_top_frac"
    reasons = [
        None if weight else (reason if doc_id in weights else "null_score")
        for doc_id, weight in zip(doc_ids, column, strict=True)
    ]
    return pa.table([doc_ids, column, reasons], schema=SCHEMA)


def _scores_of(scores: pa.Table, scorer: str) -> Scores:
    """Return one scorer's document scores that are not null, by doc_id."""
    mine = scores.filter(pc.equal(scores["scorer"], scorer))
    if scores.num_rows and not mine.num_rows:
        others = sorted(pc.unique(scores["scorer"]).to_pylist())
        raise SelectError(f"scorer: {scorer!r} has no scores; the table has {others}")
    mine = mine.filter(pc.is_null(mine["segment"]))
    counts = pc.value_counts(mine["doc_id"])
    twice = [entry["values"] for entry in counts.to_pylist() if entry["counts"] > 1]
    if twice:
        raise SelectError(f"scores: document {min(twice)} has more than one score of {scorer!r}")
    pairs = zip(mine["doc_id"].to_pylist(), mine["score"].to_pylist(), strict=True)
    return {doc_id: score for doc_id, score in pairs if score is not None}


def _weights(of_stratum: Scores, spec: SelectSpec) -> dict[str, float]:
    if spec.method == "threshold":
        threshold = spec.threshold
        assert threshold is not None
        return {doc_id: float(score >= threshold) for doc_id, score in of_stratum.items()}
    best_first = sorted(of_stratum, key=lambda doc_id: (-of_stratum[doc_id], doc_id))
    if spec.method == "top_frac":
        frac = KEEP_FRAC if spec.keep_frac is None else spec.keep_frac
        num_kept = math.ceil(
            frac * len(best_first) - 1e-9
        )  # 0.9 of 10 is 9, whatever the floating point says
        return {doc_id: float(place < num_kept) for place, doc_id in enumerate(best_first)}
    temperature = TEMPERATURE if spec.temperature is None else spec.temperature
    floor = max(FLOOR if spec.floor is None else spec.floor, _SMALLEST_WEIGHT)
    values = np.array([of_stratum[doc_id] for doc_id in best_first], dtype=np.float64)
    return dict(zip(best_first, _tempered(values, temperature, floor).tolist(), strict=True))


def _tempered(descending: np.ndarray, temperature: float, floor: float) -> np.ndarray:
    """Return exp(score / temperature), score in standard deviations, scaled so that the mean is 1 and none is
    below the floor.
    """
    deviation = descending.std()
    if deviation < 1e-9:
        return np.ones_like(descending)
    raw = np.exp((descending - descending[0]) / (deviation * temperature))
    for num_free in range(len(raw), 0, -1):  # the others, from the lowest score up, lie at the floor
        scale = (len(raw) - (len(raw) - num_free) * floor) / raw[:num_free].sum()
        if raw[num_free - 1] * scale >= floor:
            break
    return np.maximum(raw * scale, floor)
