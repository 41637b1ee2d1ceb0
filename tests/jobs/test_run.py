"""The whole path on a small corpus, through the command: repeated, killed, with another number of workers,
with bad input.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
import yaml

from jobs.run_directory import open_run
from jobs.trace import trace
from schemas import shard
from tests.jobs.make_corpus import write_corpus

TINY = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "rotary_dim": 4,
    "num_dense_layers": 1,
    "dense_intermediate_size": 64,
    "intermediate_size": 32,
    "shared_intermediate_size": 32,
    "num_experts": 4,
    "index_dim": 8,
    "block_size": 16,
    "top_k_blocks": 2,
    "projector_hidden_size": 32,
    "vocab_size": 512,
    "vision": {"hidden_size": 24, "intermediate_size": 32, "num_layers": 1, "num_heads": 2},
}

DATA_STEPS = (
    "ingest",
    "clean",
    "dedupe_media",
    "dedupe_text",
    "mask_text",
    "mask_repeats",
    "mask_video",
    "mask_media",
    "interleave",
    "tokenize",
    "score_text_quality",
    "plan",
)


def spec(corpus, output):
    """The demo's jobs at a size for tests."""
    return {
        "kind": "pipeline",
        "output": str(output),
        "num_workers": 2,
        "jobs": [
            {
                "kind": "prepare",
                "sources": [{"path": str(corpus), "standalone_media": True}],
                "ingest": {"documents_per_partition": 16},
                "clean": {"languages": ["en"]},
                "tokenize": {"vocab_size": 512, "patch_size": 8, "min_pixels": 256, "max_pixels": 1024},
            },
            {"kind": "score", "scorers": [{"kind": "text_quality", "num_epochs": 2}]},
            {
                "kind": "plan",
                "select": {"scorer": "text_quality"},
                "pack": {"context_length": 128, "held_out_frac": 0.1},
            },
            {"kind": "pretrain", "model": TINY, "num_steps": 8, "batch_sequences": 2, "save_every": 3},
            {"kind": "evaluate"},
            {
                "kind": "rl",
                "num_warm_start_steps": 2,
                "num_steps": 2,
                "prompts_per_step": 2,
                "rollouts_per_prompt": 2,
                "num_eval_tasks": 4,
            },
        ],
    }


def omniloom(*arguments, **popen):
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        **popen,
    )


def write_spec(path, value):
    path.write_text(yaml.safe_dump(value))
    return path


def steps(output):
    return json.loads((output / "run.json").read_text())["steps"]


def contents(output, name):
    """Files of a step, without those that hold times."""
    folder = output / steps(output)[name]
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != "metrics.jsonl"
    }


