"""The published rules: each measure at its threshold, computed by hand, and what is not judged."""

from typing import get_args

import pytest

from datapipe.spec import CleanSpec, QualityMeasure
from datapipe.stages import quality_rules
from datapipe.stages.quality_rules import (
    RULES,
    c4_keeps,
    duplicate_fracs,
    duplicate_ngrams_frac,
    failed,
    prose_of,
    top_ngram_frac,
)
from tests import make

ALL = tuple(RULES)
GOOD = (
    "The first thing to know of a lake is that people have always come to it with nets and boats.",
    "Most of them stay near the shore, where the water is warm and the reeds give shelter to young fish.",
    "Others row out before sunrise, when the wind has not yet come, and wait with great patience.",
    "What they bring home in the evening depends on weather, on luck, and on how well they know the place.",
)


def fails(*texts: str, role: str = "paragraph", lang: str | None = "en", others: tuple = ()) -> set[str]:
    prose = prose_of([*(make.text(text, role) for text in texts), *others], lang)
    return set() if prose is None else set(failed(prose, ALL))


def test_plain_prose_fails_nothing() -> None:
    assert fails(*GOOD) == set()


def test_the_spec_names_every_measure_and_no_other() -> None:
    measures = {measure for rule in RULES.values() for measure in rule} | {"c4_javascript", "c4_policy"}
    assert measures == set(get_args(QualityMeasure)) >= set(CleanSpec().ignored_measures)
    unfit = (
        quality_rules.UNFIT_BESIDE_OTHER_CONTENT
        | quality_rules.UNFIT_WITHOUT_SPACES
        | quality_rules.UNFIT_BUT_IN_ENGLISH
    )
    assert unfit <= measures


@pytest.mark.parametrize(
    ("measure", "stays", "fails_by"),
    [
        ("gopher_too_few_words", ["the sea and you " * 12 + "at sea"], ["the sea and you " * 12 + "sea"]),
        ("gopher_mean_word_length", ["abc " * 60], ["abc " * 59 + "ab"]),
        ("gopher_mean_word_length", ["abcdefghij " * 60], ["abcdefghij " * 59 + "abcdefghijk"]),
        (
            "gopher_hashes",
            ["one two three four five six seven eight nine ten#"],
            ["one two three four five#"],
        ),
        ("gopher_ellipses", ["one two three four five six seven eight nine … ten"], ["one two... three"]),
        ("gopher_alphabetic_words", ["one two three four 5"], ["one two three 4 5"]),
        ("gopher_bullet_lines", ["- a"] * 9 + ["b"], ["- a"] * 10 + ["• b"]),
        ("gopher_ellipsis_lines", ["a…"] * 3 + ["b"] * 7, ["a..."] * 4 + ["b"] * 6),
        ("gopher_stop_words", ["The cat and dog"], ["the the cat"]),
        ("gopher_duplicate_lines", ["a", "a", "b", "a", "c", "d", "e"], ["a", "a", "a", "b"]),
        ("gopher_duplicate_line_characters", ["a" * 20, "a" * 20, "b" * 60], ["a" * 21, "a" * 21, "b" * 58]),
        ("c4_lorem_ipsum", ["lorem and ipsum"], ["Lorem Ipsum"]),
        ("c4_curly_bracket", ["f(x) }"], ["f(x) {"]),
        ("fineweb_punctuated_lines", ["a."] * 13 + ["b"] * 87, ["a."] * 12 + ["b"] * 88),
        ("fineweb_short_lines", ["a" * 29] * 66 + ["b" * 30] * 34, ["a" * 29] * 67 + ["b" * 30] * 33),
        ("fineweb_duplicate_line_characters", ["a" * 9, "a" * 9, "b" * 82], ["a" * 10, "a" * 10, "b" * 80]),
    ],
)
def test_a_measure_holds_at_its_threshold_and_fails_beyond(
    measure: str, stays: list[str], fails_by: list[str]
) -> None:
    assert measure not in fails(*stays)
    assert measure in fails(*fails_by)


