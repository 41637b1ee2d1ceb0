"""Specs of pretraining, evaluation and RL.

Owns validation of these fields. Imports no torch.
"""

from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from trainer.model.config import ModelConfig


class OptimizerSpec(BaseModel, frozen=True, extra="forbid"):
    """AdamW with a warm-up, a plateau and a decay (WSD), or a cosine."""

    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak step size of the decoder."""
    learning_rate_scale: dict[Literal["vision", "projector", "decoder", "index"], float] = {}
    """Factor on the step size by component; 0 freezes it, left out is 1."""
    schedule: Literal["wsd", "cosine"] = "wsd"
    """Shape of the step size after warm-up."""
    warmup_frac: float = Field(default=0.05, ge=0, lt=1)
    """Fraction of the steps with a rising step size."""
    decay_frac: float = Field(default=0.3, gt=0, le=1)
    """Fraction of the steps over which WSD decays at the end."""
    final_frac: float = Field(default=0.1, ge=0, le=1)
    """Step size at the end as a fraction of the peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's moment decay."""
    eps: float = Field(default=1e-15, gt=0)
    """AdamW's epsilon. Default: MiniMax-M1 (gradients span 1e-18 to 1e-5)."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decay of matrices; norms, biases and embeddings have none."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Each component's gradients are clipped to this norm on their own: a spike in one stops no other."""

    @model_validator(mode="after")
    def _fields_have_effect(self) -> Self:
        if self.schedule == "cosine" and "decay_frac" in self.model_fields_set:
            raise ValueError("decay_frac: has no effect with schedule 'cosine'")
        if self.warmup_frac + (self.decay_frac if self.schedule == "wsd" else 0) > 1:
            raise ValueError("warmup_frac and decay_frac: together above 1")
        return self