def losses(output, name="pretrain"):
    rows = map(json.loads, (output / steps(output)[name] / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if not k.startswith("step/") and "_per_s" not in k} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the whole path, undisturbed, with two workers."""
    folder = tmp_path_factory.mktemp("run")
    write_corpus(folder / "corpus")
    path = write_spec(folder / "spec.yaml", spec(folder / "corpus", folder / "out"))
    done = omniloom("run", path)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_every_step_is_there_and_the_funnel_is_told(finished):
    folder, stdout = finished
    out = folder / "out"
    assert set(steps(out)) == {*DATA_STEPS, "pretrain", "evaluate", "rl"}
    manifests = {name: shard.read_manifest(str(out / path)) for name, path in steps(out).items()}
    assert manifests["dedupe_media"].rows_in == 0  # it marks copies, and no row leaves
    assert manifests["ingest"].rows_in == 44 and manifests["ingest"].rows_out == 43
    quarantine = shard.read_step_table(str(out / steps(out)["ingest"]), "quarantine").to_pylist()
    assert [row["uri"] for row in quarantine] == ["broken.html"]
    assert manifests["dedupe_text"].dropped == {"duplicate_exact": 1}
    assert manifests["mask_text"].metrics["masks_pii_email"] == 1
    assert manifests["mask_media"].metrics["masks_repeated_image"] == manifests["mask_media"].rows_out - 2
    assert manifests["tokenize"].metrics["tokens_masked_pii_email"] > 0
    assert manifests["tokenize"].metrics["tokens_video"] > 0
    for line in ("report: ", "omniloom walk ", "make notebook RUN=", "pl.scan_ipc"):
        assert line in stdout
    assert (out / "report.html").stat().st_size > 10_000


def test_every_shard_holds_what_its_manifest_names_and_opens_in_polars(finished):
    out = finished[0] / "out"
    for path in steps(out).values():
        manifest = shard.read_manifest(str(out / path))
        shard.verify(str(out / path), manifest.files)
        for file in manifest.files:
            if file.name.endswith(".arrow"):
                assert pl.scan_ipc(out / path / file.name).collect().height == file.num_rows


def test_every_planned_token_can_be_traced_to_its_document(finished):
    out = finished[0] / "out"
    tokens = pl.read_ipc(
        str(out / steps(out)["tokenize"] / "tokens-*.arrow"), columns=["doc_id", "num_tokens"]
    )
    documents = pl.read_ipc(str(out / steps(out)["ingest"] / "documents-*.arrow"))
    plan = shard.read_step_table(str(out / steps(out)["plan"]), "plan").to_pylist()
    lengths = dict(tokens.iter_rows())
    assert set(lengths) <= set(documents["doc_id"])
    assert all(0 <= row["start"] < row["end"] <= lengths[row["doc_id"]] for row in plan)


def test_every_token_can_be_traced_to_its_characters_its_picture_and_its_file(finished):
    run = open_run(str(finished[0] / "out"))
    rows = [row for _, part in run.batches("tokenize", "tokens") for row in part.to_pylist()]
    private = [row for row in rows if any(span["reason"] == "pii_email" for span in row["spans"])]
    with_video = [row for row in rows if any(span["kind"] == "video" for span in row["spans"])]
    for row in (*rows[:1], *private, *with_video[:1]):
        said = ""
        for token in range(row["num_tokens"]):
            found = trace(run, row["doc_id"], token)
            if found.segment is None:
                assert found.span["kind"] == "special" and token in (0, row["num_tokens"] - 1)
                continue
            assert found.raw_segment["kind"] == found.segment["kind"]
            if found.span["kind"] == "text":
                characters = found.segment["text"][found.start : found.end]
                assert characters in found.raw_segment["text"]
                said += characters if found.span["reason"] == "pii_email" else ""
            else:
                assert found.image["media_id"] == found.raw_segment["media_id"]
        if row in private:
            assert said.strip() == "anna.berg@inselmuseum.org"
            assert ("mask_text", "pii_email") in [
                (step, mask["reason"]) for step, mask in found_masks(run, row)
            ]
    printed = omniloom("walk", private[0]["doc_id"], "--run", run.path, "--token", 5)
    assert "characters" in printed.stdout and "page-003.html" in printed.stdout
    beyond = omniloom("walk", private[0]["doc_id"], "--run", run.path, "--token", 10**6)
    assert beyond.returncode == 1 and "has tokens 0 to" in beyond.stderr


def found_masks(run, row):
    span = next(span for span in row["spans"] if span["reason"] == "pii_email")
    return trace(run, row["doc_id"], span["start"]).masks


def test_a_repeated_run_does_nothing_and_a_changed_one_only_what_follows(finished):
    folder, _ = finished
    before = {
        path: path.stat().st_mtime_ns for path in (folder / "out" / "steps").rglob("*") if path.is_file()
    }
    again = omniloom("run", folder / "spec.yaml")
    assert again.returncode == 0 and again.stdout.count("done before") == len(steps(folder / "out"))
    assert {
        path: path.stat().st_mtime_ns for path in (folder / "out" / "steps").rglob("*") if path.is_file()
    } == before
    changed = omniloom("run", folder / "spec.yaml", "--set", "evaluate.max_sequences=1")
    assert changed.returncode == 0 and changed.stdout.count("done before") == len(steps(folder / "out")) - 1
    prepare_only = spec(folder / "corpus", folder / "out")
    prepare_only["jobs"] = prepare_only["jobs"][:1]
    path = write_spec(folder / "prepare.yaml", prepare_only)
    (folder / "benchmark").mkdir()
    (folder / "benchmark" / "a.txt").write_text("Which of these eight words stands in no page here at all?")
    changes = ["clean.min_words=11", f"contamination={{sources: [{{path: {folder}/benchmark}}]}}"]
    assert omniloom("run", path, *(f"--set=prepare.{change}" for change in changes)).returncode == 0
    assert "contamination" in steps(folder / "out")
    assert "plan" not in steps(folder / "out")  # it was made from documents that this run no longer uses
    assert omniloom("run", folder / "spec.yaml").returncode == 0
    assert "contamination" not in steps(folder / "out")


def test_one_worker_makes_the_same_bytes_and_a_killed_run_ends_the_same(finished):
    folder, _ = finished
    out, other = folder / "out", folder / "other"
    command = [
        sys.executable,
        "-m",
        "jobs.cli",
        "run",
        str(folder / "spec.yaml"),
        "--set",
        f"output={other}",
        "--set",
        "num_workers=1",
    ]
    for sign in ("clean-*/partition-00000.json", "pretrain-*/checkpoints/step-*"):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not list((other / "steps").glob(sign)):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert steps(other) == steps(out)
    for name in DATA_STEPS:
        assert contents(other, name) == contents(out, name), name
    assert losses(other) == losses(out)
    assert contents(other, "evaluate") == contents(out, "evaluate")
    shutil.rmtree(other)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "prepare.sources.0.path=/nowhere/at/all",
            "prepare.sources.0.path: there is no folder /nowhere/at/all",
        ),
        ("prepare.sources.0.include=['*.pgae']", "*.pgae"),
        (
            "prepare.contamination={sources: [{path: /nowhere}]}",
            "prepare.contamination.sources.0.path: there is",
        ),
        ("prepare.tokenize={tokenizer: /nowhere}", "prepare.tokenize.tokenizer: there is no file '/nowhere'"),
        ("prepare.tokenize={tokenizer: {spec}}", "no `tokenizer.json` of Hugging Face"),
        ("prepare.sources.0.path={parent}", "which would read what was written"),
        ("prepare.ingest.video.speech_model=/nowhere", "speech_model"),
        ("pretrain.model.vocab_size=300", "vocab_size"),
        ("pretrain.model.vision.patch_size=4", "patch_size"),
        ("pretrain.num_steps=100000", "sequences"),
        ("plan.pack.mixture={sound/text: 0.5}", "sound/text"),
        ("plan.select.scorer=beauty", "score_beauty"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line_and_a_failure(finished, override, message):
    folder, _ = finished
    override = override.replace("{spec}", f"{folder}/spec.yaml").replace("{parent}", str(folder))
    failed = omniloom("run", folder / "spec.yaml", "--set", override)
    assert failed.returncode in (1, 2)
    lines = failed.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0], failed.stderr


def test_a_corpus_of_unreadable_files_fails_and_leaves_its_quarantine(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(3):
        (corpus / f"{number}.html").write_bytes(os.urandom(200) + b"\0\1\2")
    path = write_spec(
        tmp_path / "spec.yaml",
        {"kind": "prepare", "output": str(tmp_path / "out"), "sources": [{"path": str(corpus)}]},
    )
    failed = omniloom("run", path)
    assert failed.returncode == 1 and "none of the 3 files could be read" in failed.stderr
    rows = pl.read_ipc(
        str(next(pathlib.Path(tmp_path / "out" / "steps").glob("ingest-*")) / "quarantine-*.arrow")
    )
    assert rows.height == 3 and rows["message"].str.len_chars().min() > 0


def test_a_job_without_its_input_says_which_job_makes_it(tmp_path):
    path = write_spec(tmp_path / "spec.yaml", {"kind": "pretrain", "output": str(tmp_path / "out")})
    failed = omniloom("run", path)
    assert failed.returncode == 1
    assert "pretrain needs the step 'tokenize', which this output does not hold" in failed.stderr


def test_a_second_run_into_a_busy_output_is_refused(tmp_path):
    import fcntl

    path = write_spec(tmp_path / "spec.yaml", {"kind": "pretrain", "output": str(tmp_path)})
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = omniloom("run", path)
    assert failed.returncode == 1 and "is in use by another run" in failed.stderr