def test_lines_and_paragraphs_count_from_their_second_occurrence() -> None:
    assert duplicate_fracs(["ab", "c", "ab", "ab"]) == (2 / 4, 4 / 7)
    assert duplicate_fracs(["ab"]) == (0.0, 0.0)


def test_of_the_most_frequent_n_gram_all_occurrences_count() -> None:
    # "a bb" comes twice (3 characters each) of 1+2+1+2+3 = 9.
    assert top_ngram_frac(["a", "bb", "a", "bb", "ccc"], 2) == 6 / 9
    # Twice come "a b" (2) and "ccc d" (4): the longer counts, of 1+1+3+1+1+1+3+1 = 12.
    assert top_ngram_frac(["a", "b", "ccc", "d", "a", "b", "ccc", "d"], 2) == 8 / 12
    assert top_ngram_frac(["a", "b", "c"], 2) == 0.0
    assert top_ngram_frac(["a"], 2) == 0.0


def test_characters_of_overlapping_repeated_n_grams_count_once() -> None:
    words = list("pqrstuvwxy")
    # The second "q r s t" repeats two 3-grams that overlap in two words: 4 of 14 characters.
    assert duplicate_ngrams_frac([*words, "q", "r", "s", "t"], 3) == 4 / 14
    assert duplicate_ngrams_frac(words, 3) == 0.0
    assert duplicate_ngrams_frac(["a"] * 6, 2) == 5 / 6  # all but the first "a"


def test_gopher_s_n_gram_limits_are_those_of_table_a1() -> None:
    # 5 of 30 words repeat one 5-gram: a fraction of 0.167, above 0.15, and below 4-gram's limit as a top one.
    unique = [f"w{i:02}" for i in range(25)]
    found = fails(" ".join([*unique, *unique[:5]]))
    assert "gopher_duplicate_5_grams" in found and "gopher_duplicate_6_grams" not in found
    found = fails(" ".join([*unique, *(f"x{i:02}" for i in range(9)), *unique[:5]]))
    assert "gopher_duplicate_5_grams" not in found  # 5 of 39 is 0.128
    assert "gopher_top_2_gram" in fails("aa bb cc dd aa bb")  # 8 of 12


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("One two three four five.", True),
        ('He said "four five six seven."', True),
        ("One two three four five", False),
        ("One two three four five...", False),
        ("Two three four five.", False),
        ("One two three four " + "x" * 1001 + ".", False),
        ("Please enable JavaScript to see it.", False),
        ("Read our Privacy Policy and be glad.", False),
    ],
)
def test_c4_keeps_lines_that_end_as_sentences_do(line: str, stays: bool) -> None:
    assert c4_keeps(line) == stays


def test_c4_asks_for_three_sentences_in_the_lines_it_keeps() -> None:
    two = "This line has just one sentence. And there is another one here."
    assert "c4_sentences" in fails(two, "A heading without an end", "So do four words.")
    assert "c4_sentences" not in fails(two, "And here stands now the third one.")


def test_what_does_not_fit_a_document_is_not_judged() -> None:
    short = ["Sunset", "The sunset over the lake in May"]
    assert {"gopher_too_few_words", "c4_sentences", "fineweb_punctuated_lines"} <= fails(*short)
    for other in (make.picture_segment("m"), make.video_segment("v", 0, 1), make.text("x = {}", "code")):
        assert fails(*short, others=(other,)) == set()
    assert "gopher_stop_words" in fails("tree house garden") - fails("Baum Haus Garten", lang="de")
    assert fails("tree house garden", lang=None) & quality_rules.UNFIT_BUT_IN_ENGLISH == set()
    assert "gopher_mean_word_length" not in fails("가나 다라", lang="ko")
    assert fails("保存する前に確認する。", lang="ja") & quality_rules.UNFIT_WITHOUT_SPACES == set()
    assert "gopher_duplicate_lines" in fails("保存", "保存", "保存", lang="ja")


def test_sessions_captions_and_code_are_not_prose() -> None:
    assert fails("the " * 3, role="user") == set()
    assert (
        fails("TODO", role="caption")
        == fails("TODO", role="code")
        == fails("TODO", role="transcript")
        == set()
    )
    assert fails(" .,; ") == set()
