"""Duplicates by text and media: what merges, what does not, who stays; order and split do not matter."""

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datapipe.spec import DedupeTextSpec
from datapipe.stages import dedupe_pairs, dedupe_text, shingles
from datapipe.stages.words import words as words_of
from schemas import document, ids
from tests import make

SPEC = DedupeTextSpec()
# Bands of one: no pair is missed, and buckets are large.
EVERY_PAIR = DedupeTextSpec(num_permutations=30, num_bands=30)


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


def clusters_of(
    batch: pa.RecordBatch,
    spec: DedupeTextSpec = SPEC,
    batch_rows: int = 100,
    num_buckets: int = 3,
    media_clusters: pa.Table | None = None,
) -> pa.Table:
    """All parts but the last, with a signature table for each batch."""
    parts = [batch.slice(start, batch_rows) for start in range(0, batch.num_rows, batch_rows)]
    signed = [pa.table(dedupe_text.signatures(part, spec, media_clusters)) for part in parts]
    keys = [dedupe_text.keys(table, spec, num_buckets) for table in signed]
    assert all(len(of_table) == num_buckets for of_table in keys)
    buckets = [[of_table[bucket] for of_table in keys] for bucket in range(num_buckets)]
    pairs = pa.concat_tables([dedupe_text.pairs(bucket, signed, spec) for bucket in buckets])
    return dedupe_text.cluster(pairs, signed, spec)


def run(rows: list[dict[str, Any]], spec: DedupeTextSpec = SPEC, **split: Any) -> pa.RecordBatch:
    """All parts over these rows, as one batch."""
    batch = make.documents(rows)
    clusters = clusters_of(batch, spec, **split)
    assert clusters.schema == dedupe_text.CLUSTERS
    result = dedupe_text.mark(batch, clusters)
    document.validate(result)
    return result


def fates(
    rows: list[dict[str, Any]], spec: DedupeTextSpec = SPEC, **split: Any
) -> dict[str, tuple[str | None, str | None]]:
    """(uri of the representative, how it is a duplicate) by uri."""
    by_id = {r["doc_id"]: r["uri"] for r in rows}
    return {
        r["uri"]: (by_id.get(r["cluster_id"]), r["drop_reason"] and r["drop_reason"].split("_")[1])
        for r in run(rows, spec, **split).to_pylist()
    }


ALONE = (None, None)


def test_planted_duplicates_are_found_and_the_longest_text_stays() -> None:
    found = words(0, 300)
    rows = [
        row("near", " ".join(edited(found, 3, 1))),
        row("long", " ".join([*found, "and", "more"])),
        row("copy1", " ".join(found)),
        row("copy2", "  " + ", ".join(found).upper() + "!\n"),
        row("other", " ".join(words(9, 300))),
    ]
    copies = sorted(("copy1", "copy2"), key=lambda name: ids.document_id("test", name, ""))
    assert fates(rows) == {
        "near": ("long", "near"),
        "long": ("long", None),
        "other": ALONE,
        copies[0]: ("long", "near"),
        copies[1]: ("long", "exact"),
    }
    assert run(rows)["cluster_size"].to_pylist() == [4, 4, 4, 4, 1]


@pytest.mark.parametrize(("changed", "merges"), [(10, True), (11, True), (12, False), (13, False)])
def test_the_limit_is_exact(changed: int, merges: bool) -> None:
    """104 words are 100 shingles; the last 11 changed leave 89 of 111 (0.802), 12 leave 88 of 112 (0.786)."""
    for seed in range(10):
        found = words(seed, 104)
        other = found[: 104 - changed] + words(seed + 1000, changed)
        result = fates([row("a", " ".join(found)), row("b", " ".join(other))])
        assert (result["a"] != ALONE) == merges


def test_the_limit_can_be_moved() -> None:
    found = words(1, 400)
    rows = [row("a", " ".join(found)), row("b", " ".join(edited(found, 20, 2)))]  # Jaccard about 0.6
    assert set(fates(rows).values()) == {ALONE}
    loose = DedupeTextSpec(min_similarity=0.5, num_permutations=120, num_bands=40)
    assert sorted(reason or "" for _, reason in fates(rows, loose).values()) == ["", "near"]


