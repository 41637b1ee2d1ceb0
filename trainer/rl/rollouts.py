"""Sampled answers with their rewards and advantages, and the table they become.

Owns judging (a verifier is called here) and the rows of `schemas/rollout.py`. Does not know model or loss.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import torch

from schemas import rollout
from trainer.rl.engine import Prompt, PromptEncoder, Sample
from trainer.rl.loss import group_advantages


class VerdictLike(Protocol):
    """What a verifier returns: a reward, or the kind of error that prevented one."""

    @property
    def verifier(self) -> str: ...
    @property
    def reward(self) -> float | None: ...
    @property
    def error(self) -> str | None: ...


Verify = Callable[[str, str], VerdictLike]
"""Judges (answer, truth)."""


@dataclass(frozen=True)
class Rollouts:
    """The samples of one step, group by group, with one text, reward entry and advantage each.

    A reward entry is a `rewards` value of the rollouts table; its reward is None where the verifier could not
    judge.
    """

    prompts: Sequence[Prompt]
    samples: Sequence[Sample]
    texts: Sequence[str]
    rewards: Sequence[dict[str, Any]]
    advantages: Sequence[float]


def judge(verify: Verify, answer: str, truth: str) -> dict[str, Any]:
    """Return the reward entry of an answer; a verifier that fails gives an error and no reward."""
    try:
        verdict = verify(answer, truth)
    except Exception as error:  # one bad score is an error of its sample, never the end of the run
        name = getattr(verify, "__name__", "verify")
        return {"verifier": name, "reward": None, "error": type(error).__name__}
    entry = {"verifier": verdict.verifier, "reward": verdict.reward, "error": verdict.error}
    if verdict.reward is not None and not math.isfinite(verdict.reward):
        return {**entry, "reward": None, "error": verdict.error or "reward_not_finite"}
    return entry


def judge_samples(
    prompts: Sequence[Prompt], samples: Sequence[Sample], encoder: PromptEncoder, verify: Verify
) -> Rollouts:
    """Judge samples that stand group by group; those without a reward have advantage 0 and move no other."""
    answers = [sample.answer for sample in samples]
    text = {answer: encoder.text(answer) for answer in set(answers)}
    entry = {answer: judge(verify, text[answer], prompts[answer.prompt].task.answer) for answer in text}
    rewards = [entry[answer] for answer in answers]
    values = [math.nan if r["reward"] is None else r["reward"] for r in rewards]
    advantages_GS = group_advantages(torch.tensor(values).view(len(prompts), -1))
    texts = [text[answer] for answer in answers]
    return Rollouts(prompts, samples, texts, rewards, advantages_GS.flatten().tolist())


def reward_metrics(rollouts: Rollouts) -> dict[str, Any]:
    """Return mean rewards by environment, and how many samples or groups say nothing."""
    by_environment: dict[str, list[float]] = {}
    for sample, entry in zip(rollouts.samples, rollouts.rewards, strict=True):
        environment = rollouts.prompts[sample.answer.prompt].task.environment
        by_environment.setdefault(environment, [])
        if entry["reward"] is not None:
            by_environment[environment].append(entry["reward"])
    telling = {s.answer.prompt for s, a in zip(rollouts.samples, rollouts.advantages, strict=True) if a}
    return {
        "rl/reward_mean": mean([r for rewards in by_environment.values() for r in rewards]),
        **{f"rl/reward_{name}": mean(rewards) for name, rewards in sorted(by_environment.items())},
        "rl/verifier_errors_count": sum(entry["reward"] is None for entry in rollouts.rewards),
        "rl/equal_groups_frac": 1 - len(telling) / len(rollouts.prompts),
        "rl/answer_length_tokens": mean([float(len(s.logprobs)) for s in rollouts.samples]),
    }


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, or None of nothing."""
    return math.fsum(values) / len(values) if values else None


def table(rollouts: Rollouts, first_group: int, policy_step: int) -> pa.Table:
    """Return the rollouts table; the groups are numbered from `first_group` on."""
    rows = []
    columns = (rollouts.samples, rollouts.texts, rollouts.rewards, rollouts.advantages)
    for sample, text, entry, advantage in zip(*columns, strict=True):
        prompt = rollouts.prompts[sample.answer.prompt]
        num_prompt, num_answer = len(prompt.input_ids), len(sample.answer.ids)
        rows.append(
            {
                "doc_id": prompt.task.doc_id,
                "prompt": prompt.task.prompt,
                "group": first_group + sample.answer.prompt,
                "turns": [
                    {"role": "user", "text": prompt.task.prompt},
                    {"role": "assistant", "text": text},
                ],
                "input_ids": [*prompt.input_ids, *sample.answer.ids],
                "logprobs": [*[0.0] * num_prompt, *sample.logprobs],
                "loss_mask": [*[False] * num_prompt, *[True] * num_answer],
                "rewards": [entry],
                "advantage": advantage,
                "policy_step": policy_step,
            }
        )
    return pa.Table.from_pylist(rows, schema=rollout.SCHEMA)
