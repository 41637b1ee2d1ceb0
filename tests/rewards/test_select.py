import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rewards.errors import SelectError
from rewards.select import SCHEMA, STRATA, select
from rewards.spec import SelectSpec
from schemas import scores


def score_table(values: dict[str, float | None], scorer: str = "text_quality") -> pa.Table:
    rows = [
        {
            "doc_id": doc_id,
            "segment": None,
            "scorer": scorer,
            "version": "1",
            "score": value,
            "uncertainty": None,
            "error": None if value is not None else "too_short",
        }
        for doc_id, value in values.items()
    ]
    table = pa.Table.from_pylist(rows, schema=scores.SCHEMA)
    scores.validate(table)
    return table


def strata(of_document: dict[str, str]) -> pa.Table:
    return pa.table([list(of_document), list(of_document.values())], schema=STRATA)


def weights(
    table: pa.Table, of_document: dict[str, str], **fields: object
) -> dict[str, tuple[float, str | None]]:
    result = select(table, strata(of_document), SelectSpec(scorer="text_quality", **fields))
    assert result.schema == SCHEMA and result["doc_id"].to_pylist() == list(of_document)
    return {row["doc_id"]: (row["weight"], row["reason"]) for row in result.to_pylist()}


def test_threshold_keeps_from_the_value_on() -> None:
    result = weights(
        score_table({"a": 0.5, "b": 0.49, "c": 0.9}),
        dict.fromkeys("abc", "html"),
        method="threshold",
        threshold=0.5,
    )
    assert result == {"a": (1, None), "b": (0, "below_threshold"), "c": (1, None)}


def test_top_frac_compares_inside_a_stratum_only() -> None:
    table = score_table({"a": 0.1, "b": 0.2, "c": 0.8, "d": 0.9})
    result = weights(table, {"a": "web", "b": "web", "c": "book", "d": "book"}, keep_frac=0.5)
    assert result == {"a": (0, "below_top_frac"), "b": (1, None), "c": (0, "below_top_frac"), "d": (1, None)}


def test_top_frac_keeps_nine_of_ten_by_default_and_one_of_one() -> None:
    values: dict[str, float | None] = {f"d{i}": i / 10 for i in range(10)}
    table = score_table(values | {"alone": 0.0})
    result = weights(table, {f"d{i}": "web" for i in range(10)} | {"alone": "book"})
    assert [doc_id for doc_id, (weight, _) in result.items() if weight == 0] == ["d0"]


def test_equal_scores_are_told_apart_by_doc_id_and_not_by_order() -> None:
    for order in ("abcd", "dbca"):
        result = weights(score_table(dict.fromkeys(order, 0.5)), dict.fromkeys(order, "web"), keep_frac=0.5)
        assert {doc_id for doc_id, (weight, _) in result.items() if weight} == {"a", "b"}


def test_temperature_weighs_by_standard_deviations() -> None:
    """Scores one deviation above and below the mean: the ratio of the weights is exp(2 / temperature)."""
    result = weights(
        score_table({"a": 0.2, "b": 0.6}),
        dict.fromkeys("ab", "web"),
        method="temperature",
        temperature=2.0,
        floor=0.0,
    )
    assert result["b"][0] / result["a"][0] == pytest.approx(np.e, rel=1e-5)
    assert result["a"][0] + result["b"][0] == pytest.approx(2)


@settings(max_examples=25)
@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30), st.floats(0.05, 10), st.floats(0, 1))
def test_temperature_has_mean_one_and_keeps_the_floor_and_the_order(
    values: list[float], temperature: float, floor: float
) -> None:
    table = score_table({f"d{i:02}": value for i, value in enumerate(values)})
    result = weights(
        table,
        dict.fromkeys(table["doc_id"].to_pylist(), "web"),
        method="temperature",
        temperature=temperature,
        floor=floor,
    )
    made = np.array([weight for weight, _ in result.values()])
    assert made.mean() == pytest.approx(1, rel=1e-4)
    assert made.min() >= floor * (1 - 1e-6) and made.min() > 0
    assert (np.diff(made[np.argsort(values, kind="stable")]) >= -1e-6).all()
    assert {reason for _, reason in result.values()} == {None}


def test_null_and_missing_scores_are_kept_or_dropped_as_asked_and_compare_with_nothing() -> None:
    table = score_table({"a": 0.1, "b": 0.2, "null": None})
    of_document = dict.fromkeys(("a", "b", "null", "missing"), "web")
    kept = weights(table, of_document, keep_frac=0.5)
    assert kept == {"a": (0, "below_top_frac"), "b": (1, None), "null": (1, None), "missing": (1, None)}
    dropped = weights(table, of_document, keep_frac=0.5, null_score="drop")
    assert dropped["null"] == dropped["missing"] == (0, "null_score")


def test_segment_scores_and_other_scorers_do_not_count() -> None:
    segment = score_table({"a": 0.9}).set_column(1, scores.SCHEMA.field("segment"), pa.array([3], pa.int32()))
    table = pa.concat_tables([segment, score_table({"a": 0.2}), score_table({"a": 0.9}, "alignment")])
    result = weights(table, {"a": "web"}, method="threshold", threshold=0.5)
    assert result == {"a": (0, "below_threshold")}


def test_a_scorer_without_scores_and_a_document_scored_twice_are_refused() -> None:
    with pytest.raises(SelectError, match="'text_quality' has no scores; the table has \\['alignment'\\]"):
        weights(score_table({"a": 0.5}, "alignment"), {"a": "web"})
    with pytest.raises(SelectError, match="document a has more than one score"):
        weights(pa.concat_tables([score_table({"a": 0.5})] * 2), {"a": "web"})


def test_fields_without_effect_are_refused() -> None:
    with pytest.raises(ValidationError, match="no effect with method 'top_frac'"):
        SelectSpec(scorer="alignment", temperature=1.0)
