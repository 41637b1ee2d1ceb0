"""What one optimiser step of RL is made of: demonstrations, a batch's gradient, the warm start before it.

Owns which components train and how the losses of a batch are added up. Does not sample or judge.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch import nn

from trainer.errors import DivergedError
from trainer.model.model import OmniModel
from trainer.optimizer import build_optimizer, clip_gradients, trained_components
from trainer.rl.engine import Answer, Prompt, PromptEncoder, score
from trainer.rl.environments import ANSWERS, draw_tasks
from trainer.rl.loss import cispo
from trainer.rl.rollouts import Rollouts
from trainer.spec import RLSpec

DEMONSTRATIONS_PER_PROMPT = 4
WARM_START, DEMONSTRATION = 1, 2  # random streams


def policy_components(model: OmniModel, spec: RLSpec) -> dict[str, list[nn.Parameter]]:
    """Return the components that RL trains: all that the spec does not freeze, without the index."""
    model.requires_grad_(True)
    scale = {**spec.optimizer.learning_rate_scale, "index": 0.0}
    return trained_components(
        model.components(), spec.optimizer.model_copy(update={"learning_rate_scale": scale})
    )


def warm_start(
    model: OmniModel, encoder: PromptEncoder, spec: RLSpec, on_step: Callable[[int, int], None]
) -> dict[str, float]:
    """Teach the decoder the form of answers on demonstrations with random answers; return its losses."""
    frozen = {"vision": 0.0, "projector": 0.0, "index": 0.0}
    optimizer_spec = spec.optimizer.model_copy(
        update={"learning_rate": spec.warm_start_learning_rate, "learning_rate_scale": frozen}
    )
    components = trained_components(model.components(), optimizer_spec)
    optimizer = build_optimizer(model, components, optimizer_spec)
    nats = []
    num_steps = spec.num_warm_start_steps
    for step in range(num_steps):
        on_step(step, num_steps + spec.num_steps)
        prompts = draw_prompts(encoder, spec, spec.num_steps + step)  # tasks that RL does not use
        demonstrations = draw_demonstrations(encoder, prompts, spec, WARM_START, step)
        loss = -score(model, prompts, demonstrations, spec.temperature).logprobs_N.mean()
        loss.backward()
        clip_gradients(components, optimizer_spec.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        nats.append(loss.item())
    return {"first": nats[0], "last": nats[-1]} if nats else {}


def draw_prompts(encoder: PromptEncoder, spec: RLSpec, step: int) -> list[Prompt]:
    """Return the prompts of a step; no two steps share a task."""
    first = step * spec.prompts_per_step
    return [
        encoder.prompt(t)
        for t in draw_tasks(spec.environments, "train", spec.seed, first, spec.prompts_per_step)
    ]


def draw_demonstrations(
    encoder: PromptEncoder, prompts: Sequence[Prompt], spec: RLSpec, stream: int, step: int
) -> list[Answer]:
    """Return some answers to each prompt, drawn from all its environment has, whatever the picture shows.

    Beyond `max_answer_tokens` they are cut, like a sample.
    """
    rng = np.random.default_rng([spec.seed, stream, step])
    answers = []
    for number, prompt in enumerate(prompts):
        choices = ANSWERS[prompt.task.environment]
        for choice in rng.integers(len(choices), size=DEMONSTRATIONS_PER_PROMPT):
            answer = encoder.answer(number, choices[choice])
            answers.append(Answer(number, answer.ids[: spec.max_answer_tokens]))
    return answers


def forward_backward(
    model: OmniModel, rollouts: Rollouts, demonstrations: Sequence[Answer], spec: RLSpec
) -> dict[str, float]:
    """Add the gradient of CISPO plus weighted demonstrations; return sums over answer tokens.

    Both losses are means over the answer tokens of the whole batch, whatever the micro-batches.
    """
    num_tokens = sum(len(s.logprobs) for s in rollouts.samples)
    num_shown = sum(len(d.ids) for d in demonstrations)
    weight = spec.demonstration_weight / max(num_shown, 1)
    sums = dict.fromkeys(("loss", "clipped", "entropy", "gap", "demonstration"), 0.0)
    num_prompts = len(rollouts.prompts)
    size = spec.micro_prompts or num_prompts
    for first in range(0, num_prompts, size):
        chosen = range(first, first + size)
        samples = [i for i, s in enumerate(rollouts.samples) if s.answer.prompt in chosen]
        shown = [d for d in demonstrations if d.prompt in chosen]
        answers = [rollouts.samples[i].answer for i in samples]
        scores = score(model, rollouts.prompts, [*answers, *shown], spec.temperature)
        sampling_N = scores.logprobs_N.new_tensor([x for i in samples for x in rollouts.samples[i].logprobs])
        advantages_N = scores.logprobs_N.new_tensor(
            [rollouts.advantages[i] for i in samples for _ in rollouts.samples[i].logprobs]
        )
        logprobs_N, shown_N = scores.logprobs_N.split(
            [len(sampling_N), len(scores.logprobs_N) - len(sampling_N)]
        )
        policy = cispo(logprobs_N, sampling_N, advantages_N, spec.ratio_max, num_tokens)
        (policy.loss - weight * shown_N.sum()).backward()
        sums["loss"] += policy.loss.item()
        sums["clipped"] += policy.num_clipped / num_tokens
        sums["entropy"] += scores.entropy_N[: len(sampling_N)].detach().sum().item() / num_tokens
        sums["gap"] = max(sums["gap"], (logprobs_N.detach() - sampling_N).abs().max().item())
        sums["demonstration"] -= shown_N.detach().sum().item() / max(num_shown, 1)
    return sums


def update_metrics(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the metrics of a step's updates.

    A gap is the largest difference of a log-probability from sampling. `rl/engine_gap_nats` is measured
    before any update: rounding only.
    """
    first = updates[0]
    return {
        "rl/loss": first["loss"],
        "rl/ratio_clipped_frac": math.fsum(u["clipped"] for u in updates) / len(updates),
        "rl/entropy_nats": first["entropy"],
        "rl/engine_gap_nats": first["gap"],
        "rl/off_policy_gap_nats": updates[-1]["gap"],
        "rl/demonstration_nats": first["demonstration"],
    }


def stop_if_diverged(step: int, grad_norms: dict[str, float]) -> None:
    """Raise DivergedError where a gradient is not finite: the policy that sampled is already lost."""
    for name, norm in grad_norms.items():
        if not math.isfinite(norm):
            raise DivergedError(
                f"rl step {step + 1}: the gradient of {name} is {norm}; lower optimizer.learning_rate"
            )