class PretrainSpec(BaseModel, frozen=True, extra="forbid"):
    """One pretraining run over a plan."""

    model: ModelConfig = ModelConfig()
    """Shape of the model; `vocab_size` must be the tokenizer's, patch and merge sizes the tokens'."""
    optimizer: OptimizerSpec = OptimizerSpec()
    num_steps: int | None = Field(default=None, gt=0)
    """Optimiser steps; empty takes as many as the plan has full batches."""
    batch_sequences: int = Field(default=4, gt=0)
    """Plan sequences in one optimiser step, over all ranks."""
    micro_sequences: int | None = Field(default=None, gt=0)
    """Sequences in one forward pass; empty takes the whole batch. The loss does not depend on it."""
    index_warmup_frac: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the steps with dense attention and the index trained on it (MSA's warm-up)."""
    index_loss_weight: float = Field(default=1.0, gt=0)
    """Weight of the mean index KL over layers; it reaches index parameters only."""
    router_bias_rate: float = Field(default=1e-3, ge=0)
    """Step of the routers' balancing bias after each step; 0 turns balancing off."""
    z_loss_weight: float = Field(default=1e-5, ge=0)
    """Weight of log²Z of the output softmax (Chameleon, OLMo)."""
    skip_sigma: float = Field(default=6.0, gt=0)
    """A step is skipped when its loss or gradient norm lies more than this many standard deviations above the
    mean of recent steps, or is not finite. Default: OLMo-core."""
    skip_window: int = Field(default=128, ge=16)
    """Recent steps that mean and deviation are taken over; judging starts once a quarter are there."""
    save_every: int = Field(default=50, gt=0)
    """Steps between checkpoints; one is always written at the end."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """Checkpoints kept."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type; parameters and optimiser state stay float32."""
    seed: int = 1
    """Seed of initial weights."""

    @model_validator(mode="after")
    def _micro_divides(self) -> Self:
        if self.micro_sequences and self.batch_sequences % self.micro_sequences:
            raise ValueError(
                f"micro_sequences: {self.micro_sequences} does not divide batch_sequences "
                f"{self.batch_sequences}"
            )
        return self


class EvaluateSpec(BaseModel, frozen=True, extra="forbid"):
    """Held-out loss by modality, with true and with shuffled pictures."""

    max_sequences: int = Field(default=64, gt=0)
    """Sequences evaluated at most."""
    shuffle_images: bool = True
    """Also measure the loss with pictures exchanged: the difference is what the pictures tell."""
    seed: int = 1
    """Seed of the shuffle."""


class RLSpec(BaseModel, frozen=True, extra="forbid"):
    """CISPO on tasks whose answer stands in a picture.

    The index of the sparse attention is not trained here: prompts are shorter than what it leaves out.
    """

    environments: tuple[Literal["count", "colour"], ...] = Field(default=("count", "colour"), min_length=1)
    """Tasks, drawn in turn."""
    num_warm_start_steps: int = Field(default=20, ge=0)
    """Supervised steps of the decoder before RL, so that the form of an answer is known. The answers are
    drawn at random and vision is frozen, so nothing about pictures is taught."""
    warm_start_learning_rate: float = Field(default=2e-3, gt=0)
    """Step size of the warm start."""
    num_steps: int = Field(default=80, gt=0)
    """RL steps: one batch of rollouts each."""
    updates_per_step: int = Field(default=2, gt=0)
    """Optimiser steps on each batch of rollouts; after the first the policy is no longer the sampling one."""
    prompts_per_step: int = Field(default=64, gt=0)
    """Prompts (groups) in a step."""
    micro_prompts: int | None = Field(default=None, gt=0)
    """Prompts in one forward pass; empty takes all. The loss does not depend on it."""
    rollouts_per_prompt: int = Field(default=32, gt=1)
    """Samples in a group. Equal ones run once, so large groups of short answers cost little."""
    max_answer_tokens: int = Field(default=1, gt=0)
    """Sampled tokens at most. Default: answers are one character."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    ratio_max: float = Field(default=5.0, gt=1)
    """CISPO's absolute upper bound on the importance ratio; there is no lower one (MiniMax-M1 eq. 4-5)."""
    demonstration_weight: float = Field(default=0.2, ge=0)
    """Weight of the warm start's loss beside CISPO (as PPO-ptx of arXiv 2203.02155 mixes in pretraining). It
    keeps every answer likely enough to be tried while the pictures still look alike to the model; the share
    of wrong answers that it sustains falls with its square."""
    optimizer: OptimizerSpec = OptimizerSpec(learning_rate=1e-3, learning_rate_scale={"vision": 0.3})
    """Default: vision moves slower, as its gradients are small and AdamW would step on their noise."""
    num_eval_tasks: int = Field(default=240, gt=1)
    """Held-out tasks before and after, also answered with the pictures exchanged."""
    save_every: int = Field(default=20, gt=0)
    """Steps between checkpoints; the newest is kept."""
    record_every: int = Field(default=5, gt=0)
    """Steps between those whose rollouts are written down, the first and the last always."""
    seed: int = Field(default=1, ge=0)
    """Seed of tasks and sampling."""

    @model_validator(mode="after")
    def _fields_have_effect(self) -> Self:
        if "index" in self.optimizer.learning_rate_scale:
            raise ValueError(
                "optimizer.learning_rate_scale.index: has no effect, RL does not train the index"
            )
        if not self.num_warm_start_steps and "warm_start_learning_rate" in self.model_fields_set:
            raise ValueError("warm_start_learning_rate: has no effect without num_warm_start_steps")
        if len(set(self.environments)) != len(self.environments):
            raise ValueError(f"environments: {list(self.environments)} names one twice")
        if self.num_eval_tasks < 2 * len(self.environments):
            raise ValueError(
                f"num_eval_tasks: {self.num_eval_tasks}, needs 2 for each of {len(self.environments)} "
                "environments, or pictures cannot be exchanged"
            )
        return self
