import functools
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards import corruptions, crossfit, text_quality
from rewards.errors import StateError
from rewards.spec import TextQualitySpec
from schemas import document, scores
from tests import make

SPEC = TextQualitySpec(num_buckets=2**14, num_epochs=4)

SUBJECTS = (
    "the tool",
    "a layer",
    "the brush",
    "this filter",
    "the image",
    "our editor",
    "every channel",
    "the path",
)
VERBS = (
    "changes",
    "hides",
    "copies",
    "moves",
    "selects",
    "creates",
    "removes",
    "blends",
    "sharpens",
    "keeps",
)
OBJECTS = (
    "the selected pixels",
    "all colours",
    "a new layer",
    "the active selection",
    "the old mask",
    "the curve",
)
ENDINGS = (
    "when you press the key",
    "before the file is saved",
    "if the option is set",
    "in the main window",
    "until the dialog is closed",
    "so that nothing is lost",
    "as the preview shows",
    "after a short while",
)


def sentence(rng: np.random.Generator) -> str:
    subject, verb, target, ending = (str(rng.choice(words)) for words in (SUBJECTS, VERBS, OBJECTS, ENDINGS))
    return f"{subject.capitalize()} {verb} {target} {ending}."


def page(number: int, num_sentences: int = 24) -> str:
    rng = np.random.default_rng(number)
    return " ".join(sentence(rng) for _ in range(num_sentences))


def nonsense(number: int) -> str:
    rng = np.random.default_rng(number)
    return " ".join("".join(rng.choice(list("abcdefghijklmnop"), rng.integers(3, 9))) for _ in range(150))


def batch(texts: list[str]) -> pa.RecordBatch:
    rows = [
        make.document_row([make.text(text)], uri=f"page-{number}.html") for number, text in enumerate(texts)
    ]
    return document.with_media(make.documents(rows), make.media_table([]))


def features_of(texts: list[str]) -> pa.RecordBatch:
    return text_quality.features(batch(texts), SPEC)


@functools.cache
def corpus() -> pa.RecordBatch:
    return features_of([page(number) for number in range(120)])


@functools.cache
def fitted() -> text_quality.Fitted:
    return text_quality.fit(pa.Table.from_batches([corpus()]), SPEC)


def scored(features: pa.RecordBatch, state: bytes | None = None) -> pa.RecordBatch:
    result = text_quality.score(features, fitted().state if state is None else state, SPEC)
    scores.validate(result)
    return result


def test_scores_are_probabilities_one_for_each_document() -> None:
    result = scored(corpus())
    assert result["doc_id"] == corpus()["doc_id"]
    assert all(0 <= value <= 1 for value in result["score"].to_pylist())
    assert set(result["segment"].to_pylist()) == {None}
    assert max(result["uncertainty"].to_pylist()) > 0


@pytest.mark.parametrize("kind", sorted(set(corruptions.KINDS) - {"sentence_salad"}))
def test_a_corrupted_copy_scores_lower_than_its_original(kind: str) -> None:
    originals = [page(1000 + number) for number in range(40)]
    copies = [
        corruptions.corrupt(kind, text, [page(7), page(8)], np.random.default_rng(number))
        for number, text in enumerate(originals)
    ]
    before, after = (
        np.array(scored(features_of(texts))["score"].to_pylist()) for texts in (originals, copies)
    )
    assert (after < before).mean() >= 0.9


def test_the_report_holds_the_auc_on_documents_not_seen() -> None:
    report = fitted().report
    assert report["trained"] and report["num_documents"] == 120
    assert report["auc"] > 0.8
    assert set(report["auc_by_corruption"]) == set(corruptions.KINDS)
    assert sum(report["num_by_corruption"].values()) == report["num_corrupted"]


def test_no_document_is_scored_by_a_model_that_saw_it() -> None:
    """Texts of made-up words can only be remembered: under an id of another fold they score higher."""
    texts = [nonsense(number) for number in range(60)]
    trained_on = batch(texts)
    state = text_quality.fit(pa.Table.from_batches([text_quality.features(trained_on, SPEC)]), SPEC).state
    folds = crossfit.num_folds(SPEC.held_out_frac)
    renamed = []
    for doc_id in trained_on["doc_id"].to_pylist():
        own = crossfit.fold_of(doc_id, folds, SPEC.seed)
        names = (f"{doc_id}-{i}" for i in range(100))
        renamed.append(next(name for name in names if crossfit.fold_of(name, folds, SPEC.seed) != own))
    held_out = text_quality.features(trained_on, SPEC)
    remembered = held_out.set_column(0, text_quality.FEATURES.field("doc_id"), pa.array(renamed))
    means = [np.mean(scored(features, state)["score"].to_pylist()) for features in (held_out, remembered)]
    assert means[0] + 0.1 < means[1]


def test_too_little_text_is_null_with_its_reason_and_never_zero() -> None:
    result = scored(features_of(["", "Too short.", page(1)]))
    assert result["error"].to_pylist() == ["too_short", "too_short", None]
    assert result["score"].to_pylist()[:2] == [None, None]


def test_a_handful_of_documents_is_left_unscored() -> None:
    few = features_of([page(number) for number in range(5)])
    small = text_quality.fit(pa.Table.from_batches([few]), SPEC)
    assert not small.report["trained"] and small.report["reason"] == "too_few_documents"
    assert set(scored(few, small.state)["error"].to_pylist()) == {"too_few_documents"}


def test_text_that_corruption_cannot_change_is_left_unscored() -> None:
    same = features_of(["a " * 100] * 30)
    small = text_quality.fit(pa.Table.from_batches([same]), SPEC)
    result = scored(same, small.state)
    assert all(
        (value is None) != (error is None)
        for value, error in zip(result["score"].to_pylist(), result["error"].to_pylist(), strict=True)
    )


@settings(max_examples=25)
@given(st.lists(st.integers(0, 30), min_size=0, max_size=3))
def test_scores_do_not_depend_on_how_batches_are_split(cuts: list[int]) -> None:
    texts = [page(number) for number in range(30)]
    edges = [0, *sorted(cuts), 30]
    whole = scored(features_of(texts)).to_pylist()
    documents = batch(texts)
    parts = [
        scored(text_quality.features(documents.slice(start, end - start), SPEC)).to_pylist()
        for start, end in itertools.pairwise(edges)
    ]
    assert [row for part in parts for row in part] == whole


def test_training_gives_the_same_bytes_whatever_the_order_of_documents() -> None:
    shuffled = corpus().take(pa.array(np.random.default_rng(0).permutation(corpus().num_rows)))
    assert text_quality.fit(pa.Table.from_batches([shuffled]), SPEC).state == fitted().state


def test_stretches_are_about_equal_and_lose_nothing() -> None:
    text = page(3, num_sentences=60)
    stretches = text_quality.chunks(text)
    assert "".join(stretches) == text
    assert max(map(len, stretches)) < 1.5 * text_quality.CHUNK_CHARS


def test_a_state_of_another_spec_is_refused() -> None:
    with pytest.raises(StateError, match="this spec makes"):
        text_quality.score(corpus(), fitted().state, TextQualitySpec(num_buckets=2**10))
    with pytest.raises(StateError, match="no saved text_quality"):
        text_quality.score(corpus(), b"not a state", SPEC)


def test_text_without_spaces_is_shuffled_by_character() -> None:
    text = "图像处理软件可以修改图层和颜色。" * 10
    shuffled = corruptions.corrupt("word_shuffle", text, ["x"], np.random.default_rng(0))
    assert shuffled != text and sorted(shuffled) == sorted(text)
