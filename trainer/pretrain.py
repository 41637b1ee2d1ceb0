"""The pretraining loop: plan rows in, checkpoints and metrics out.

Owns the order of things in a step, the checks before the first one, and resuming. Losses, batches, optimiser,
guard and checkpoints are the other files of this package.

In `output_path`: `run.json` (what the run was made from), `metrics.jsonl`, `checkpoints/step-00000050/`. The
same call again continues from the newest good checkpoint; on a CPU the result is the same to the last bit.
"""

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from schemas import shard
from trainer import checkpoint
from trainer.batches import MODALITIES, Batch, BatchReader, check_model_fits, micro_batches
from trainer.errors import DataError, SpecChangedError
from trainer.loss import LossTerms, lm_loss, mean_nats, total_weight
from trainer.metrics import MetricsWriter, read_metrics
from trainer.model.model import OmniModel, Phase
from trainer.optimizer import (
    build_optimizer,
    clip_gradients,
    learning_rate_frac,
    set_learning_rate,
    trained_components,
)
from trainer.spec import PretrainSpec
from trainer.stability import SpikeGuard

VERSION = "1"
NAMED_DOCUMENTS = 16

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class LoopState:
    """All that changes from step to step besides model and optimiser; saved and restored whole."""

    guard: SpikeGuard
    step: int = 0  # optimiser steps taken, skipped ones included
    sequences: int = 0  # place in the data: plan sequences taken
    tokens: int = 0  # tokens seen
    rng: str = ""  # state of torch's CPU generator, hexadecimal


@dataclasses.dataclass(frozen=True)
class StepSums:
    """What the micro-batches of one step add up to."""

    loss_nats: float  # mean cross entropy
    expert_load: torch.Tensor  # [moe layers, experts]
    values: dict[str, Any]  # for the metrics
    documents: list[str]  # doc_ids, highest mean loss first


