"""The RL loop: a checkpoint and verifiable tasks in, checkpoints, metrics and rollouts out.

Owns the order of things in a step, the warm start, evaluation and resuming. Tasks, sampling, judging and the
loss are the other files of this folder.

In `output_path`: `run.json` (what the run was made from), `metrics.jsonl`, `rollouts-00000.arrow` ... (one a
recorded step) and `checkpoints/step-00000020/`. The same call again continues from the newest good
checkpoint; on a CPU the result is the same to the last bit, since every step draws from a random stream of
its own.
"""

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from schemas import ids, shard
from trainer import checkpoint
from trainer.errors import DataError, SpecChangedError
from trainer.metrics import MetricsWriter
from trainer.model.model import OmniModel
from trainer.optimizer import build_optimizer, clip_gradients, learning_rate_frac, set_learning_rate
from trainer.rl.engine import PromptEncoder, sample
from trainer.rl.environments import ANSWERS
from trainer.rl.evaluate import evaluate
from trainer.rl.rollouts import Verify, judge_samples, reward_metrics, table
from trainer.rl.update import (
    DEMONSTRATION,
    draw_demonstrations,
    draw_prompts,
    forward_backward,
    policy_components,
    stop_if_diverged,
    update_metrics,
    warm_start,
)
from trainer.spec import RLSpec

VERSION = "1"
SAMPLING = 0  # random stream

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class LoopState:
    """All that changes from step to step besides model and optimiser; saved and restored whole."""

    step: int = 0
    warm_start: dict[str, float] = dataclasses.field(default_factory=dict)
    before: dict[str, float | None] = dataclasses.field(default_factory=dict)


