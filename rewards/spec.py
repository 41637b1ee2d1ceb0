"""Specs of scorers and of selection by score.

Owns validation of these fields. Imports no torch.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator


class TextQualitySpec(BaseModel, frozen=True, extra="forbid"):
    """A classifier of natural text against corrupted text, trained on the corpus itself."""

    kind: Literal["text_quality"] = "text_quality"
    num_buckets: int = Field(default=2**16, gt=0)
    """Hash buckets of word and character n-grams."""
    num_epochs: int = Field(default=5, gt=0)
    """Passes over the training pairs."""
    learning_rate: float = Field(default=0.05, gt=0)
    """Adam's step size."""
    held_out_frac: float = Field(default=0.1, gt=0, lt=1)
    """Documents kept out of training, on which the reported AUC is measured."""
    max_documents: int = Field(default=20_000, gt=1)
    """Documents sampled for training at most."""
    seed: int = 1
    """Seed of corruption, split and order."""


class AlignmentSpec(BaseModel, frozen=True, extra="forbid"):
    """How well a picture fits the text beside it: a CLIP from a file, or a locked image tower with a trained text head."""

    kind: Literal["alignment"] = "alignment"
    clip_model: str | None = None
    """open_clip architecture name; used with `clip_checkpoint`."""
    clip_checkpoint: str | None = None
    """Weights file for `clip_model`; empty trains the small scorer on the corpus' captions."""
    embedding_size: int = Field(default=128, gt=0)
    """Width of the shared space of the small scorer."""
    num_buckets: int = Field(default=2**15, gt=0)
    """Hash buckets of the small scorer's text tower."""
    num_epochs: int = Field(default=30, gt=0)
    """Passes over the (picture, caption) pairs."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """AdamW's step size."""
    held_out_frac: float = Field(default=0.1, gt=0, lt=1)
    """Documents kept out of training, on which the reported AUC is measured."""
    max_pairs: int = Field(default=20_000, gt=1)
    """Pairs sampled for training at most."""
    seed: int = 1
    """Seed of initial weights, split and order."""

    @model_validator(mode="after")
    def _checkpoint_has_a_model(self) -> Self:
        if (self.clip_model is None) != (self.clip_checkpoint is None):
            raise ValueError("clip_model and clip_checkpoint: give both or neither")
        return self


ScorerSpec = Annotated[TextQualitySpec | AlignmentSpec, Field(discriminator="kind")]


class SelectSpec(BaseModel, frozen=True, extra="forbid"):
    """How one scorer's scores become document weights. Scores are compared inside a stratum only."""

    scorer: str = Field(min_length=1)
    """Name of the scorer whose table is read."""
    method: Literal["threshold", "top_frac", "temperature"] = "top_frac"
    """Keep above a value, keep the best fraction of each stratum, or weigh by exp(score / temperature)."""
    threshold: float | None = None
    """For `threshold`: lowest score kept."""
    keep_frac: float | None = Field(default=None, gt=0, le=1)
    """For `top_frac`: fraction of each stratum kept. Unset means 0.9."""
    temperature: float | None = Field(default=None, gt=0)
    """For `temperature`: in standard deviations of the stratum's scores. Unset means 1."""
    floor: float | None = Field(default=None, ge=0)
    """For `temperature`: lowest weight. Unset means 0.1."""
    null_score: Literal["keep", "drop"] = "keep"
    """What happens to documents whose score is null or missing."""

    @model_validator(mode="after")
    def _fields_have_effect(self) -> Self:
        used = {"threshold": {"threshold"}, "top_frac": {"keep_frac"}, "temperature": {"temperature", "floor"}}
        for name in ("threshold", "keep_frac", "temperature", "floor"):
            if getattr(self, name) is not None and name not in used[self.method]:
                raise ValueError(f"{name}: has no effect with method {self.method!r}")
        if self.method == "threshold" and self.threshold is None:
            raise ValueError("threshold: method 'threshold' needs a value")
        return self