def pretrain(
    spec: PretrainSpec,
    *,
    tokens_path: str,
    plan_path: str,
    output_path: str,
    on_step: Callable[[int, int], None],
) -> dict[str, Any]:
    """Train a model over a plan, or continue where a killed run stopped, and return a summary.

    `on_step(steps taken, steps in all)` is called once at the start and after every step.

    Raises:
        DataError: spec, tokens and plan do not fit together.
        SpecChangedError: `output_path` was made by another spec, plan or tokens.
        DivergedError: too many steps in a row were skipped.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
    reader = BatchReader(plan_path, tokens_path)
    num_steps = check_data(spec, reader)
    claim_output(output_path, spec, [shard.read_manifest(path).step for path in (tokens_path, plan_path)])
    torch.manual_seed(spec.seed)
    model = OmniModel(spec.model, seed=spec.seed).to(device).train()
    components = trained_components(model.components(), spec.optimizer)
    optimizer = build_optimizer(model, components, spec.optimizer)
    checkpoints = os.path.join(output_path, "checkpoints")
    state = resume(checkpoints, model, optimizer, spec)
    metrics = MetricsWriter(os.path.join(output_path, "metrics.jsonl"), state.step)
    num_dense_steps = round(spec.index_warmup_frac * num_steps)
    logger.info("pretrain from step %d of %d, spec %s", state.step, num_steps, spec.model_dump_json())

    on_step(state.step, num_steps)
    started = time.perf_counter()
    for batches in micro_batches(
        reader, state.sequences, num_steps - state.step, spec.batch_sequences, spec.micro_sequences
    ):
        frac = learning_rate_frac(state.step, num_steps, spec.optimizer)
        set_learning_rate(optimizer, spec.optimizer.learning_rate * frac)
        phase: Phase = "dense" if state.step < num_dense_steps else "sparse"

        sums = forward_backward(model, [batch.to(device) for batch in batches], spec, phase)
        grad_norms = clip_gradients(components, spec.optimizer.max_grad_norm)
        skip_reason = state.guard.check(sums.loss_nats, grad_norms)
        if skip_reason is None:
            optimizer.step()
            model.update_router_bias(sums.expert_load, spec.router_bias_rate)
        optimizer.zero_grad(set_to_none=True)

        num_tokens = sum(batch.num_tokens for batch in batches)
        state.step += 1
        state.sequences += spec.batch_sequences
        state.tokens += num_tokens
        seconds = time.perf_counter() - started
        started += seconds
        metrics.write(
            state.step,
            {
                **sums.values,
                **{f"grad_norm/{name}": norm for name, norm in grad_norms.items()},
                "tokens/seen": state.tokens,
                "optimizer/learning_rate_frac": frac,
                "index/phase": phase,
                "stability/skipped": int(skip_reason is not None),
                "stability/reason": skip_reason,
                "stability/doc_ids": sums.documents[:NAMED_DOCUMENTS] if skip_reason else [],
                "step/seconds_s": seconds,
                "step/tokens_per_s": num_tokens / seconds,
            },
        )
        state.guard.stop_if_diverged()
        if state.step % spec.save_every == 0 or state.step == num_steps:
            metrics.sync()
            state.rng = torch.get_rng_state().numpy().tobytes().hex()
            checkpoint.save(
                checkpoints,
                state.step,
                model=model,
                optimizer=optimizer,
                loop=dataclasses.asdict(state),
                keep=spec.keep_checkpoints,
            )
        on_step(state.step, num_steps)
    metrics.close()
    return summary(output_path)


def check_data(spec: PretrainSpec, reader: BatchReader) -> int:
    """Check that the plan is long enough and made for this model; return the number of steps.

    Raises:
        DataError: naming the field and what would be right.
    """
    check_model_fits(spec.model, reader)
    most = reader.num_sequences // spec.batch_sequences
    num_steps = most if spec.num_steps is None else spec.num_steps
    if num_steps > most or num_steps == 0:
        asked = f"num_steps: {num_steps} steps" if spec.num_steps else "batch_sequences: one step"
        needed = max(num_steps, 1) * spec.batch_sequences
        raise DataError(
            f"{asked} of {spec.batch_sequences} sequences need {needed}, but the plan has "
            f"{reader.num_sequences}"
        )
    return num_steps


def claim_output(output_path: str, spec: PretrainSpec, inputs: list[str]) -> None:
    """Note in the run's folder what it is made from, or check that it is the same as before.

    Raises:
        SpecChangedError: naming the first field that differs.
    """
    path = os.path.join(output_path, "run.json")
    fields = set(PretrainSpec.model_fields)  # a job adds its own, such as a name, which train nothing
    made_from = {"spec": spec.model_dump(mode="json", include=fields), "inputs": inputs}
    if not os.path.exists(path):
        shard.write_json(path, made_from)
    before = shard.read_json(path)
    for name in ("inputs", "spec"):
        difference = _difference(name, before[name], made_from[name])
        if difference:
            raise SpecChangedError(
                f"{output_path} was made with {difference}; take another output path, or the old value"
            )


def _difference(name: str, before: Any, now: Any) -> str | None:
    """Return the first differing field of two plain values as text, or None."""
    if isinstance(before, dict) and isinstance(now, dict):
        pairs = [(f"{name}.{key}", before.get(key), now.get(key)) for key in sorted({*before, *now})]
        return next((found for pair in pairs if (found := _difference(*pair))), None)
    return f"{name} {before!r}, not {now!r}" if before != now else None


def resume(
    checkpoints: str, model: OmniModel, optimizer: torch.optim.Optimizer, spec: PretrainSpec
) -> LoopState:
    """Fill model and optimiser from the newest good checkpoint and return its loop state, or a new one."""
    path = checkpoint.latest(checkpoints)
    if path is None:
        return LoopState(guard=SpikeGuard(spec.skip_sigma, spec.skip_window))
    loop = checkpoint.load(path, model, optimizer)
    state = LoopState(**{**loop, "guard": SpikeGuard(**loop["guard"])})
    torch.set_rng_state(torch.tensor(list(bytes.fromhex(state.rng)), dtype=torch.uint8))
    return state


def forward_backward(
    model: OmniModel, batches: Sequence[Batch], spec: PretrainSpec, phase: Phase
) -> StepSums:
    """Add the gradients of a step's micro-batches to the parameters and return their sums.

    The language-model loss is normalised by the weight of all micro-batches, the index KL by their tokens, so
    the gradient does not depend on the split.
    """
    normaliser, num_tokens = total_weight(batches), sum(batch.num_tokens for batch in batches)
    terms, index_kl, loads = [], 0.0, []
    for batch in batches:
        with torch.autocast(batch.labels.device.type, torch.bfloat16, enabled=spec.dtype == "bfloat16"):
            output = model(batch.inputs, phase=phase)
            term = lm_loss(
                output.hidden, batch, model.logits, normaliser=normaliser, z_loss_weight=spec.z_loss_weight
            )
        kl = output.index_kl * (batch.num_tokens / num_tokens)
        (term.total + spec.index_loss_weight * kl).backward()
        terms.append(term)
        index_kl += kl.item()
        loads.append(output.expert_load.detach())
    nats_M, weight_M, count_M, log_z_squared = (
        torch.stack([getattr(term, name) for term in terms]).sum(0)
        for name in ("nats_M", "weight_M", "count_M", "log_z_squared")
    )
    load = torch.stack(loads).sum(0)
    load_frac = load / load.sum(-1, keepdim=True).clamp_min(1)
    loss_nats = float(nats_M.sum()) / (normaliser or 1.0)
    values = {
        "loss/all_nats": loss_nats,
        **{f"loss/{name}_nats": value for name, value in mean_nats(nats_M, weight_M).items()},
        "loss/log_z_squared": float(log_z_squared) / (normaliser or 1.0),
        "index/kl_nats": index_kl,
        "router/load_max_frac": float(load_frac.max()) if load.numel() else None,
        **{f"tokens/{name}_frac": float(n) / num_tokens for name, n in zip(MODALITIES, count_M, strict=True)},
        "tokens/placeholder_frac": sum(int(b.inputs.is_placeholder.sum()) for b in batches) / num_tokens,
        "tokens/step_count": num_tokens,
    }
    return StepSums(loss_nats, load, values, _by_loss(batches, terms))


def _by_loss(batches: Sequence[Batch], terms: Sequence[LossTerms]) -> list[str]:
    """Return the step's doc_ids, highest mean loss first, those whose loss is not a number before all."""
    worst: dict[str, float] = {}
    for batch, term in zip(batches, terms, strict=True):
        means = (term.nats_D / term.weight_D.clamp_min(1e-9)).tolist()
        for (doc_id, _, _), mean in zip(batch.spans, means, strict=True):
            worst[doc_id] = max(worst.get(doc_id, 0.0), mean if math.isfinite(mean) else math.inf)
    return sorted(worst, key=lambda doc_id: (-worst[doc_id], doc_id))


def summary(output_path: str) -> dict[str, Any]:
    """Return what a finished run came to: its steps and tokens, first and last losses, and its checkpoint."""
    rows = read_metrics(os.path.join(output_path, "metrics.jsonl"))
    path = checkpoint.latest(os.path.join(output_path, "checkpoints"))
    losses = [key for key in rows[0] if key.startswith("loss/") and key.endswith("_nats")]
    seen = {key: [row[key] for row in rows if row[key] is not None] for key in losses}
    return {
        "steps": rows[-1]["step"],
        "tokens/seen": rows[-1]["tokens/seen"],
        "stability/skipped": sum(row["stability/skipped"] for row in rows),
        **{f"first/{key}": values[0] for key, values in seen.items() if values},
        **{f"last/{key}": values[-1] for key, values in seen.items() if values},
        "checkpoint": os.path.relpath(path, output_path) if path else None,
    }
