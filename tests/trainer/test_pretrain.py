"""The pretraining loop: killed and resumed, split, skipped, refused, and learning."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import ShardError
from tests.trainer import corpus
from trainer import checkpoint
from trainer.batches import BatchReader
from trainer.errors import DataError, SpecChangedError
from trainer.evaluate import evaluate
from trainer.metrics import read_metrics
from trainer.model.model import OmniModel, Phase
from trainer.pretrain import forward_backward, pretrain
from trainer.spec import EvaluateSpec, PretrainSpec

KEEP_ONE = {"keep_checkpoints": 1}
# Where a run is killed, and the newest good checkpoint it must leave (one is saved after steps 3, 6 and 8).
KILLS: dict[str, tuple[dict[str, Any], int | None]] = {
    "before_the_first_checkpoint": ({"step": 2}, None),
    "between_checkpoints": ({"step": 5}, 3),
    "while_writing_tensors": ({"event": "open", "text": "tmp-step-00000006/state/"}, 3),
    "before_the_marker": ({"event": "open", "text": "tmp-step-00000006/finished.json"}, 3),
    "before_publishing": ({"event": "os.rename", "text": "checkpoints/tmp-step-00000006"}, 3),
    "while_deleting_the_old_one": ({"event": "shutil.rmtree", "text": "tmp-old-step-00000003"}, 6),
}
TIMES = ("step/seconds_s", "step/tokens_per_s")


def run(spec: PretrainSpec, paths: dict[str, str], output: Path) -> dict[str, Any]:
    return pretrain(spec, **paths, output_path=str(output), on_step=lambda step, total: None)


def rows(output: Path) -> list[dict[str, Any]]:
    found = read_metrics(str(output / "metrics.jsonl"))
    return [{name: value for name, value in row.items() if name not in TIMES} for row in found]


def weights(output: Path) -> dict[str, torch.Tensor]:
    path = checkpoint.latest(str(output / "checkpoints"))
    assert path is not None
    return checkpoint.load_model(path).state_dict()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return corpus.write(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def uninterrupted(paths: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("uninterrupted")
    run(corpus.spec(**KEEP_ONE), paths, output)
    return output


@pytest.fixture(scope="module")
def killed(paths: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("killed")
    scenarios = [
        {"output": str(root / name), "paths": paths, "spec": KEEP_ONE, **moment}
        for name, (moment, _) in KILLS.items()
    ]
    (root / "scenarios.json").write_text(json.dumps(scenarios))
    command = [sys.executable, "-m", "tests.trainer.killed_runs", str(root / "scenarios.json")]
    subprocess.run(command, check=True)
    return root


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_run_keeps_the_last_good_checkpoint_and_resumes_to_the_last_bit(
    moment: str, killed: Path, uninterrupted: Path, paths: dict[str, str]
) -> None:
    output, expected_step = killed / moment, KILLS[moment][1]
    checkpoints = output / "checkpoints"
    expected = None if expected_step is None else str(checkpoints / f"step-{expected_step:08d}")
    assert checkpoint.latest(str(checkpoints)) == expected

    steps: list[int] = []
    pretrain(
        corpus.spec(**KEEP_ONE),
        **paths,
        output_path=str(output),
        on_step=lambda step, total: steps.append(step),
    )
    assert steps == list(range(expected_step or 0, 9))
    assert rows(output) == rows(uninterrupted)
    left, right = weights(output), weights(uninterrupted)
    assert all(torch.equal(left[name], right[name]) for name in right)
    assert os.listdir(checkpoints) == ["step-00000008"]
    loop = "checkpoints/step-00000008/loop.json"
    assert (output / loop).read_text() == (uninterrupted / loop).read_text()


def test_a_finished_run_does_nothing_when_repeated(uninterrupted: Path, paths: dict[str, str]) -> None:
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    steps: list[tuple[int, int]] = []
    summary = pretrain(
        corpus.spec(**KEEP_ONE),
        **paths,
        output_path=str(uninterrupted),
        on_step=lambda step, total: steps.append((step, total)),
    )
    assert steps == [(8, 8)] and (uninterrupted / "metrics.jsonl").read_bytes() == before
    assert summary["steps"] == 8 and summary["checkpoint"] == "checkpoints/step-00000008"


def test_every_step_has_a_row_with_losses_and_norms_by_modality_and_component(uninterrupted: Path) -> None:
    found = rows(uninterrupted)
    assert [row["step"] for row in found] == list(range(1, 9))
    assert [row["index/phase"] for row in found] == ["dense"] * 2 + ["sparse"] * 6
    for row in found:
        for name in (
            "loss/text_nats",
            "loss/image_nats",
            "loss/video_nats",
            "index/kl_nats",
            "grad_norm/vision",
            "grad_norm/projector",
            "grad_norm/decoder",
            "grad_norm/index",
        ):
            assert row[name] > 0, name
        shares = [row[f"tokens/{name}_frac"] for name in ("text", "image", "video", "placeholder")]
        assert min(shares) > 0 and sum(shares) < 1
        assert 1 / 4 <= row["router/load_max_frac"] <= 1
    assert found[-1]["tokens/seen"] == sum(row["tokens/step_count"] for row in found)


@pytest.mark.parametrize("phase", ["dense", "sparse"])
def test_gradients_do_not_depend_on_the_micro_batch_split(paths: dict[str, str], phase: Phase) -> None:
    reader = BatchReader(**paths)

    def gradients(size: int) -> tuple[dict[str, torch.Tensor | None], float]:
        model = OmniModel(corpus.MODEL, seed=1).double()
        model.logits = lambda hidden: model.lm_head(hidden)  # type: ignore[method-assign]
        batches = [reader.read(range(at, at + size)) for at in range(0, 4, size)]
        for batch in batches:
            batch.inputs.patches = batch.inputs.patches.double()
        sums = forward_backward(model, batches, corpus.spec(), phase)
        return {name: p.grad for name, p in model.named_parameters()}, sums.loss_nats

    whole, loss = gradients(4)
    for size in (1, 2):
        split, split_loss = gradients(size)
        assert split_loss == pytest.approx(loss, rel=1e-6)
        for name, gradient in whole.items():
            torch.testing.assert_close(split[name], gradient, rtol=1e-4, atol=1e-7, msg=name)


def test_a_spike_is_skipped_and_its_documents_are_named(tmp_path: Path) -> None:
    made = [corpus.document(f"page{number}").text(*[1, 2] * 18).finished() for number in range(60)]
    made[50] = corpus.document("odd").text(*[number % 20 + 4 for number in range(36)]).finished()
    corpus.write_tokens(tmp_path / "tokens", made)
    corpus.write_plan(tmp_path / "plan", corpus.plan_rows(made), [], "tokens")
    paths = {"tokens_path": str(tmp_path / "tokens"), "plan_path": str(tmp_path / "plan")}
    spec = corpus.spec(num_steps=26, save_every=25, skip_window=16)
    run(spec, paths, tmp_path / "out")

    found = rows(tmp_path / "out")
    skipped = [row for row in found if row["stability/skipped"]]
    assert [row["step"] for row in skipped] == [26]  # sequences 50 and 51
    assert skipped[0]["stability/doc_ids"] == [made[50]["doc_id"], made[51]["doc_id"]]
    assert "is above" in skipped[0]["stability/reason"]
    start = OmniModel(corpus.MODEL, seed=1).state_dict()
    before, after = (
        checkpoint.load_model(str(tmp_path / f"out/checkpoints/step-{step:08d}")).state_dict()
        for step in (25, 26)
    )
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not torch.equal(before["lm_head.weight"], start["lm_head.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, r"spec.seed 1, not 2"),
        ({"micro_sequences": 1}, "spec.micro_sequences None, not 1"),
        ({"model": corpus.MODEL.model_copy(update={"num_layers": 3})}, "spec.model.num_layers 2, not 3"),
    ],
)
def test_a_changed_spec_is_refused_on_resume(
    uninterrupted: Path, paths: dict[str, str], change: dict, message: str
) -> None:
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    with pytest.raises(SpecChangedError, match=message):
        run(corpus.spec(**{**KEEP_ONE, **change}), paths, uninterrupted)
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


def test_a_plan_too_short_for_the_steps_is_refused_with_both_numbers(
    paths: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="num_steps: 20 steps of 2 sequences need 40, but the plan has 22"):
        run(corpus.spec(num_steps=20), paths, tmp_path)
    with pytest.raises(DataError, match="one step of 50 sequences need 50, but the plan has 22"):
        run(corpus.spec(num_steps=None, batch_sequences=50), paths, tmp_path)
    with pytest.raises(DataError, match="vocab_size: 30"):
        run(corpus.spec(model=corpus.MODEL.model_copy(update={"vocab_size": 30})), paths, tmp_path)


def test_an_unfinished_step_is_refused(tmp_path: Path) -> None:
    paths = corpus.write(tmp_path)
    Path(paths["tokens_path"], "manifest.json").unlink()
    with pytest.raises(ShardError, match=r"missing shard .*tokens-0/manifest\.json"):
        run(corpus.spec(), paths, tmp_path / "out")


def test_a_frozen_component_does_not_move(paths: dict[str, str], tmp_path: Path) -> None:
    optimizer = corpus.spec().optimizer.model_copy(update={"learning_rate_scale": {"vision": 0.0}})
    run(corpus.spec(num_steps=2, optimizer=optimizer), paths, tmp_path)
    before, after = OmniModel(corpus.MODEL, seed=1).state_dict(), weights(tmp_path)
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"projector", "embed_tokens", "layers", "norm", "lm_head"}
    assert "grad_norm/vision" not in rows(tmp_path)[0]


def test_loss_falls_on_every_modality_and_held_out_documents(paths: dict[str, str], tmp_path: Path) -> None:
    spec = corpus.spec(num_steps=None, batch_sequences=1, save_every=100, dtype="bfloat16")
    summary = run(spec, paths, tmp_path)
    for name in ("text", "image", "video"):
        assert summary[f"last/loss/{name}_nats"] < summary[f"first/loss/{name}_nats"] - 0.5, name
    result = evaluate(EvaluateSpec(), checkpoint_path=str(tmp_path / summary["checkpoint"]), **paths)
    assert result["loss/all_nats"] < 3.2 and result["sequences/held_out_count"] == 4