def test_line_structure_and_segments_do_not_count() -> None:
    found = words(2, 200)
    page = [make.text(" ".join(found[start : start + 40])) for start in range(0, 200, 40)]
    lines = "\n".join("  ".join(found[start : start + 7]) for start in range(0, 200, 7))
    rows = [make.document_row(page, "page.html"), make.document_row([make.text(lines)], "page.pdf")]
    assert sorted(kind or "" for _, kind in fates(rows).values()) == ["", "exact"]


# ---- media


def test_near_duplicates_with_another_advertisement_merge() -> None:
    found = words(3, 300)
    rows = [
        row("a", " ".join(found), "m1", "m2", "ad1"),
        row("b", " ".join(edited(found, 1, 1)) + " end", "m1", "m2", "ad2"),
        row("c", " ".join(found), *(f"n{i}" for i in range(8))),  # a page of other pictures
    ]
    result = fates(rows)
    assert result == {"a": ("b", "near"), "b": ("b", None), "c": ALONE}


def test_a_short_text_with_other_media_stays_apart() -> None:
    title, caption = "Figure", " ".join(words(4, 40))
    rows = [
        row("t1", title, "m1"),
        row("t2", title, "m2"),
        row("t3", title, "m1"),
        row("c1", caption, "m1"),
        row("c2", caption, "m2"),
        row("c3", caption + " x", "m1"),
    ]
    result = fates(rows)
    assert result["t2"] == result["c2"] == ALONE
    assert sorted(str(result[name][1]) for name in ("t1", "t3")) == ["None", "exact"]
    assert result["c1"] == ("c3", "near") and result["c3"] == ("c3", None)
    by_text = fates(rows, DedupeTextSpec(media_words=0))
    assert by_text["t2"][0] == by_text["t1"][0] is not None and by_text["c2"][0] == "c3"


def test_the_same_media_with_another_text_stay_apart() -> None:
    """A translation keeps its pictures; a stub is full of its site's icons."""
    media = [f"m{i}" for i in range(30)]
    rows = [row(f"{seed}", " ".join(words(seed, 20)), *media) for seed in range(3)]
    assert set(fates(rows).values()) == {ALONE}


def test_media_make_up_for_some_text() -> None:
    found = words(5, 104)
    other = found[:86] + words(6, 18)  # 82 of 118 shingles: 0.69
    media = [f"m{i}" for i in range(10)]  # with these 182 of 218: 0.83
    assert set(fates([row("a", " ".join(found)), row("b", " ".join(other))], EVERY_PAIR).values()) == {ALONE}
    rows = [row("a", " ".join(found), *media), row("b", " ".join(other), *media)]
    assert sorted(kind or "" for _, kind in fates(rows, EVERY_PAIR).values()) == ["", "near"]


def test_media_that_could_not_be_had_are_not_other_media() -> None:
    text = " ".join(words(7, 60))
    rows = [row("bare", text), row("shown", text, "m1", "m2"), row("lost", text, None, None, None)]
    assert fates(rows) == {"bare": ALONE, "shown": ("shown", None), "lost": ("shown", "near")}


def test_documents_without_text_go_by_their_media() -> None:
    media = [f"m{i}" for i in range(10)]
    rows = [
        row("a", "", *media),
        row("b", "", *media),
        row("c", "", *media[:9]),
        row("d", "", *media[:5]),
        row("e", "", "m1"),
    ]
    result = fates(rows)
    assert sorted(str(result[name][1]) for name in "ab") == ["None", "exact"]
    assert result["c"][1] == "near" and result["d"] == result["e"] == ALONE


def test_media_clusters_say_which_media_show_the_same() -> None:
    text = " ".join(words(8, 30))
    rows = [row("png", text, "m1"), row("jpeg", text, "m2"), row("video", text, "m3")]
    rows[2]["segments"][1] |= {"kind": "video"}
    assert set(fates(rows).values()) == {ALONE}
    table = pa.table({"media_id": ["m1", "m2", "m3"], "cluster_id": ["m1"] * 3, "cluster_size": [3] * 3})
    result = fates(rows, media_clusters=table)
    assert sorted(str(kind) for _, kind in result.values()) == ["None", "exact", "exact"]


