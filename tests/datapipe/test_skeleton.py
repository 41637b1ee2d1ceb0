"""Skeletons: what is taken for a number, a date or a name, and what stays."""

import pytest

from datapipe.stages.skeleton import normalised, skeleton, without_numbers


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("Docs for  0.19.3", "docs for 0"),
        ("Last changed: 12 May 2021, 10:31 UTC", "last changed: 0"),
        ("Posted on Monday, 3rd of June", "posted on 0 of june"),
        ("© 2001–2024 Ｆoo", "© 0 foo"),
        ("Page 3 of 10", "page 0 of 0"),
        ("100 % sure, maybe", "0 % sure, maybe"),
        ("may I march?", "may i march?"),
        ("第3页", "第0页"),
    ],
)
def test_numbers_and_dates_are_taken_out(text: str, rest: str) -> None:
    assert without_numbers(text) == rest
    assert without_numbers(rest) == rest


def test_case_width_and_white_space_are_forgotten() -> None:
    assert normalised(" The\u00a0 ＱUICK\n\nﬁsh ") == "the quick fish"


@pytest.mark.parametrize(
    ("text", "rest", "num_words", "num_slots", "fixed"),
    [
        ("Open it through Filters → Blur → Gaussian.", "open it through *", 3, 1, ["Open it through"]),
        ("Click on Wi-Fi to open the panel.", "click on * to open the panel", 6, 1,
         ["Click on", "to open the panel."]),
        ("Click on “the big one” to open the panel.", "click on * to open the panel", 6, 1,
         ["Click on", "to open the panel."]),
        ("Run time: ( 0 minutes 0.214 seconds)", "run time * minutes * seconds", 4, 2,
         ["Run time: ( 0 minutes 0.214 seconds)"]),
        ("Save it. Then close the window.", "save it then close the window", 6, 0,
         ["Save it. Then close the window."]),
        ("Download source code: plot_window.py", "download source code *", 3, 1, ["Download source code:"]),
        ("", "", 0, 0, []),
        ("Anna Berg", "anna *", 1, 1, []),
    ],
)  # fmt: skip
def test_names_leave_the_words_between_them(
    text: str, rest: str, num_words: int, num_slots: int, fixed: list[str]
) -> None:
    found = skeleton(text)
    assert (found.text, found.num_words, found.num_slots) == (rest, num_words, num_slots)
    assert [text[start:end] for start, end in found.fixed] == fixed


def test_nouns_of_german_are_no_names() -> None:
    text = "Öffnen Sie die Übersicht und wählen Sie den Eintrag."
    assert skeleton(text, "de").num_slots == 0
    assert skeleton(text).num_slots > 0
