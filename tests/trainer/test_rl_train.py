"""The RL loop: rewards rise, a killed run ends as one that was not, verifier failures are no zeros."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rewards.verify import Verdict, exact
from schemas import shard
from tests.trainer import rl_tiny
from trainer import checkpoint
from trainer.errors import DataError, SpecChangedError
from trainer.metrics import read_metrics
from trainer.spec import OptimizerSpec, RLSpec


class Killed(Exception):
    """Stands for the end of the process."""


def killer(at: int) -> Callable[[int, int], None]:
    def on_step(step: int, total: int) -> None:
        if step == at:
            raise Killed

    return on_step


def outcome(output: Path) -> dict[str, Any]:
    """Everything a run leaves, without the time it took."""
    rows = read_metrics(str(output / "metrics.jsonl"))
    model = checkpoint.load_model(checkpoint.latest(str(output / "checkpoints")) or "")
    return {
        "metrics": [{k: v for k, v in row.items() if k != "step/seconds_s"} for row in rows],
        "rollouts": {p.name: p.read_bytes() for p in output.glob("rollouts-*.arrow")},
        "weights": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
    }


def test_a_killed_run_ends_like_one_that_was_not(tmp_path: Path) -> None:
    summary = rl_tiny.run(tmp_path, tmp_path / "whole", rl_tiny.spec())
    expected = outcome(tmp_path / "whole")
    assert [row["step"] for row in expected["metrics"]] == [1, 2, 3, 4, 5]
    assert sorted(expected["rollouts"]) == [f"rollouts-0000{i}.arrow" for i in range(3)]
    for kills in ([1], [5], [2, 6, 7]):  # in the warm start, between checkpoints, and again and again
        output = tmp_path / f"killed-{kills[0]}"
        for at in kills:
            with pytest.raises(Killed):
                rl_tiny.run(tmp_path, output, rl_tiny.spec(), on_step=killer(at))
        assert rl_tiny.run(tmp_path, output, rl_tiny.spec()) == summary
        assert outcome(output) == expected


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    summary = rl_tiny.run(tmp_path, tmp_path / "out", rl_tiny.spec(), on_step=lambda *s: steps.append(s))
    assert steps == [(step, 7) for step in range(8)]
    steps.clear()
    again = rl_tiny.run(tmp_path, tmp_path / "out", rl_tiny.spec(), on_step=lambda *s: steps.append(s))
    assert again == summary and steps == [(7, 7)]
    json.dumps(summary)


def test_rewards_rise_and_come_from_the_picture(tmp_path: Path) -> None:
    spec = rl_tiny.spec(
        environments=("colour",),
        num_warm_start_steps=40,
        warm_start_learning_rate=1e-2,
        num_steps=70,
        prompts_per_step=24,
        rollouts_per_prompt=32,
        num_eval_tasks=60,
        save_every=100,
        record_every=100,
        optimizer=OptimizerSpec(learning_rate=5e-3),
    )
    summary = rl_tiny.run(tmp_path, tmp_path / "out", spec)
    rows = read_metrics(str(tmp_path / "out" / "metrics.jsonl"))
    assert sum(row["rl/reward_mean"] for row in rows[:5]) / 5 < 0.3
    assert sum(row["rl/reward_mean"] for row in rows[-5:]) / 5 > 0.45
    assert summary["reward/colour/after"] > max(0.5, summary["reward/colour/after_exchanged"] + 0.2)


def test_a_verifier_that_cannot_judge_gives_no_reward_and_no_advantage(tmp_path: Path) -> None:
    def sometimes(answer: str, truth: str) -> Verdict:
        if truth in "123":
            raise TimeoutError
        return Verdict("sometimes", None, "refused") if truth == "4" else exact(answer, truth)

    rl_tiny.run(tmp_path, tmp_path / "out", rl_tiny.spec(), verify=sometimes)
    rows = read_metrics(str(tmp_path / "out" / "metrics.jsonl"))
    assert 0 < sum(row["rl/verifier_errors_count"] for row in rows) < 5 * 24
    table = shard.read_table(str(tmp_path / "out" / "rollouts-00000.arrow")).to_pylist()
    errors = {row["rewards"][0]["error"] for row in table}
    assert errors <= {"TimeoutError", "refused", None} and len(errors) > 1
    for row in table:
        assert (row["rewards"][0]["reward"] is None) == (row["rewards"][0]["error"] is not None)
        assert row["rewards"][0]["reward"] is not None or row["advantage"] == 0


def test_the_index_and_frozen_components_stay_as_they_were(tmp_path: Path) -> None:
    optimizer = OptimizerSpec(learning_rate=1e-2, learning_rate_scale={"projector": 0})
    rl_tiny.run(tmp_path, tmp_path / "out", rl_tiny.spec(optimizer=optimizer, num_steps=2))
    before = checkpoint.load_model(str(tmp_path / "step-00000000")).components()
    after = checkpoint.load_model(checkpoint.latest(str(tmp_path / "out" / "checkpoints")) or "").components()
    changed = {
        name: any(not torch.equal(a, b) for a, b in zip(before[name], after[name], strict=True))
        for name in before
    }
    assert changed == {"vision": True, "projector": False, "decoder": True, "index": False}


def test_another_spec_or_tokenizer_is_refused_for_the_same_output(tmp_path: Path) -> None:
    rl_tiny.run(tmp_path, tmp_path / "out", rl_tiny.spec(num_steps=1))
    with pytest.raises(SpecChangedError, match="num_steps 1, not 2"):
        rl_tiny.run(tmp_path, tmp_path / "out", rl_tiny.spec(num_steps=2))
    rl_tiny.write_tokenizer(tmp_path, vocab_size=300)
    with pytest.raises(SpecChangedError, match="tokenizer"):
        rl_tiny.run(tmp_path, tmp_path / "out", rl_tiny.spec(num_steps=1))


def test_answers_that_cannot_be_sampled_are_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    from schemas.vocabulary import SPECIAL_TOKENS

    rl_tiny.write_checkpoint(tmp_path)
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *pre_tokenizers.ByteLevel.alphabet()])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # a space before each answer
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match=r"'1' as 2 tokens; take at least 2"):
        rl_tiny.run(tmp_path, tmp_path / "out", rl_tiny.spec())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": {"learning_rate_scale": {"index": 0.5}}}, "no effect"),
        ({"num_warm_start_steps": 0, "warm_start_learning_rate": 1e-3}, "no effect"),
        ({"environments": ("count", "count")}, "twice"),
        ({"num_eval_tasks": 3}, "needs 2"),
    ],
)
def test_fields_without_effect_or_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RLSpec(**fields)