def test_what_a_drop_mask_covers_does_not_count() -> None:
    found, advertisement = words(9, 60), "buy now " * 40
    rows = [row("plain", " ".join(found)), row("masked", advertisement + " ".join(found), "m1")]
    mask = {"box": None, "reason": "boilerplate", "action": "drop", "detector": "test"}
    assert fates(rows)["plain"] == ALONE
    rows[1]["masks"] = [
        {"segment": 0, "start": 0, "end": len(advertisement), **mask},
        {"segment": 1, "start": None, "end": None, **mask},
    ]
    assert sorted(kind or "" for _, kind in fates(rows).values()) == ["", "exact"]
    for no_loss in rows[1]["masks"]:
        no_loss["action"] = "no_loss"
    assert fates(rows)["plain"] == ALONE


# ---- awkward documents


def test_short_texts_are_duplicates_where_all_words_are_equal() -> None:
    texts = {
        "a": "Save the file",
        "b": "Save, the FILE!",
        "c": "Save the files",
        "d": "Save",
        "e": "file the Save",
    }
    result = fates([row(name, text) for name, text in texts.items()])
    assert sorted(str(result[name][1]) for name in "ab") == ["None", "exact"]
    assert result["c"] == result["d"] == result["e"] == ALONE


def test_documents_of_nothing_are_no_duplicates() -> None:
    rows = [row("a", ""), row("b", ""), row("c", "*** --- ***"), row("d", "", None), row("e", "", None)]
    assert set(fates(rows).values()) == {ALONE}
    assert fates([row("a", "")]) == {"a": ALONE}
    assert run([]).num_rows == 0


def test_texts_without_spaces_are_compared_by_characters() -> None:
    rng = random.Random(4)
    text = [chr(0x4E00 + rng.randrange(2000)) for _ in range(300)]
    rows = [
        row("a", "".join(text)),
        row("b", "".join([*text[:150], "新", *text[151:]]) + "。終"),
        row("c", "".join(reversed(text))),
    ]
    assert fates(rows) == {"a": ("b", "near"), "b": ("b", None), "c": ALONE}


def test_compatibility_characters_and_case_do_not_count() -> None:
    rows = [row("a", "Der Fluß, ﬁnal Ｗｉｄｅ ①"), row("b", "der FLUSS; final wide 1")]
    assert sorted(kind or "" for _, kind in fates(rows).values()) == ["", "exact"]


def test_what_was_dropped_for_another_reason_takes_no_part() -> None:
    text = " ".join(words(6, 60))
    rows = [row("a", text), {**row("b", text + " more"), "drop_reason": "by_hand"}]
    assert run(rows)["drop_reason"].to_pylist() == [None, "by_hand"]
    assert run(rows)["cluster_size"].to_pylist() == [1, 1]


# ---- many documents


def test_a_chain_does_not_merge_its_ends() -> None:
    chain = [words(5, 400)]
    for step in range(12):
        chain.append(edited(chain[-1], 6, step))  # neighbours about 0.86, the ends about 0.2
    texts = {f"{i}": " ".join(found) for i, found in enumerate(chain)}
    result = fates([row(name, text) for name, text in texts.items()])
    for name, (representative, _) in result.items():
        assert representative is None or similarity(texts[name], texts[representative]) >= 0.8
    assert 3 <= sum(kind is None for _, kind in result.values()) <= 8


def test_a_giant_bucket_of_one_template_is_compared_with_its_best_document_once() -> None:
    found = words(10, 60)
    batch = make.documents([row(f"{i}", " ".join([*found, f"number{i}"])) for i in range(2000)])
    signed = pa.table(dedupe_text.signatures(batch, SPEC))
    pairs = dedupe_text.pairs(dedupe_text.keys(signed, SPEC, 1), [signed], SPEC)
    assert pairs.num_rows < 3 * 2000
    clusters = dedupe_text.cluster(pairs, [signed], SPEC)
    assert clusters["cluster_size"].unique().to_pylist() == [2000]
    assert clusters["duplicate"].value_counts().to_pylist()[1]["counts"] in (1, 1999)


