"""Clean: what text becomes, which documents leave, and that masks stay on their characters."""

import unicodedata
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datapipe.spec import CleanSpec
from datapipe.stages.clean import clean
from datapipe.stages.repair import repaired
from datapipe.stages.words import has_words, unspaced_frac, words
from schemas import document
from tests import make

ENGLISH = (
    "The quick brown fox jumps over the lazy dog while seven other animals look on from the edge of "
    "the wood and say nothing."
)
GERMAN = (
    "Der schnelle braune Fuchs springt über den faulen Hund, während sieben andere Tiere vom Waldrand "
    "aus zusehen und gar nichts dazu sagen."
)
JAPANESE = "素早い茶色の狐は怠け者の犬を飛び越え、他の七匹の動物は森の端から何も言わずに眺めています。"


def one(segments: list[dict], spec: CleanSpec | None = None, **columns: Any) -> dict:
    return clean(make.documents([make.document_row(segments, **columns)]), spec or CleanSpec()).to_pylist()[0]


@pytest.mark.parametrize(
    ("role", "before", "after"),
    [
        ("paragraph", "  two\u00a0 spaces\tand \r\n a line  ", "two spaces and\na line"),
        ("paragraph", "a\n\n\n\nb", "a\n\nb"),
        ("paragraph", "cafe\u0301 so\u00adft \ufeffbom \x00nul \x1b", "café soft bom nul"),
        ("paragraph", "one\u2028two\x85three\ffour", "one\ntwo\nthree\nfour"),
        ("paragraph", "e\x07\u0301", "é"),
        ("paragraph", "किताब \u200d می\u200cخواهم", "किताब \u200d می\u200cخواهم"),
        ("code", "def f():\r\n\treturn  1 \x00\n\n\n\nx", "def f():\n\treturn  1 \n\n\n\nx"),
        ("table", "a\t\tb\n1\t 2\tc", "a\t\tb\n1\t 2\tc"),
        ("user", "    indented\n\n\n    code", "    indented\n\n\n    code"),
        ("code", " \n\t\n", ""),
        ("paragraph", "\u00a0\u3000", ""),
    ],
)
def test_text_is_repaired_outside_code_and_tables(role: str, before: str, after: str) -> None:
    assert repaired(before, role) == after


def test_words_are_runs_between_spaces_or_single_characters_of_unspaced_scripts() -> None:
    assert words("Open the file, then 保存.") == ["Open", "the", "file", "then", "保", "存"]
    assert words("नमस्ते दुनिया — (x) …") == ["नमस्ते", "दुनिया", "x"]
    assert words(" .,;:!? \n") == []
    assert has_words("one, two", 2) and not has_words("one, two", 3) and has_words("", 0)
    assert unspaced_frac("Ask 保存 now") == 0.5 and unspaced_frac("ask now") == unspaced_frac("") == 0.0


def test_empty_segments_leave_and_masks_follow_their_segments() -> None:
    places = [
        (0, 0, 1, None, "gone"),
        (1, None, None, [0.0, 0.0, 0.5, 0.5], "box"),
        (2, 5, 10, None, "word"),
        (2, None, None, None, "all"),
    ]
    masks = [
        {
            "segment": s,
            "start": start,
            "end": end,
            "box": box,
            "reason": reason,
            "action": "no_loss",
            "detector": "d",
        }
        for s, start, end, box, reason in places
    ]
    row = one([make.text(" \n "), make.picture_segment("m"), make.text("a    quick\tfox")], masks=masks)
    assert [s["text"] for s in row["segments"]] == [None, "a quick fox"]
    assert [(m["reason"], m["segment"], m["start"], m["end"]) for m in row["masks"]] == [
        ("box", 0, None, None),
        ("word", 1, 2, 7),
        ("all", 1, None, None),
    ]
    assert row["masks"][0]["box"] == [0.0, 0.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("text", "lang"), [(ENGLISH, "en"), (GERMAN, "de"), (JAPANESE, "ja"), (ENGLISH.upper(), "en")]
)
def test_the_language_is_detected_from_prose(text: str, lang: str) -> None:
    code = make.text("".join(f"für = {i}; und = der + die * das\n" for i in range(50)), "code")
    row = one([make.text(text), code], lang="xx")
    assert row["lang"] == lang and row["lang_prob"] > 0.5


