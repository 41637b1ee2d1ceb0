"""Packing: the account adds up, sequences fill up, pictures stay whole, and the seed decides the order."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.spec import PackSpec
from datapipe.stages.pack import INPUT, best_fit, cut, describe, pack
from schemas import plan, tokens

SPEC = PackSpec(context_length=64, min_span_tokens=8, held_out_frac=0.0)


def row(
    number: int,
    num_tokens: int,
    stratum: str = "a",
    weight: float = 1.0,
    unbreakable: tuple[tuple[int, int], ...] = (),
) -> dict[str, Any]:
    return {
        "doc_id": f"doc{number}",
        "shard": "tokens-00000.arrow",
        "row": number,
        "num_tokens": num_tokens,
        "unbreakable": [{"start": start, "end": end} for start, end in unbreakable],
        "stratum": stratum,
        "weight": weight,
    }


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=INPUT)


def lognormal(num_documents: int, mean: int, sigma: float = 1.0) -> pa.Table:
    rng = np.random.default_rng(0)
    lengths = np.maximum(3, rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, num_documents)).astype(int)
    return table([row(i, n, "abc"[i % 3]) for i, n in enumerate(lengths.tolist())])


def spans(planned: pa.Table) -> list[tuple[str, int, int]]:
    return list(zip(*(planned[name].to_pylist() for name in ("doc_id", "start", "end")), strict=True))


@st.composite
def documents(draw: st.DrawFn) -> pa.Table:
    rows = []
    for number in range(draw(st.integers(1, 25))):
        num_tokens = draw(st.one_of(st.integers(0, 70), st.integers(1, 400)))
        edges = sorted(draw(st.sets(st.integers(0, num_tokens), max_size=8)))
        runs = tuple(zip(edges[::2], edges[1::2], strict=False))
        rows.append(
            row(
                number,
                num_tokens,
                draw(st.sampled_from("ab")),
                draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
                runs,
            )
        )
    return table([*rows, row(98, 40, "a"), row(99, 40, "b")])


@st.composite
def specs(draw: st.DrawFn) -> PackSpec:
    return PackSpec(
        context_length=64,
        min_span_tokens=draw(st.sampled_from([2, 16])),
        seed=draw(st.integers(0, 9)),
        window=draw(st.sampled_from([1, 3, 1024])),
        held_out_frac=draw(st.sampled_from([0.0, 0.2])),
        num_sequences=draw(st.one_of(st.none(), st.integers(1, 40))),
        mixture=draw(st.sampled_from([{}, {}, {"a": 0.8}, {"a": 0.1, "b": 0.9}])),
    )


@settings(max_examples=60)
@given(documents(), specs())
def test_plans_are_valid_cut_no_picture_and_account_for_every_token(made: pa.Table, spec: PackSpec) -> None:
    try:
        packed = pack(made, spec)
    except ValueError as error:  # a stratum may be held out as a whole
        assert spec.mixture and str(error).startswith("mixture")
        return
    rows, report = {r["doc_id"]: r for r in made.to_pylist()}, packed.report
    for planned in (packed.plan, packed.heldout):
        plan.validate(planned)
        filled: Counter[int] = Counter()
        numbers = planned["sequence"].to_pylist()
        for sequence, (doc_id, start, end) in zip(numbers, spans(planned), strict=True):
            filled[sequence] += end - start
            assert 0 <= start < end <= rows[doc_id]["num_tokens"]
            for run in rows[doc_id]["unbreakable"]:
                assert not run["start"] < start < run["end"] and not run["start"] < end < run["end"]
        assert max(filled.values(), default=0) <= spec.context_length
    count = report["tokens"]
    assert count["input"] == sum(r["num_tokens"] for r in rows.values())
    assert count["input"] == count["not_selected"] + count["held_out"] + count["in_training"]
    assert count["in_training"] * report["epochs"] + count["repeated"] == sum(
        count[fate]
        for fate in ("planned", "thinned_by_mixture", "tail_too_short", "unbreakable_too_long", "not_reached")
    )
    assert count["planned"] == sum(end - start for _, start, end in spans(packed.plan))
    held_out = report["held_out"]
    assert count["held_out"] == sum(
        held_out[fate] for fate in ("planned", "tail_too_short", "unbreakable_too_long")
    )
    assert held_out["planned"] == sum(end - start for _, start, end in spans(packed.heldout))
    assert sum(stratum["planned"] for stratum in report["strata"].values()) == count["planned"]
    by_fate = report["documents"]
    assert by_fate["input"] == by_fate["not_selected"] + by_fate["held_out"] + by_fate["in_training"]
    assert by_fate["in_training"] == by_fate["planned"] + by_fate["never_planned"]


@settings(max_examples=40)
@given(documents(), st.integers(0, 9), st.randoms(use_true_random=False))
def test_the_plan_depends_on_the_seed_and_not_on_the_order_of_rows(
    made: pa.Table, seed: int, random: Any
) -> None:
    spec = PackSpec(context_length=64, seed=seed, num_sequences=20)
    order = list(range(made.num_rows))
    random.shuffle(order)
    once, again = pack(made, spec), pack(made.take(order), spec)
    assert once.plan.equals(again.plan) and once.heldout.equals(again.heldout) and once.report == again.report


@settings(max_examples=40)
@given(documents(), st.integers(1, 3))
def test_without_a_mixture_an_epoch_has_no_token_twice_and_every_epoch_the_same(
    made: pa.Table, epochs: int
) -> None:
    one = pack(made, SPEC)
    for (doc_id, _, end), (next_id, next_start, _) in itertools.pairwise(sorted(spans(one.plan))):
        assert doc_id != next_id or end <= next_start
    packed = pack(made, SPEC.model_copy(update={"num_sequences": one.report["sequences"] * epochs}))
    taken = Counter(spans(packed.plan))
    assert set(taken) <= set(spans(one.plan)) and max(taken.values()) <= packed.report["epochs"]
    if packed.report["tokens"]["not_reached"] == 0:
        assert taken == dict.fromkeys(spans(one.plan), packed.report["epochs"])


def test_another_seed_and_another_epoch_give_another_order() -> None:
    made = table([row(i, 64) for i in range(50)])
    two_epochs = spans(pack(made, SPEC.model_copy(update={"num_sequences": 100})).plan)
    other_seed = spans(pack(made, SPEC.model_copy(update={"seed": 2})).plan)
    first, second = two_epochs[:50], two_epochs[50:]
    assert sorted(first) == sorted(second) == sorted(other_seed)
    assert len({tuple(first), tuple(second), tuple(other_seed), tuple(sorted(first))}) == 4


@pytest.mark.parametrize(("mean", "context_length"), [(400, 1024), (2300, 8192)])
def test_realistic_mixes_fill_their_sequences(mean: int, context_length: int) -> None:
    report = pack(lognormal(6000, mean), PackSpec(context_length=context_length)).report
    assert report["fill_frac"] > 0.99
    assert report["tokens"]["planned"] > 0.999 * report["tokens"]["in_training"]


def test_sequences_of_a_window_are_not_sorted_by_length() -> None:
    planned = pack(lognormal(2000, 300), PackSpec(context_length=1024, window=2000, held_out_frac=0.0)).plan
    lengths = np.array([end - start for _, start, end in spans(planned)])
    longest = np.array([lengths[planned["sequence"].to_numpy() == s].max() for s in range(500)])
    assert abs(np.corrcoef(np.arange(500), longest)[0, 1]) < 0.15


def test_best_fit_takes_the_fullest_bin_with_room() -> None:
    assert best_fit([5, 4, 3, 6, 2], 10) == [[3, 1], [0, 2, 4]]
    assert best_fit([], 10) == []


@settings(max_examples=40)
@given(st.lists(st.integers(1, 50), max_size=60))
def test_best_fit_places_every_item_once_within_capacity(lengths: list[int]) -> None:
    bins = best_fit(lengths, 50)
    assert sorted(item for members in bins for item in members) == list(range(len(lengths)))
    assert all(sum(lengths[item] for item in members) <= 50 for members in bins)
    half_empty = [members for members in bins if sum(lengths[item] for item in members) <= 25]
    assert len(half_empty) <= 1


def test_a_long_document_is_cut_before_the_picture_that_does_not_fit() -> None:
    found, tail, too_long = cut(150, [(10, 30), (50, 90), (100, 110)], SPEC)
    assert (found, tail, too_long) == ([(0, 50), (50, 114), (114, 150)], 0, 0)


def test_a_run_longer_than_the_context_and_short_rests_are_left_out_and_counted() -> None:
    found, tail, too_long = cut(170, [(4, 80)], SPEC)
    assert (found, tail, too_long) == ([(80, 144), (144, 170)], 4, 76)
    assert cut(64 + 7, [], SPEC) == ([(0, 64)], 7, 0)


def test_a_short_document_that_was_not_split_stays() -> None:
    assert spans(pack(table([row(0, 3)]), SPEC).plan) == [("doc0", 0, 3)]


def test_weight_zero_is_not_selected_and_other_weights_go_to_the_plan() -> None:
    packed = pack(table([row(0, 10, weight=0.0), row(1, 10, weight=0.25)]), SPEC)
    assert packed.plan["doc_id"].to_pylist() == ["doc1"]
    assert packed.plan["weight"].to_pylist() == [0.25]
    assert packed.report["tokens"]["not_selected"] == 10


def test_held_out_documents_are_a_stable_part_with_weight_one_and_never_in_the_plan() -> None:
    made = table([row(i, 20, weight=0.5) for i in range(2000)])
    packed = pack(made, PackSpec(context_length=64, held_out_frac=0.1))
    held_out = set(packed.heldout["doc_id"].to_pylist())
    assert 150 < len(held_out) < 250
    assert not held_out & set(packed.plan["doc_id"].to_pylist())
    assert set(packed.heldout["weight"].to_pylist()) == {1.0}
    other = pack(made.slice(0, 1000), PackSpec(context_length=64, held_out_frac=0.1, seed=7))
    assert set(other.heldout["doc_id"].to_pylist()) == held_out & set(made["doc_id"].to_pylist()[:1000])


def test_the_mixture_repeats_and_thins_documents_to_the_shares_it_names() -> None:
    made = lognormal(3000, 40)
    packed = pack(made, SPEC.model_copy(update={"mixture": {"a": 0.7, "b": 0.1}}))
    shares = {name: stratum["planned_frac"] for name, stratum in packed.report["strata"].items()}
    assert shares == pytest.approx({"a": 0.7, "b": 0.1, "c": 0.2}, abs=0.01)
    times = Counter(doc_id for doc_id, start, _ in spans(packed.plan) if start == 0)
    of_stratum = dict(zip(made["doc_id"].to_pylist(), made["stratum"].to_pylist(), strict=True))
    assert {n for doc_id, n in times.items() if of_stratum[doc_id] == "a"} == {2, 3}
    assert {n for doc_id, n in times.items() if of_stratum[doc_id] == "b"} == {1}


def test_thinning_takes_other_documents_in_another_epoch() -> None:
    made = table([row(i, 64, "ab"[i % 2]) for i in range(200)])
    packed = pack(made, SPEC.model_copy(update={"mixture": {"a": 0.1}, "num_sequences": 400}))
    times = Counter(d for d in packed.plan["doc_id"].to_pylist() if int(d[3:]) % 2 == 0)
    assert sum(times.values()) == 40 and len(times) > 25


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ({"d": 0.5}, "stratum 'd' has no tokens to train on; those that have are"),
        ({"a": 0.2, "b": 0.3, "c": 0.4}, "shares sum to 0.9, and no stratum is left out"),
    ],
)
def test_a_mixture_that_does_not_fit_the_strata_is_refused(mixture: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(lognormal(30, 40), SPEC.model_copy(update={"mixture": mixture}))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(0, 5), row(0, 6)], "doc0 occurs more than once"),
        ([row(0, 5, weight=-1.0)], "weight -1.0 of document doc0"),
        ([row(0, 5, weight=float("nan"))], "weight nan of document doc0"),
    ],
)
def test_bad_input_is_named(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(table(rows), SPEC)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match=r"columns \['stratum'\] are missing"):
        pack(table([row(0, 5)]).drop_columns("stratum"), SPEC)


def test_num_sequences_stops_there_and_counts_what_was_not_reached() -> None:
    packed = pack(table([row(i, 64) for i in range(10)]), SPEC.model_copy(update={"num_sequences": 13}))
    assert packed.report["sequences"] == 13 and packed.report["epochs"] == 2
    assert packed.report["tokens"]["not_reached"] == 7 * 64


def test_nothing_to_plan_gives_an_empty_plan_and_ends() -> None:
    for made in (table([]), table([row(0, 50, weight=0.0)]), table([row(1, 100, unbreakable=((0, 100),))])):
        packed = pack(made, SPEC.model_copy(update={"num_sequences": 5}))
        plan.validate(packed.plan)
        assert packed.plan.num_rows == 0 and packed.report["sequences"] == 0


def test_describing_takes_pictures_and_video_segments_as_unbreakable() -> None:
    def span(start: int, end: int, kind: str, segment: int) -> dict[str, Any]:
        return {
            "start": start,
            "end": end,
            "kind": kind,
            "segment": segment,
            "loss_weight": 0.0,
            "reason": None,
        }

    made = {
        "one": [
            span(0, 1, "special", -1),
            span(1, 5, "image", 0),
            span(5, 9, "text", 1),
            span(9, 12, "video", 2),
            span(12, 15, "video", 2),
        ],
        "two": [span(0, 1, "special", -1), span(1, 4, "text", 0)],
        "three": [span(0, 3, "image", 0)],
    }
    token_rows = pa.Table.from_pylist(
        [
            {
                "doc_id": doc_id,
                "num_tokens": of_document[-1]["end"],
                "input_ids": [0] * of_document[-1]["end"],
                "spans": of_document,
                "images": [],
            }
            for doc_id, of_document in made.items()
        ],
        schema=tokens.SCHEMA,
    )
    described = describe(token_rows, "tokens-00004.arrow").to_pylist()
    assert [d["modality"] for d in described] == ["video", "text", "image"]
    assert [[(r["start"], r["end"]) for r in d["unbreakable"]] for d in described] == [
        [(1, 5), (9, 12), (12, 15)],
        [],
        [(0, 3)],
    ]
    assert [(d["doc_id"], d["shard"], d["row"], d["num_tokens"]) for d in described] == [
        ("one", "tokens-00004.arrow", 0, 15),
        ("two", "tokens-00004.arrow", 1, 4),
        ("three", "tokens-00004.arrow", 2, 3),
    ]
    assert describe(token_rows.slice(0, 0), "x").num_rows == 0
