"""Duplicates by text: what merges, what does not, who stays, and that order and split do not matter."""

import random
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.spec import DedupeTextSpec
from datapipe.stages import dedupe_text
from schemas import document, ids
from tests import make

SPEC = DedupeTextSpec()


def words(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [f"w{rng.randrange(5000)}" for _ in range(count)]


def edited(found: list[str], edits: int, seed: int) -> list[str]:
    """The words with some replaced; each replaced word changes `shingle_words` shingles."""
    rng, result = random.Random(seed), list(found)
    for place in rng.sample(range(len(found)), edits):
        result[place] = f"v{rng.randrange(5000)}"
    return result


def row(name: str, text: str, *media: str | None) -> dict[str, Any]:
    return make.document_row([make.text(text), *(make.picture_segment(m) for m in media)], name)


def run(rows: list[dict[str, Any]], spec: DedupeTextSpec = SPEC, batch_rows: int = 100) -> pa.RecordBatch:
    """All three parts over batches of this size, as one batch."""
    batch = make.documents(rows)
    parts = [batch.slice(start, batch_rows) for start in range(0, batch.num_rows, batch_rows)]
    table = pa.Table.from_batches([dedupe_text.signatures(part, spec) for part in parts])
    clusters = dedupe_text.cluster(table, spec)
    assert clusters.schema == dedupe_text.CLUSTERS
    marked = [dedupe_text.mark(part, clusters, spec) for part in parts]
    result = pa.Table.from_batches(marked, document.SCHEMA).combine_chunks().to_batches()[0]
    document.validate(result)
    return result


def fates(
    rows: list[dict[str, Any]], spec: DedupeTextSpec = SPEC
) -> dict[str, tuple[str | None, str | None]]:
    """(uri of the representative, drop reason) by uri."""
    by_id = {r["doc_id"]: r["uri"] for r in rows}
    return {r["uri"]: (by_id.get(r["cluster_id"]), r["drop_reason"]) for r in run(rows, spec).to_pylist()}


def test_planted_duplicates_are_found_and_the_longest_text_stays() -> None:
    found = words(0, 300)
    rows = [
        row("near", " ".join(edited(found, 3, 1))),
        row("long", " ".join([*found, "and", "more"])),
        row("copy1", " ".join(found)),
        row("copy2", "  " + " ".join(found).upper() + "\n"),
        row("other", " ".join(words(9, 300))),
    ]
    copies = sorted(("copy1", "copy2"), key=lambda name: ids.document_id("test", name, ""))
    assert fates(rows) == {
        "near": ("long", "duplicate_near"),
        "long": ("long", None),
        "other": (None, None),
        copies[0]: ("long", "duplicate_near"),
        copies[1]: ("long", "duplicate_exact"),
    }


def test_similarity_decides_and_its_limit_can_be_moved() -> None:
    found = words(1, 400)
    rows = [row("a", " ".join(found)), row("b", " ".join(edited(found, 20, 2)))]  # Jaccard about 0.63
    assert fates(rows) == {"a": (None, None), "b": (None, None)}
    loose = DedupeTextSpec(min_similarity=0.5, num_bands=64)
    assert sorted(reason or "" for _, reason in fates(rows, loose).values()) == ["", "duplicate_near"]


def test_of_equal_texts_the_one_with_more_media_stays() -> None:
    text = " ".join(words(2, 60))
    rows = [row("bare", text), row("shown", text, "m1", "m2"), row("lost", text, None, None, None)]
    assert fates(rows) == {
        "bare": ("shown", "duplicate_exact"),
        "shown": ("shown", None),
        "lost": ("shown", "duplicate_exact"),
    }


def test_short_texts_merge_only_with_the_same_media() -> None:
    title, caption = "Figure", " ".join(words(3, 40))
    rows = [
        row("t1", title, "m1"),
        row("t2", title, "m2"),
        row("t3", title, "m1"),
        row("t4", title, "m1", None),
        row("c1", caption, "m1"),
        row("c2", caption, "m2"),
        row("c3", caption + " x", "m1"),
    ]
    result = fates(rows)
    assert result["t2"] == result["c2"] == (None, None)
    assert sorted(str(result[name][1]) for name in ("t1", "t3", "t4")) == ["None"] + ["duplicate_exact"] * 2
    assert result["c1"] == ("c3", "duplicate_near") and result["c3"] == ("c3", None)
    by_text = fates(rows, DedupeTextSpec(min_words_without_media=0))
    assert by_text["t2"][0] == by_text["t1"][0] is not None and by_text["c2"][0] == "c3"


def test_texts_below_a_shingle_are_no_near_duplicates_and_those_without_text_go_by_media() -> None:
    rows = [
        row("a", "Save the file"),
        row("b", "Save, the file"),
        row("c", "", "m1"),
        row("d", "", "m1"),
        row("e", "", "m2"),
    ]
    result = fates(rows)
    assert result["a"] == result["b"] == result["e"] == (None, None)
    assert result["c"][0] == result["d"][0] is not None


def test_texts_without_spaces_are_compared_by_characters() -> None:
    rng = random.Random(4)
    text = [chr(0x4E00 + rng.randrange(2000)) for _ in range(300)]
    rows = [
        row("a", "".join(text)),
        row("b", "".join([*text[:150], "新", *text[151:]]) + "。終"),
        row("c", "".join(reversed(text))),
    ]
    assert fates(rows) == {"a": ("b", "duplicate_near"), "b": ("b", None), "c": (None, None)}


def test_a_chain_of_near_duplicates_is_one_cluster() -> None:
    chain = [words(5, 400)]
    for step in range(8):
        chain.append(edited(chain[-1], 4, step))
    result = fates([row(f"{i}", " ".join(found)) for i, found in enumerate(chain)])
    assert len({cluster for cluster, _ in result.values()}) == 1
    assert sum(reason is None for _, reason in result.values()) == 1


def test_what_was_dropped_before_keeps_its_reason() -> None:
    text = " ".join(words(6, 60))
    rows = [{**row(name, text), "drop_reason": "by_hand"} for name in "abc"]
    assert run(rows)["drop_reason"].to_pylist() == ["by_hand"] * 3


def test_recall_and_precision_on_planted_pairs() -> None:
    rows, planted = [], set()
    for number in range(60):
        found = words(100 + number, 200)
        rows.append(row(f"{number}", " ".join(found)))
        if number % 2:
            # 0 to 5 of 200 words edited: Jaccard 1.0 down to about 0.78
            rows.append(row(f"{number}-copy", " ".join(edited(found, number % 6, number))))
            if number % 6 < 4:
                planted.add(number)
    result = fates(rows)
    merged = {number for number in range(60) if result[f"{number}"][0] is not None}
    assert planted <= merged  # all with a Jaccard similarity of at least 0.86
    assert all(
        cluster in (None, name, f"{name}-copy", name.removesuffix("-copy"))
        for name, (cluster, _) in result.items()
    )


def test_no_documents_give_no_clusters() -> None:
    none = dedupe_text.SIGNATURES.empty_table()
    assert dedupe_text.cluster(none, SPEC) == dedupe_text.CLUSTERS.empty_table()
    assert run([row("a", "")])["drop_reason"].to_pylist() == [None]


def test_num_bands_must_divide_num_permutations() -> None:
    with pytest.raises(ValueError, match="num_bands: 10 does not divide num_permutations 128"):
        DedupeTextSpec(num_bands=10)


# The hash of one signature. If it changes, the hash functions did: the stage's `VERSION` must change too.
SIGNATURE_ID = "56e6ad8a9646dd804c19068735c09aaf"
PROGRAM = """
from tests.datapipe.test_dedupe_text import signature_id
print(signature_id())
"""


def signature_id() -> str:
    signatures = dedupe_text.signatures(make.documents([row("a", " ".join(words(7, 100)))]), SPEC)
    return ids.fingerprint(signatures["minhash"].to_pylist())


def test_signatures_are_the_same_in_every_process() -> None:
    other = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": "."},
    )
    assert other.stdout.strip() == signature_id() == SIGNATURE_ID