def test_where_the_detector_cannot_tell_the_declared_language_stays() -> None:
    assert (row := one([make.text("Guten Tag")], lang="en"))["lang"] == "en" and row["lang_prob"] is None
    unsure = one([make.text(ENGLISH)], CleanSpec(min_lang_prob=1.0), lang="de")
    assert unsure["lang"] == "de" and unsure["lang_prob"] is None
    undeclared = one([make.text(ENGLISH)], CleanSpec(min_lang_prob=1.0))
    assert undeclared["lang"] == "en" and undeclared["lang_prob"] < 1


def test_documents_leave_for_their_language_only_when_long_enough_and_sure() -> None:
    spec = CleanSpec(languages=("en",))
    assert one([make.text(ENGLISH)], spec)["drop_reason"] is None
    assert one([make.text(GERMAN)], spec, lang="en")["drop_reason"] == "language"
    assert (
        one(
            [make.text("Drei kurze Worte und noch sieben weitere, dann ist Schluss damit.")], spec, lang="de"
        )["drop_reason"]
        is None
    )
    assert one([make.text(GERMAN)], CleanSpec(languages=("en",), min_lang_prob=1.0))["drop_reason"] is None
    assert one([make.text(GERMAN)])["drop_reason"] is None


def test_short_documents_leave_unless_they_show_something() -> None:
    assert one([make.text("Nine words are not quite enough for this one.")])["drop_reason"] == "too_short"
    assert one([make.text("Ten words are just enough for this one to stay.")])["drop_reason"] is None
    assert one([make.text("保存する前に確認する")])["drop_reason"] is None
    assert one([make.text("Short."), make.picture_segment("m")])["drop_reason"] is None
    assert one([make.text("Short."), make.picture_segment(None)])["drop_reason"] == "too_short"
    assert one([make.text("Short.")], CleanSpec(min_words=0))["drop_reason"] is None


def test_what_fails_a_rule_is_dropped_by_its_measure_and_stays_in_the_table() -> None:
    made = make.text("Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod.")
    assert one([made])["drop_reason"] == "c4_lorem_ipsum"
    assert one([made], CleanSpec(rules=()))["drop_reason"] is None
    assert one([made], CleanSpec(rules=("gopher_repetition",)))["drop_reason"] is None
    assert one([made], drop_reason="earlier")["drop_reason"] == "earlier"
    spec = CleanSpec(rules=("gopher_repetition",), ignored_measures=())
    repeated = [make.text("TODO", "list_item")] * 6 + [make.text(ENGLISH)]
    assert one(repeated, spec)["drop_reason"] == "gopher_duplicate_lines"
    drop = {**dict.fromkeys(document.MASK.names), "reason": "r", "action": "drop", "detector": "d"}
    gone = [{**drop, "segment": number} for number in range(6)]
    assert one(repeated, spec, masks=gone)["drop_reason"] is None


def test_what_a_mask_drops_whole_says_nothing_of_the_document() -> None:
    drop = {**dict.fromkeys(document.MASK.names), "reason": "nav", "action": "drop", "detector": "d"}
    masks = [{**drop, "segment": 0}, {**drop, "segment": 1}]
    navigation = [make.text(f"{ENGLISH} " * 4), make.picture_segment("m")]
    assert one([*navigation, make.text(GERMAN)], masks=masks)["lang"] == "de"
    assert one([*navigation, make.text(GERMAN)])["lang"] == "en"
    assert one([*navigation, make.text("Too short.")], masks=masks)["drop_reason"] == "too_short"


def test_only_what_is_ignored_by_default_drops_a_short_good_page() -> None:
    assert one([make.text(ENGLISH)])["drop_reason"] is None
    assert one([make.text(ENGLISH)], CleanSpec(ignored_measures=()))["drop_reason"] == "gopher_too_few_words"
    beside_picture = [make.text(ENGLISH), make.picture_segment("m")]
    assert one(beside_picture, CleanSpec(ignored_measures=()))["drop_reason"] is None


def test_a_line_that_c4_takes_out_of_english_pages_gets_a_mask_once() -> None:
    segment = make.text(f"{ENGLISH}\nThis site uses cookies. OK\n{ENGLISH}")
    row = one([segment])
    (mask,) = row["masks"]
    assert segment["text"][mask["start"] : mask["end"]] == "This site uses cookies. OK"
    assert (mask["reason"], mask["action"]) == ("c4_policy", "drop")
    assert one(row["segments"], masks=row["masks"])["masks"] == row["masks"]
    assert one([segment], CleanSpec(rules=("fineweb",)))["masks"] == []
    assert one([segment, make.text("x = 1", "code")])["masks"] == []
    assert one([make.text(f"{GERMAN}\nuse of cookies")])["masks"] == []


