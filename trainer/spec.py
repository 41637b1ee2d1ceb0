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
    """CISPO on tasks whose answer stands in a picture."""

    environments: tuple[Literal["count", "colour"], ...] = ("count", "colour")
    """Tasks, drawn in equal shares."""
    num_warm_start_steps: int = Field(default=30, ge=0)
    """Supervised steps on demonstrations before RL, so that the answer's form is known; answers are drawn at
    random, so nothing about pictures is taught."""
    num_steps: int = Field(default=60, gt=0)
    """RL steps: one batch of rollouts and one optimiser step each."""
    prompts_per_step: int = Field(default=16, gt=0)
    """Prompts (groups) in a step."""
    rollouts_per_prompt: int = Field(default=8, gt=1)
    """Samples in a group."""
    max_answer_tokens: int = Field(default=4, gt=0)
    """Sampled tokens at most."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    ratio_max: float = Field(default=5.0, gt=1)
    """CISPO's absolute upper bound on the importance ratio; there is no lower one (MiniMax-M1 eq. 4-5)."""
    optimizer: OptimizerSpec = OptimizerSpec(learning_rate=3e-4)
    num_eval_tasks: int = Field(default=256, gt=0)
    """Held-out tasks before and after, also answered with the pictures exchanged."""
    seed: int = 1
    """Seed of tasks and sampling."""
