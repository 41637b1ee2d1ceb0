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
    """Passes over the training examples."""
    learning_rate: float = Field(default=0.05, gt=0)
    """Adam's step size; falls to zero over the training."""
    held_out_frac: float = Field(default=0.2, gt=0, le=0.5)
    """Documents each model does not see. As many models are trained as it takes to hold every document out
    once (0.2: five), so that no document is judged by a model that remembers it; the reported AUC is over all
    of them."""
    max_documents: int = Field(default=5_000, gt=1)
    """Documents sampled for training at most. Default: about 400 MB of n-grams."""
    seed: int = 1
    """Seed of corruption, folds and order."""


class AlignmentSpec(BaseModel, frozen=True, extra="forbid"):
    """How well a picture fits the text beside it: a CLIP from a file, or a locked image tower with trained
    heads.
    """

    kind: Literal["alignment"] = "alignment"
    clip_model: str | None = None
    """open_clip architecture name; used with `clip_checkpoint`."""
    clip_checkpoint: str | None = None
    """Weights file for `clip_model`; empty trains the small scorer on the corpus' captions."""
    embedding_size: int = Field(default=128, gt=0)
    """Width of the shared space of the small scorer."""
    num_buckets: int = Field(default=2**15, gt=0)
    """Hash buckets of the small scorer's n-grams."""
    num_epochs: int = Field(default=10, ge=0)
    """Contrastive passes over the (picture, text) pairs, after the closed-form start."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """AdamW's step size; falls to zero over the training. Default: higher ones lose held-out AUC on a small
    corpus."""
    held_out_frac: float = Field(default=0.2, gt=0, le=0.5)
    """Documents each model does not see, as in `text_quality`. With a CLIP no model is trained and none is
    held out; the fraction then only groups the pairs for the report."""
    max_pairs: int = Field(default=20_000, gt=1)
    """Pairs sampled for training at most. Default: about 100 MB of features."""
    seed: int = 1
    """Seed of sampling, folds and order."""

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
    """For `top_frac`: fraction of each stratum's scored documents kept. Unset means 0.9."""
    temperature: float | None = Field(default=None, gt=0)
    """For `temperature`: in standard deviations of the stratum's scores. Unset means 1."""
    floor: float | None = Field(default=None, ge=0, le=1)
    """For `temperature`: lowest weight; the mean weight of a stratum is 1. Unset means 0.1."""
    null_score: Literal["keep", "drop"] = "keep"
    """What happens to documents whose score is null or missing: weight 1, or none."""

    @model_validator(mode="after")
    def _fields_have_effect(self) -> Self:
        used = {
            "threshold": {"threshold"},
            "top_frac": {"keep_frac"},
            "temperature": {"temperature", "floor"},
        }
        for name in ("threshold", "keep_frac", "temperature", "floor"):
            if getattr(self, name) is not None and name not in used[self.method]:
                raise ValueError(f"{name}: has no effect with method {self.method!r}")
        if self.method == "threshold" and self.threshold is None:
            raise ValueError("threshold: method 'threshold' needs a value")
        return self