def test_copies_are_compared_once() -> None:
    text = " ".join(words(11, 30))
    one = dedupe_text.signatures(make.documents([row("a", text), row("b", text + " and more")]), SPEC)
    num_copies = 20_000
    signed = pa.table(one).take(pa.array([0] * num_copies + [1]))
    doc_ids = pa.array([f"{i:032x}" for i in range(num_copies + 1)])
    signed = signed.set_column(0, dedupe_text.SIGNATURES.field(0), doc_ids)
    pairs = dedupe_text.pairs(dedupe_text.keys(signed, SPEC, 1), [signed], SPEC)
    assert pairs.num_rows == num_copies  # a star of copies, and one near-duplicate
    clusters = dedupe_text.cluster(pairs, [signed], SPEC)
    assert set(clusters["cluster_id"].to_pylist()) == {doc_ids[num_copies].as_py()}
    counts = {c["values"]: c["counts"] for c in clusters["duplicate"].value_counts().to_pylist()}
    assert counts == {"exact": num_copies - 1, "near": 1, None: 1}


def test_a_giant_bucket_of_boilerplate_merges_nothing() -> None:
    boilerplate = " ".join(words(12, 100))
    rows = [row(f"{i}", boilerplate + " " + " ".join(words(i, 100))) for i in range(100, 250)]
    assert set(fates(rows, EVERY_PAIR).values()) == {ALONE}


def test_recall_is_complete_and_nothing_merges_below_the_limit() -> None:
    texts = {}
    for number in range(300):
        found = words(1000 + number, 200)
        texts[f"{number}"] = " ".join(found)
        texts[f"{number}-copy"] = " ".join(edited(found, number % 12, number))
    result = fates([row(name, text) for name, text in texts.items()])
    for number in range(300):
        is_near = similarity(texts[f"{number}"], texts[f"{number}-copy"]) >= 0.8
        assert (result[f"{number}"][0] is not None) == is_near
        assert result[f"{number}"][0] in (None, f"{number}", f"{number}-copy")


# ---- properties


def similarity(left: str, right: str, size: int = 5) -> float:
    """Jaccard similarity of the shingles, the plain way."""
    a, b = (
        {tuple(found[i : i + size]) for i in range(max(len(found) - size + 1, 1))}
        for found in (words_of(left), words_of(right))
    )
    return len(a & b) / len(a | b)


def expected_kept(texts: list[str]) -> set[str]:
    """The plain way: from the longest on, a text stays unless one that stays is similar.

    The order of equally long texts is that of the hash of their words, taken from the signatures.
    """
    batch = make.documents([row(f"{i}", text) for i, text in enumerate(texts)])
    content = dedupe_text.signatures(batch, SPEC)["content"].to_pylist()
    order = sorted(range(len(texts)), key=lambda i: (-len(words_of(texts[i])), content[i]))
    kept: list[str] = []
    for i in order:
        if all(similarity(texts[i], other) < SPEC.min_similarity for other in kept):
            kept.append(texts[i])
    return set(kept)


@st.composite
def families(draw: st.DrawFn) -> list[str]:
    """Texts of a few families, each member edited from an earlier one: copies, chains and stars."""
    texts: list[list[str]] = [words(draw(st.integers(0, 3)), draw(st.sampled_from([3, 30, 60])))]
    for _ in range(draw(st.integers(0, 14))):
        parent = draw(st.sampled_from(texts))
        edits = min(draw(st.sampled_from([0, 0, 1, 1, 2])), len(parent))
        texts.append(edited(parent, edits, draw(st.integers(0, 9))) + ["z"] * draw(st.integers(0, 2)))
    return [" ".join(text) for text in texts]


@pytest.mark.parametrize("all_pairs", [1, 32])
def test_the_kept_set_is_that_of_the_plain_way(monkeypatch: pytest.MonkeyPatch, all_pairs: int) -> None:
    """With `ALL_PAIRS` at 1 every bucket is compared by stars."""
    monkeypatch.setattr(dedupe_pairs, "ALL_PAIRS", all_pairs)

    base = words(3, 30)  # the star of most bands is almost like `base`, yet not similar
    star = [*base[:3], "v2", *base[4:], "z", "z"]

    @settings(max_examples=20)
    @given(families())
    @example([" ".join(text) for text in (base, [*base, "z", "z"], base, base, star)])
    def check(texts: list[str]) -> None:
        rows = [row(f"{i}", text) for i, text in enumerate(texts)]
        result = fates(rows, EVERY_PAIR)
        kept = {texts[int(name)] for name, (_, kind) in result.items() if kind is None}
        assert kept == expected_kept(texts)
        for name, (representative, kind) in result.items():
            if representative is not None:
                assert similarity(texts[int(name)], texts[int(representative)]) >= SPEC.min_similarity
                assert (kind is None) == (representative == name)

    check()


