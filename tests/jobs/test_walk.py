"""Walking one document through a run, and finding it by id, prefix or uri."""

import io
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from jobs.errors import JobError
from jobs.run_directory import open_run
from jobs.walk import find_document, walk
from schemas import ids, shard
from tests import make
from tests.jobs.make_run import (
    ADDRESS,
    BATCH_SEQUENCES,
    BROKEN_URI,
    CONTACT_URI,
    COPY_URI,
    EMAIL,
    FIGURES_URI,
    NUM_STEPS,
    PHONE,
    make_run,
)

CONTACT_ID = ids.document_id("test", CONTACT_URI, "")


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_run(str(tmp_path_factory.mktemp("run") / "small"))


def walked(run_path: str, wanted: str) -> str:
    sink = io.StringIO()
    walk(run_path, wanted, Console(file=sink, width=120))
    return sink.getvalue()


def stage(text: str, name: str) -> str:
    """The lines under one heading."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"{name} ─"))
    rest = [i for i, line in enumerate(lines) if i > first and "────" in line]
    return "\n".join(lines[first + 1 : rest[0] if rest else len(lines)])


def test_id_prefix_and_uri_find_the_same_document(run_path: str) -> None:
    run = open_run(run_path)
    assert {find_document(run, name) for name in (CONTACT_ID, CONTACT_ID[:6], CONTACT_URI)} == {CONTACT_ID}


def test_each_stage_prints_what_it_changed(run_path: str) -> None:
    text = walked(run_path, CONTACT_ID)
    assert "heading    Reach the team" in stage(text, "ingest")
    assert stage(text, "clean") == "lang: None → en"
    for value, reason in ((EMAIL, "email"), (PHONE, "phone"), (ADDRESS, "ip")):
        assert f"mask {reason} no_loss segment 1" in stage(text, "mask_text") and repr(value) in stage(
            text, "mask_text"
        )
    assert stage(text, "mask_media") == "mask repeated_image drop segment 2 by mask_media"
    assert "left: repeated_image" in stage(text, "interleave")
    assert "masks applied: 1, masks left: 3" in stage(text, "interleave")


def test_changed_text_is_shown_before_and_after(run_path: str) -> None:
    changes = stage(walked(run_path, FIGURES_URI), "clean").splitlines()
    assert [line[:2] + line.split("heading")[1].strip() for line in changes[1:]] == [
        "- Working with  layers",
        "+ Working with layers",
    ]


def test_tokens_are_decoded_with_their_weights_and_reasons(run_path: str) -> None:
    lines = stage(walked(run_path, CONTACT_ID), "tokenize").splitlines()
    masked = [line.split() for line in lines if EMAIL in line]
    assert masked[0][1:] == ["text", "1", "paragraph", "0", "email", EMAIL]
    assert any(
        "]<]image[>[×4" in line for line in stage(walked(run_path, FIGURES_URI), "tokenize").splitlines()
    )


def test_plan_rows_name_the_training_step_that_took_them(run_path: str) -> None:
    text = stage(walked(run_path, CONTACT_ID), "plan and training")
    planned = open_run(run_path).find_rows("plan", "plan", CONTACT_ID)
    assert len(planned) == len(text.splitlines()) > 0
    for row, line in zip(planned, text.splitlines(), strict=True):
        assert f"tokens {row['start']}–{row['end']} → sequence {row['sequence']} at {row['position']}" in line
        assert f"training step {row['sequence'] // BATCH_SEQUENCES + 1}, text loss there" in line


def test_sequences_after_the_last_step_are_not_called_trained_on(run_path: str) -> None:
    run = open_run(run_path)
    plan = run.table("plan", "plan")
    assert plan is not None
    late = next(row for row in plan.to_pylist() if row["sequence"] >= NUM_STEPS * BATCH_SEQUENCES)
    line = stage(walked(run_path, late["doc_id"]), "plan and training").splitlines()[-1]
    assert f"not trained on: step {NUM_STEPS + 1} of {NUM_STEPS} taken" in line


def test_held_out_documents_say_so(run_path: str) -> None:
    held_out = open_run(run_path).table("plan", "heldout")
    assert held_out is not None
    assert "held out for evaluation" in walked(run_path, held_out["doc_id"][0].as_py())


def test_the_walk_of_a_dropped_document_ends_where_it_left(run_path: str) -> None:
    text = walked(run_path, COPY_URI)
    assert "dropped here: exact_duplicate" in stage(text, "dedupe_text")
    assert text.splitlines()[-1].startswith("dropped here") and "mask_text ─" not in text


def test_scores_are_printed_with_missing_ones_named(run_path: str) -> None:
    run = open_run(run_path)
    table = run.table("score_text_quality", "scores")
    assert table is not None
    unscored = next(row["doc_id"] for row in table.to_pylist() if row["score"] is None)
    assert stage(walked(run_path, unscored), "score_text_quality") == "document: no score: too_short"
    assert stage(walked(run_path, FIGURES_URI), "score_alignment").startswith("segment 2: ")


def test_an_unknown_document_names_the_nearest_ones(run_path: str) -> None:
    with pytest.raises(JobError, match=rf"no document 'pages/contcat.html'.*nearest are .*{CONTACT_URI}"):
        walked(run_path, "pages/contcat.html")


def test_what_fits_several_documents_is_refused_with_the_candidates(tmp_path: Path) -> None:
    rows = [make.document_row([make.text("a")], "same.html", doc_id=f"abcd{i}{'0' * 27}") for i in range(2)]
    table = pa.Table.from_batches([make.documents(rows)])
    file = shard.write_table(str(tmp_path / "steps/ingest-1/documents-00000.arrow"), table)
    shard.write_manifest(
        str(tmp_path / "steps/ingest-1"), shard.Manifest("ingest-1", "1", {}, [], 2, 2, {}, {}, [file])
    )
    shard.write_json(
        str(tmp_path / "run.json"), {"name": "two", "spec": {}, "steps": {"ingest": "steps/ingest-1"}}
    )
    for wanted in ("abcd", "same.html"):
        with pytest.raises(
            JobError, match=rf"'{wanted}' fits 2 documents: abcd00000000 \(same.html\), abcd1"
        ):
            walked(str(tmp_path), wanted)
    assert find_document(open_run(str(tmp_path)), "abcd1").startswith("abcd1")


def test_a_prefix_below_four_characters_is_not_taken(run_path: str) -> None:
    with pytest.raises(JobError, match="nearest are"):
        walked(run_path, CONTACT_ID[:3])


def test_an_input_in_quarantine_says_why_it_became_no_document(run_path: str) -> None:
    with pytest.raises(
        JobError, match=f"{BROKEN_URI} became no document: NotText in ingest: bytes 0-40 are no HTML"
    ):
        walked(run_path, BROKEN_URI)


def test_a_run_without_documents_is_one_clear_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = make_run(str(tmp_path_factory.mktemp("run") / "part"), steps=("pretrain",))
    with pytest.raises(JobError, match=r"no document step .* has finished"):
        walked(path, CONTACT_ID)