def test_the_title_is_repaired_and_an_empty_one_becomes_null() -> None:
    assert one([make.text(ENGLISH)], title=" A\n title ")["title"] == "A title"
    assert one([make.text(ENGLISH)], title=" ")["title"] is None


# ---- properties

ODD = " \t\n\r\x00\x0b\x85\xad\u00a0\u2028\ufeffe\u0301\u0308oa\u0327\u1100\u1161\u11a8"
CHARACTERS = st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"]))
TEXTS = st.one_of(st.text(CHARACTERS, max_size=30), st.sampled_from([ENGLISH, GERMAN, JAPANESE]))
ROLES = st.sampled_from(["paragraph", "code", "table", "alt"])
SEGMENTS = st.lists(
    st.one_of(
        st.builds(make.text, TEXTS, ROLES), st.builds(make.picture_segment, st.sampled_from(["m", None]))
    ),
    max_size=4,
)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = []
    for number, segments in enumerate(draw(st.lists(SEGMENTS, min_size=1, max_size=4))):
        masks = []
        for index, segment in enumerate(segments):
            length = len(segment["text"] or "")
            if length and draw(st.booleans()):
                start, end = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
                masks.append(
                    {
                        "segment": index,
                        "start": start,
                        "end": end,
                        "box": None,
                        "reason": "r",
                        "action": "no_loss",
                        "detector": "d",
                    }
                )
        rows.append(
            make.document_row(
                segments,
                f"{number}.html",
                masks=masks,
                title=draw(st.one_of(st.none(), TEXTS)),
                lang=draw(st.sampled_from([None, "de"])),
            )
        )
    return make.documents(rows)


@settings(max_examples=40)
@given(batches())
def test_rows_and_schema_stay_and_neither_a_second_run_nor_the_split_matters(batch: pa.RecordBatch) -> None:
    spec = CleanSpec(languages=("en",))
    once = clean(batch, spec)
    document.validate(once)
    assert once.schema == document.SCHEMA and once["doc_id"] == batch["doc_id"]
    assert clean(once, spec) == once
    parts = [clean(batch.slice(i, 1), spec) for i in range(batch.num_rows)]
    assert pa.Table.from_batches(parts).to_pylist() == once.to_pylist()
    for row in once.to_pylist():
        for segment in row["segments"]:
            assert segment["text"] is None or segment["text"].strip()
            assert segment["text"] is None or unicodedata.is_normalized("NFC", segment["text"])


@settings(max_examples=60)
@given(
    st.text(CHARACTERS, max_size=15),
    st.text(CHARACTERS, max_size=15),
    st.text(CHARACTERS, max_size=15),
    st.sampled_from(["paragraph", "code"]),
)
@example(before="", covered="À", after="\x80", role="paragraph")
@example(before="", covered="", after="\x850", role="code")
@example(before="R", covered="\x08Ì§", after="", role="paragraph")
def test_a_mask_never_loses_characters_it_covered(before: str, covered: str, after: str, role: str) -> None:
    mask = {
        "segment": 0,
        "start": len(before),
        "end": len(before + covered),
        "box": None,
        "reason": "r",
        "action": "no_loss",
        "detector": "d",
    }
    row = one([make.text(before + covered + after, role)], masks=[mask])
    outside = Counter()
    for segment in row["segments"]:
        start, end = next(((m["start"], m["end"]) for m in row["masks"]), (0, 0))
        outside += characters(segment["text"][:start] + segment["text"][end:])
    around = characters(before + after) | characters(repaired(before, role) + repaired(after, role))
    for character in characters(repaired(covered, role)):
        assert outside[character] <= around[character]


def characters(text: str) -> Counter[str]:
    return Counter(unicodedata.normalize("NFD", "".join(text.split())))


@settings(max_examples=60)
@given(st.text("ab \n\t", max_size=12), st.text("xy \n\t", max_size=12), st.text("cd \n\t", max_size=12))
def test_a_mask_covers_the_same_words_before_and_after(before: str, covered: str, after: str) -> None:
    mask = {
        "segment": 0,
        "start": len(before),
        "end": len(before + covered),
        "box": None,
        "reason": "r",
        "action": "no_loss",
        "detector": "d",
    }
    row = one([make.text(before + covered + after)], masks=[mask])
    found = "".join(row["segments"][0]["text"][m["start"] : m["end"]] for m in row["masks"])
    assert found.split() == covered.split()