MEDIA = st.lists(st.sampled_from(["m1", "m2", "m3", None]), max_size=3)


@settings(max_examples=20)
@given(
    families(), st.lists(MEDIA, min_size=15, max_size=15), st.randoms(), st.integers(1, 12), st.integers(1, 5)
)
def test_only_the_marks_change_and_neither_order_nor_split_nor_a_second_run_matters(
    texts: list[str], media: list, rng: random.Random, batch_rows: int, num_buckets: int
) -> None:
    rows = [row(f"{i}", text, *shown) for i, (text, shown) in enumerate(zip(texts, media, strict=False))]
    once = run(rows)
    marks = ["cluster_id", "cluster_size", "drop_reason"]
    assert once.schema == document.SCHEMA
    assert once.drop_columns(marks) == make.documents(rows).drop_columns(marks)
    assert run(once.to_pylist(), batch_rows=batch_rows, num_buckets=num_buckets) == once
    by_id = {r["doc_id"]: r for r in once.to_pylist()}
    rng.shuffle(rows)
    again = run(rows, batch_rows=batch_rows, num_buckets=num_buckets)
    assert {r["doc_id"]: r for r in again.to_pylist()} == by_id
    for r in by_id.values():  # one document of each cluster stays: its representative
        assert (r["drop_reason"] is None) == (r["cluster_id"] in (None, r["doc_id"]))
    kept = [r for r in by_id.values() if r["drop_reason"] is None]
    assert run(kept)["drop_reason"].null_count == len(kept)


@settings(max_examples=200)
@given(
    st.lists(
        st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("ab .\n保存ไทยéßﬁ"))),
        max_size=5,
    )
)
def test_word_hashes_stand_for_the_words_of_every_script(texts: list[str]) -> None:
    hashes, offsets = shingles.word_hashes(texts)
    expected = [words_of(shingles._folded(text)) for text in texts]
    assert np.diff(offsets).tolist() == [len(found) for found in expected]
    by_word = dict(zip((w for found in expected for w in found), hashes.tolist(), strict=True))
    assert [by_word[w] for found in expected for w in found] == hashes.tolist()
    assert len(set(by_word.values())) == len(by_word)


def test_long_texts_and_many_texts_have_the_same_hashes_as_one_by_one() -> None:
    texts = [" ".join(words(seed, count)) for seed, count in [(1, 40_000), (2, 3), (3, 0), (4, 20_000)]]
    together, _ = shingles.word_hashes(texts)
    apart = [shingles.word_hashes([text])[0] for text in texts]
    assert together.tolist() == np.concatenate(apart).tolist()


# ---- specs, and hashes that must not change


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_bands": 10}, "num_bands: 10 does not divide num_permutations 125"),
        (
            {"min_similarity": 0.4},
            "num_bands: 25 bands of 5 find only 23% of the pairs at min_similarity 0.4",
        ),
    ],
)
def test_bands_that_cannot_work_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DedupeTextSpec(**fields)


# The hash of some keys. If it changes, the hash functions did: the stage's `VERSION` must change too.
KEYS_ID = "e5553e2a0675ff221e0650dc0a3218ad"
PROGRAM = """
from datapipe.stages import shingles
from schemas import ids
hashes, offsets = shingles.word_hashes(["The quick brown fox jumps över den lazy Hund.", "保存文件"])
sets, set_offsets = shingles.shingle_sets(hashes, offsets, 5)
signatures = shingles.minhash(sets, set_offsets, 125, 1)
print(ids.fingerprint([sets.tolist(), shingles.band_keys(signatures, 25).tolist()]))
"""


def test_keys_are_the_same_in_every_process() -> None:
    command = [sys.executable, "-c", PROGRAM]
    environment = {"PYTHONHASHSEED": "7", "PYTHONPATH": "."}
    other = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert other.stdout.strip() == KEYS_ID
