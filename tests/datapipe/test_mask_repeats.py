"""Masks on repeated text: what is found, what is left alone, which occurrence trains, and by how many."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.spec import InterleaveSpec, MaskRepeatsSpec
from datapipe.stages import mask_repeats
from datapipe.stages.interleave import interleave
from datapipe.stages.page_text import page
from schemas import document
from tests import make

SPEC = MaskRepeatsSpec(min_documents=4, min_boilerplate_frac=0.5, min_template_frac=0.3)
Row = dict[str, Any]


def prose(seed: int, num_words: int = 30) -> str:
    """Made-up words, in lower case and without numbers."""
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdefghijklmnop", k=7)) for _ in range(num_words))


def between(text: str, i: int) -> list[Row]:
    """A sentence between paragraphs that no other document has."""
    return [make.text(prose(i)), make.text(text), make.text(prose(50 + i))]


def marked(
    rows: list[Row], spec: MaskRepeatsSpec = SPEC, num_parts: int = 1, num_buckets: int = 1
) -> list[Row]:
    """Run all parts over these documents, cut into so many batches, and their keys into so many buckets."""
    batches = [make.documents(rows[i::num_parts]) for i in range(num_parts)]
    counts = [mask_repeats.counts(batch, spec) for batch in batches]
    sites = mask_repeats.large_sites(pa.concat_tables(counts), spec)
    lines = reduced(counts, sites, spec, num_buckets)
    texts = [mask_repeats.text_counts(batch, lines, spec) for batch in batches]
    repeated = pa.concat_tables([lines, reduced(texts, sites, spec, num_buckets)])
    marked = [mask_repeats.mark(batch, repeated, spec) for batch in batches]
    for batch in marked:
        document.validate(batch)
        assert batch.schema == document.SCHEMA
    order = {row["doc_id"]: number for number, row in enumerate(rows)}
    found = [row for batch in marked for row in batch.to_pylist()]
    return sorted(found, key=lambda row: order[row["doc_id"]])


def reduced(counts: list[pa.Table], sites: pa.Table, spec: MaskRepeatsSpec, num_buckets: int) -> pa.Table:
    """Return what is repeated, bucket by bucket."""
    parts = [mask_repeats.in_buckets(table, num_buckets) for table in counts]
    buckets = [pa.Table.from_batches(batches) for batches in zip(*parts, strict=True)]
    return pa.concat_tables([mask_repeats.repeated(bucket, sites, spec) for bucket in buckets])


def found(row: Row) -> list[tuple[str, str, str]]:
    """Return the reason, action and text of each mask of a document."""
    return [
        (
            mask["reason"],
            mask["action"],
            row["segments"][mask["segment"]]["text"][mask["start"] : mask["end"]],
        )
        for mask in row["masks"]
    ]


def site(*extra: list[Row], count: int = 6) -> list[Row]:
    """Pages with navigation, a title, an article and a footer."""
    rows = []
    for number in range(count):
        segments = [
            make.text("Acme manual", "heading"),
            make.text("Home"),
            make.text("Contents", "list_item"),
            make.text(prose(number, 4).title(), "heading"),
            make.text("Share this page"),
            make.text(prose(1000 + number)),
            make.text("Note"),
            make.text(prose(2000 + number)),
            make.text("Example", "caption"),
            make.text(f"Last changed: {number + 1} May 2021\n© 2020–2024 Acme"),
        ]
        rows.append(make.document_row(segments, f"manual/page{number}.html"))
    return rows


# ---- boilerplate


def test_lines_around_the_content_of_a_site_leave_and_its_content_stays() -> None:
    for row in marked(site()):
        assert found(row) == [
            ("boilerplate", "drop", "Home"),
            ("boilerplate", "drop", "Contents"),
            ("boilerplate", "drop", "Share this page"),
            ("boilerplate", "drop", row["segments"][-1]["text"]),
        ]
        assert all(mask["start"] is mask["end"] is None for mask in row["masks"])


def test_a_few_documents_or_a_small_fraction_are_no_site() -> None:
    assert all(row["masks"] == [] for row in marked(site(count=3)))
    others = [make.document_row([make.text(prose(i))], f"manual/other{i}.html") for i in range(7)]
    assert "boilerplate" not in {reason for row in marked([*site(), *others]) for reason, *_ in found(row)}
    assert len(marked([*site(), *others[:6]])[0]["masks"]) == 4


def test_a_site_is_the_host_of_the_url_else_the_collection_and_its_folders_count_too() -> None:
    def with_uris(name: str) -> list[Row]:
        return [{**row, "doc_id": f"{i:032}", "uri": name.format(i=i)} for i, row in enumerate(site(count=6))]

    assert marked(with_uris("crawl.warc.gz#https://www.acme.org:80/{i}/x.html?q=1"))[0]["masks"] != []
    assert marked(with_uris("crawl.warc.gz#https://h{i}.org/a/x.html"))[0]["masks"] == []
    others = [make.document_row([make.text(prose(i))], f"{i}/other.html") for i in range(60)]
    assert marked([*with_uris("en/{i}.html"), *others])[0]["masks"] != []
    assert marked([*with_uris("{i}/x.html"), *others])[0]["masks"] == []


def test_words_in_the_middle_of_pages_stay_however_often_they_come() -> None:
    rows = [
        make.document_row(
            [
                make.text(prose(i)),
                make.text("Note"),
                make.text("See also", "list_item"),
                make.text(prose(100 + i)),
            ],
            f"{i}.html",
        )
        for i in range(6)
    ]
    assert all(row["masks"] == [] for row in marked(rows))


@pytest.mark.parametrize("role", ["code", "caption", "transcript"])
def test_content_of_another_kind_ends_a_run(role: str) -> None:
    rows = [
        make.document_row(
            [make.text("Same words", role), make.text("Home"), make.text("Up"), make.text(prose(i))], f"{i}"
        )
        for i in range(6)
    ]
    assert all(row["masks"] == [] for row in marked(rows))


def test_headings_are_no_boilerplate_but_do_not_end_it() -> None:
    rows = marked(site())
    assert all("heading" not in {r["segments"][m["segment"]]["role"] for m in r["masks"]} for r in rows)


def test_a_line_leaves_with_its_line_end_and_what_was_masked_before_is_not_there() -> None:
    rows = [
        make.document_row(
            [
                make.text("Prev"),
                make.text(f"Home\nUp\n{prose(i)}"),
                make.text(f"{prose(50 + i)}\nImprint"),
            ],
            f"{i}.html",
        )
        for i in range(6)
    ]
    row = marked(rows)[0]
    assert [text for *_, text in found(row)] == ["Prev", "Home\nUp\n", "\nImprint"]
    stream = interleave(make.documents([row]), InterleaveSpec()).to_pylist()[0]
    assert [segment["text"] for segment in stream["segments"]] == [prose(0), prose(50)]
    drop = {**dict.fromkeys(document.MASK.names), "segment": 0, "reason": "nav", "action": "drop"}
    masked = [{**row, "masks": [{**drop, "detector": "reader:html"}]} for row in rows]
    assert [text for *_, text in found(marked(masked)[0])][1:] == ["Home\nUp\n", "\nImprint"]


# ---- paragraphs


def test_of_paragraphs_with_the_same_words_the_one_of_the_smallest_doc_id_trains() -> None:
    text = prose(1)
    other = f"  {text.upper()}\u00a0 "
    rows = [
        make.document_row(
            [make.text(prose(10 + i)), make.text(other if i else text), make.text(text)], f"{i}"
        )
        for i in range(3)
    ]
    for row in marked(rows):
        is_first = row["doc_id"] == min(r["doc_id"] for r in rows)
        assert [mask["segment"] for mask in row["masks"]] == ([2] if is_first else [1, 2])
        assert {(mask["reason"], mask["action"]) for mask in row["masks"]} == {
            ("duplicate_paragraph", "no_loss")
        }


def test_short_paragraphs_captions_and_code_may_come_again() -> None:
    rows = [
        make.document_row(
            [
                make.text(prose(5, 19)),
                make.text(prose(6, 40), "caption"),
                make.text(prose(7, 40), "code"),
                make.text(prose(8, 40), "heading"),
            ],
            f"{i}",
        )
        for i in range(3)
    ]
    assert all(row["masks"] == [] for row in marked(rows))
    spec = MaskRepeatsSpec(min_paragraph_words=19, paragraph_action="drop")
    masks = [found(row) for row in marked(rows, spec)]
    assert sorted(masks, key=len) == [[]] + 2 * [[("duplicate_paragraph", "drop", prose(5, 19))]]


def test_paragraphs_of_one_segment_are_compared_one_by_one() -> None:
    rows = [make.document_row([make.text(f"{prose(i)}\n\n{prose(9)}")], f"{i}") for i in range(2)]
    assert sorted(map(found, marked(rows)), key=len) == [[], [("duplicate_paragraph", "no_loss", prose(9))]]


def test_a_paragraph_beside_boilerplate_in_its_segment_trains_once_like_others() -> None:
    rows = [
        make.document_row(
            [make.text(f"Home\nUp\n\n{prose(9 if i < 3 else i)}"), make.text(prose(50 + i))], f"{i}"
        )
        for i in range(6)
    ]
    navigation = ("boilerplate", "drop", "Home\nUp\n")
    copy = ("duplicate_paragraph", "no_loss", prose(9))
    masks = [found(row) for row in marked(rows)]
    assert sorted(masks[:3], key=len) == [[navigation], [navigation, copy], [navigation, copy]]
    assert masks[3:] == [[navigation]] * 3


@pytest.mark.parametrize("how", ["boilerplate", "no_loss", "drop"])
def test_the_paragraph_that_trains_is_one_that_no_other_mask_takes(how: str) -> None:
    notice = prose(9)
    if how == "boilerplate":  # at the foot of six pages, and in the middle of two
        taken = [
            make.document_row([make.text(prose(10 + i)), make.text("Imprint"), make.text(notice)], f"{i}")
            for i in range(6)
        ]
    else:
        old = {**dict.fromkeys(document.MASK.names), "reason": "r", "action": how, "detector": "d"}
        masks = [{**old, "segment": 0, "start": 0, "end": len(notice)}]
        taken = [{**make.document_row([make.text(notice)], f"{i}"), "masks": masks} for i in range(6)]
    free = [make.document_row(between(notice, 60 + i), f"free{i}") for i in range(2)]
    for row, number in zip(taken, "000000", strict=True):
        row["doc_id"] = number * 30 + row["uri"].zfill(2)
    assert max(row["doc_id"] for row in taken) < min(row["doc_id"] for row in free)
    masks = [found(row) for row in marked([*taken, *free])]
    assert sorted(masks[6:], key=len) == [[], [("duplicate_paragraph", "no_loss", notice)]]


# ---- templates


def test_of_a_template_the_words_between_names_train_nothing_but_in_one_document() -> None:
    names = ["Sound", "Power", "Users", "Wi-Fi", "Displays", "Mouse & Touchpad"]
    texts = [f"Click on {name} to open the panel." for name in names]
    rows = [make.document_row(between(text, i), names[i]) for i, text in enumerate(texts)]
    first = min(row["doc_id"] for row in rows)
    for row in marked(rows):
        expected = [
            ("template_text", "no_loss", "Click on"),
            ("template_text", "no_loss", "to open the panel."),
        ]
        assert found(row) == ([] if row["doc_id"] == first else expected)
    dropped = marked(rows, SPEC.model_copy(update={"template_action": "drop"}))
    assert {text for row in dropped for *_, text in found(row)} <= {
        f"Click on {n} to open the panel." for n in names
    }


def test_the_same_sentence_with_the_same_names_trains_once() -> None:
    text = "Click on Sound to open the panel."
    rows = [make.document_row(between(text, i), f"{i}") for i in range(6)]
    masks = sorted(map(found, marked(rows)), key=len)
    assert masks == [[]] + 5 * [[("template_text", "no_loss", text)]]


def test_few_words_are_no_template() -> None:
    rows = [
        make.document_row(between(f"See {n}", i), n) for i, n in enumerate(["Ab", "Cd", "Ef", "Gh", "Ij"])
    ]
    assert all(row["masks"] == [] for row in marked(rows))


# ---- what holds for all


def test_agent_sessions_are_neither_counted_nor_marked() -> None:
    rows = [{**row, "segments": [make.text("Be kind", "system"), *row["segments"]]} for row in site()]
    assert all(row["masks"] == [] for row in marked(rows))
    assert mask_repeats.counts(make.documents(rows), SPEC).num_rows == 0


def test_what_a_mask_drops_already_gets_no_other() -> None:
    (row, *others) = site()
    old = {**dict.fromkeys(document.MASK.names), "reason": "r", "action": "drop", "detector": "d"}
    row = {**row, "masks": [{**old, "segment": 1, "start": 0, "end": 4}, {**old, "segment": 2}]}
    reasons = [(mask["segment"], mask["reason"]) for mask in marked([row, *others])[0]["masks"]]
    assert reasons == [(1, "r"), (2, "r"), (4, "boilerplate"), (9, "boilerplate")]


TEXTS = st.sampled_from(
    [
        "Home",
        "Up",
        "© 2020 Acme",
        "© 2021 Acme",
        prose(1),
        prose(2),
        f"{prose(3)}\n\n{prose(1)}",
        "Next\nImprint",
    ]
    + [f"Click on {name} to open the panel." for name in ("Sound", "Power", "Users")]
)
SEGMENTS = st.lists(
    st.builds(make.text, TEXTS, st.sampled_from(["paragraph", "list_item", "heading", "caption", "code"])),
    max_size=5,
)


@settings(max_examples=40)
@given(st.lists(SEGMENTS, min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 5), st.randoms())
def test_neither_order_nor_split_nor_a_second_run_changes_the_masks(
    documents: list[list[Row]], num_parts: int, num_buckets: int, rng: random.Random
) -> None:
    spec = MaskRepeatsSpec(min_documents=2, min_boilerplate_frac=0.3, min_template_frac=0.3)
    rows = [make.document_row(segments, f"{i % 2}/{i}") for i, segments in enumerate(documents)]
    once = marked(rows, spec)
    assert [row["doc_id"] for row in once] == [row["doc_id"] for row in rows]
    shuffled = rng.sample(rows, len(rows))
    again = {row["doc_id"]: row for row in marked(shuffled, spec, num_parts, num_buckets)}
    assert [again[row["doc_id"]] for row in rows] == once
    assert marked(once, spec) == once
    # Every long paragraph trains somewhere, or is boilerplate wherever it stands.
    trained = {text for row in once for text in _trained(row)}
    boilerplate = {text for row in once for reason, _, text in found(row) if reason == "boilerplate"}
    assert {text for row in once for _, _, text in found(row)} & {prose(1), prose(2)} <= trained | boilerplate
    duplicates = {text for row in once for reason, _, text in found(row) if reason == "duplicate_paragraph"}
    assert duplicates <= trained


def _trained(row: Row) -> list[str]:
    """Return the paragraphs that train."""
    masked = {mask["segment"] for mask in row["masks"] if mask["start"] is None}
    texts = [s["text"] for i, s in enumerate(row["segments"]) if i not in masked]
    partly = [text for _, _, text in found(row)]
    return [block for text in texts for block in text.split("\n\n") if block not in partly]


def test_a_page_without_text_has_no_neighbours() -> None:
    row = make.document_row([make.picture_segment("m")])
    assert list(page(row, frozenset(), 20).neighbours()) == []
    assert marked([row])[0]["masks"] == []