# ---- properties

POOL = [words(seed, count) for seed, count in [(10, 3), (11, 30), (12, 60), (13, 120)]]
TEXTS = st.builds(
    lambda found, edits, seed: " ".join(edited(found, min(edits, len(found)), seed)),
    st.sampled_from(POOL),
    st.sampled_from([0, 0, 1, 2, 4]),
    st.integers(0, 5),
)
MEDIA = st.lists(st.sampled_from(["m1", "m2", None]), max_size=2)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(TEXTS, MEDIA), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
    st.integers(1, 12),
)
def test_only_cluster_and_reason_change_and_neither_order_nor_split_nor_a_second_run_matters(
    contents: list, rng: random.Random, batch_rows: int
) -> None:
    rows = [row(f"{i}", text, *media) for i, (text, media) in enumerate(contents)]
    once = run(rows)
    assert once.schema == document.SCHEMA
    marks = ["cluster_id", "cluster_size", "drop_reason"]
    assert once.drop_columns(marks) == make.documents(rows).drop_columns(marks)
    assert run(once.to_pylist(), batch_rows=batch_rows) == once
    by_id = {r["doc_id"]: r for r in once.to_pylist()}
    rng.shuffle(rows)
    assert {r["doc_id"]: r for r in run(rows, batch_rows=batch_rows).to_pylist()} == by_id
    for r in by_id.values():  # one document of each cluster stays: its representative
        assert (r["drop_reason"] is None) == (r["cluster_id"] in (None, r["doc_id"]))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(TEXTS, MEDIA), min_size=1, max_size=12))
def test_what_stays_has_no_more_duplicates_of_the_same_text(contents: list) -> None:
    rows = [row(f"{i}", text, *media) for i, (text, media) in enumerate(contents)]
    kept = [r for r in run(rows).to_pylist() if r["drop_reason"] is None]
    again = run([{**r, "cluster_id": None} for r in kept]).to_pylist()
    assert [r["drop_reason"] for r in again] == [None] * len(kept)