def train(
    spec: RLSpec,
    *,
    checkpoint_path: str,
    tokenizer_path: str,
    output_path: str,
    verify: Verify,
    on_step: Callable[[int, int], None],
) -> dict[str, Any]:
    """Train a checkpoint on verifiable tasks, or continue where a killed run stopped, and return a summary.

    `verify(answer, truth)` judges. `on_step(steps taken, steps in all)` is called at the start and after
    every step, those of the warm start included. In the summary, `reward/<environment>/after_exchanged` is
    the mean reward of the trained model when each task is shown the picture of another.

    Raises:
        DataError: tokenizer, model and spec do not fit together.
        SpecChangedError: `output_path` was made by another spec, checkpoint or tokenizer.
        DivergedError: a gradient was not finite.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.use_deterministic_algorithms(device.type == "cpu")
    model = checkpoint.load_model(checkpoint_path).to(device)
    encoder = PromptEncoder(tokenizer_path, model.config)
    check_answers_fit(spec, encoder)
    claim_output(output_path, spec, checkpoint_path, tokenizer_path)
    checkpoints = os.path.join(output_path, "checkpoints")
    on_rl_step = shifted(on_step, spec)
    start = checkpoint.latest(checkpoints)
    warm_start_nats = warm_start(model, encoder, spec, on_step) if start is None else {}
    components = policy_components(model, spec)
    optimizer = build_optimizer(model, components, spec.optimizer)
    if start is None:
        state = LoopState(warm_start=warm_start_nats, before=evaluate(model, encoder, spec, verify))
        save(checkpoints, state, model, optimizer)
    else:
        state = LoopState(**checkpoint.load(start, model, optimizer))
    metrics = MetricsWriter(os.path.join(output_path, "metrics.jsonl"), state.step)
    recorded = recorded_steps(spec)
    logger.info(
        "rl from step %d of %d, seed %d, spec %s",
        state.step,
        spec.num_steps,
        spec.seed,
        spec.model_dump_json(),
    )

    on_rl_step(state.step)
    started = time.perf_counter()
    for step in range(state.step, spec.num_steps):
        prompts = draw_prompts(encoder, spec, step)
        samples = sample(
            model, prompts, spec.rollouts_per_prompt, end_id=encoder.end_id, temperature=spec.temperature,
            max_answer_tokens=spec.max_answer_tokens, generator=torch_generator(spec, SAMPLING, step),
        )  # fmt: skip
        rollouts = judge_samples(prompts, samples, encoder, verify)

        updates = []
        for update in range(step * spec.updates_per_step, (step + 1) * spec.updates_per_step):
            demonstrations = draw_demonstrations(encoder, prompts, spec, DEMONSTRATION, update)
            learning_rate = spec.optimizer.learning_rate * update_frac(update, spec)
            set_learning_rate(optimizer, learning_rate)
            sums = forward_backward(model, rollouts, demonstrations, spec)
            grad_norms = clip_gradients(components, spec.optimizer.max_grad_norm)
            stop_if_diverged(step, grad_norms)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            updates.append(sums)

        state.step = step + 1
        seconds = time.perf_counter() - started
        started += seconds
        metrics.write(state.step, {
            **reward_metrics(rollouts), **update_metrics(updates),
            **{f"grad_norm/{name}": norm for name, norm in grad_norms.items()},
            "optimizer/learning_rate": learning_rate, "step/seconds_s": seconds,
        })  # fmt: skip
        if step in recorded:
            rows = table(rollouts, step * spec.prompts_per_step, step * spec.updates_per_step)
            shard.write_table(
                shard.join(output_path, shard.shard_name("rollouts", recorded.index(step))), rows
            )
        if state.step % spec.save_every == 0 or state.step == spec.num_steps:
            metrics.sync()
            save(checkpoints, state, model, optimizer)
        on_rl_step(state.step)
    metrics.close()
    return summary(
        spec, state, evaluate(model, encoder, spec, verify), checkpoint.latest(checkpoints), output_path
    )


def check_answers_fit(spec: RLSpec, encoder: PromptEncoder) -> None:
    """Check that every true answer can be sampled.

    Raises:
        DataError: naming the answer and the smallest `max_answer_tokens`.
    """
    for text in (text for name in spec.environments for text in ANSWERS[name]):
        num_tokens = len(encoder.answer(0, text).ids) - 1
        if num_tokens > spec.max_answer_tokens:
            raise DataError(
                f"max_answer_tokens: {spec.max_answer_tokens}, but the tokenizer writes the answer {text!r} "
                f"as {num_tokens} tokens; take at least {num_tokens}"
            )


def claim_output(output_path: str, spec: RLSpec, checkpoint_path: str, tokenizer_path: str) -> None:
    """Note in the run's folder what it is made from, or check that it is the same as before.

    Raises:
        SpecChangedError: naming what differs.
    """
    with open(tokenizer_path, "rb") as source:
        tokenizer_id = ids.content_id(source.read())
    fields = spec.model_dump(mode="json", include=set(RLSpec.model_fields))
    files = shard.read_json(os.path.join(checkpoint_path, checkpoint.FINISHED))["files"]
    made_from = {**fields, "checkpoint": ids.fingerprint(files), "tokenizer": tokenizer_id}
    path = os.path.join(output_path, "run.json")
    if not os.path.exists(path):
        shard.write_json(path, made_from)
    before = shard.read_json(path)
    for name in sorted({*before, *made_from}):
        if before.get(name) != made_from.get(name):
            raise SpecChangedError(
                f"{output_path} was made with {name} {before.get(name)!r}, not {made_from.get(name)!r}; "
                "take another output path, or the old value"
            )


def shifted(on_step: Callable[[int, int], None], spec: RLSpec) -> Callable[[int], None]:
    """Return `on_step` for steps of RL, which come after those of the warm start."""
    return lambda step: on_step(spec.num_warm_start_steps + step, spec.num_warm_start_steps + spec.num_steps)


def torch_generator(spec: RLSpec, stream: int, step: int) -> torch.Generator:
    """Return the random stream of a step, always the same."""
    state = np.random.SeedSequence([spec.seed, stream, step]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)


def update_frac(update: int, spec: RLSpec) -> float:
    """Return the step size of an update as a fraction of the peak."""
    return learning_rate_frac(update, spec.num_steps * spec.updates_per_step, spec.optimizer)


def recorded_steps(spec: RLSpec) -> list[int]:
    """Return the steps whose rollouts are written down, in order."""
    return sorted({*range(0, spec.num_steps, spec.record_every), spec.num_steps - 1})


def save(checkpoints: str, state: LoopState, model: OmniModel, optimizer: torch.optim.Optimizer) -> None:
    """Publish a checkpoint; only the newest is kept."""
    checkpoint.save(
        checkpoints, state.step, model=model, optimizer=optimizer, loop=dataclasses.asdict(state), keep=1
    )


def summary(
    spec: RLSpec, state: LoopState, after: dict[str, float | None], path: str | None, output_path: str
) -> dict[str, Any]:
    """Return what a finished run came to: held-out rewards before and after, and its checkpoint."""
    rewards: dict[str, Any] = {}
    for name in spec.environments:
        for phase, measured in (("before", state.before), ("after", after)):
            rewards[f"reward/{name}/{phase}"] = measured[name]
            rewards[f"reward/{name}/{phase}_exchanged"] = measured[f"{name}_exchanged"]
    return {
        "steps": state.step,
        **rewards,
        **{f"chance/{name}": 1 / len(ANSWERS[name]) for name in spec.environments},
        **{f"warm_start/{name}_nats": nats for name, nats in state.warm_start.items()},
        "checkpoint": os.path.relpath(path, output_path) if path else None,
    }
