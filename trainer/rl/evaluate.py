"""Held-out tasks, answered with their own pictures and with those of other tasks.

Owns the measure. The difference between the two is what the pictures tell the model.
"""

import dataclasses

import numpy as np

from trainer.model.model import OmniModel
from trainer.rl.engine import PromptEncoder, sample
from trainer.rl.environments import draw_tasks
from trainer.rl.rollouts import Verify, judge, mean
from trainer.spec import RLSpec

EXCHANGE = 3  # random stream


def evaluate(
    model: OmniModel, encoder: PromptEncoder, spec: RLSpec, verify: Verify
) -> dict[str, float | None]:
    """Return mean rewards of greedy answers to held-out tasks, with true and with exchanged pictures.

    Pictures are exchanged inside an environment, along one random cycle, so that every task gets another's.
    Answers that could not be judged are left out of the mean.
    """
    prompts = [
        encoder.prompt(t) for t in draw_tasks(spec.environments, "heldout", spec.seed, 0, spec.num_eval_tasks)
    ]
    shown = list(prompts)
    rng = np.random.default_rng([spec.seed, EXCHANGE])
    for name in spec.environments:
        cycle = rng.permutation([i for i, p in enumerate(prompts) if p.task.environment == name])
        for i, other in zip(cycle, np.roll(cycle, 1), strict=True):
            shown[i] = dataclasses.replace(
                prompts[i], patches=prompts[other].patches, grid=prompts[other].grid
            )
    rewards: dict[str, list[float]] = {}
    for suffix, asked in (("", prompts), ("_exchanged", shown)):
        for first in range(0, len(asked), spec.prompts_per_step):
            part = asked[first : first + spec.prompts_per_step]
            for answer in sample(
                model, part, 1, end_id=encoder.end_id, temperature=1.0,
                max_answer_tokens=spec.max_answer_tokens, generator=None,
            ):  # fmt: skip
                task = part[answer.answer.prompt].task
                entry = judge(verify, encoder.text(answer.answer), task.answer)
                values = rewards.setdefault(f"{task.environment}{suffix}", [])
                values += [] if entry["reward"] is None else [entry["reward"]]
    return {name: mean(values) for name, values in rewards.items()}
