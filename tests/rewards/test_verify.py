"""Verifiers: what is right, what is wrong, and what cannot be judged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.verify import Verdict, exact, numeric


@pytest.mark.parametrize("answer", ["dark red", " Dark  RED\n", "DARK\tred"])
def test_exact_ignores_case_and_white_space(answer: str) -> None:
    assert exact(answer, "Dark red") == Verdict("exact", 1.0, None)


@pytest.mark.parametrize("answer", ["", "red", "darkred", "dark red."])
def test_exact_gives_nothing_for_another_text(answer: str) -> None:
    assert exact(answer, "dark red") == Verdict("exact", 0.0, None)


def test_exact_without_a_truth_is_an_error_and_no_reward() -> None:
    assert exact("red", "  ") == Verdict("exact", None, "empty_truth")


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("3", "3.0"),
        (" +3 ", "3"),
        ("1,000", "1e3"),
        (".5", "0.5"),
        ("-0", "0"),
        ("0.33333333", "0.333333333"),
    ],
)
def test_numeric_compares_values_and_not_spelling(answer: str, truth: str) -> None:
    assert numeric(answer, truth) == Verdict("numeric", 1.0, None)


def test_numeric_gives_nothing_for_another_number() -> None:
    assert numeric("4", "3") == Verdict("numeric", 0.0, None)


@pytest.mark.parametrize("answer", ["", "three", "3 4", "1,00", "nan", "inf", "1e999", "e5", "3red", "٣x"])
def test_numeric_reports_what_is_no_number_instead_of_scoring_it(answer: str) -> None:
    assert numeric(answer, "3") == Verdict("numeric", None, "answer_not_a_number")


def test_numeric_blames_a_truth_that_is_no_number() -> None:
    assert numeric("3", "three") == Verdict("numeric", None, "truth_not_a_number")


@settings(max_examples=25)
@given(st.text(max_size=12), st.text(max_size=12))
def test_every_verdict_has_either_a_reward_or_an_error(answer: str, truth: str) -> None:
    for verdict in (exact(answer, truth), numeric(answer, truth)):
        assert (verdict.reward is None) != (verdict.error is None)


@settings(max_examples=25)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_equals_itself_however_it_is_printed(value: float) -> None:
    assert numeric(repr(value), f"{value:.17e}").reward == 1.0
