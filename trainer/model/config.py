"""Shape of the model: every size of the M3 architecture, from a few million parameters up.

Owns the config and its checks; imports no torch. Field names are those of the published `config.json` where
it has one.
"""

from typing import Self

from pydantic import BaseModel, Field, model_validator


class VisionConfig(BaseModel, frozen=True, extra="forbid"):
    """Vision tower: patches of pixels to one vector a patch."""

    hidden_size: int = Field(default=128, gt=0)
    intermediate_size: int = Field(default=256, gt=0)
    num_layers: int = Field(default=3, gt=0)
    num_heads: int = Field(default=4, gt=0)
    patch_size: int = Field(default=8, gt=0)
    temporal_patch_size: int = Field(default=2, gt=0)
    merge_size: int = Field(default=2, gt=0)
    rope_theta: float = Field(default=10_000.0, gt=0)
    layer_norm_eps: float = Field(default=1e-5, gt=0)

    @property
    def patch_width(self) -> int:
        """Numbers in one flattened patch of RGB pixels."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.num_heads or self.hidden_size // self.num_heads < 6:
            raise ValueError(
                f"num_heads: {self.num_heads} must divide hidden_size {self.hidden_size} "
                "into heads of at least 6 (two dimensions for each of three axes)"
            )
        return self


class ModelConfig(BaseModel, frozen=True, extra="forbid"):
    """Decoder, experts, sparse attention and vision."""

    vocab_size: int = Field(default=4096, gt=0)
    hidden_size: int = Field(default=256, gt=0)
    num_layers: int = Field(default=6, gt=0)
    num_heads: int = Field(default=8, gt=0)
    num_kv_heads: int = Field(default=2, gt=0)
    head_dim: int = Field(default=32, gt=0)
    rotary_dim: int = Field(default=16, gt=0)
    """Leading dimensions of a head that are rotated (M3: half)."""
    rope_theta: float = Field(default=10_000.0, gt=0)
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    num_dense_layers: int = Field(default=2, ge=0)
    """First layers with full attention and a dense MLP (M3: 3 of 60)."""
    dense_intermediate_size: int = Field(default=512, gt=0)
    intermediate_size: int = Field(default=128, gt=0)
    """Width of one routed expert."""
    shared_intermediate_size: int = Field(default=128, gt=0)
    num_experts: int = Field(default=8, gt=0)
    num_experts_per_token: int = Field(default=2, gt=0)
    routed_scaling_factor: float = Field(default=2.0, gt=0)
    swiglu_alpha: float = 1.702
    swiglu_limit: float = Field(default=7.0, gt=0)
    index_dim: int = Field(default=32, gt=0)
    """Width of the index heads that choose blocks; one query head a KV head, one shared key head."""
    block_size: int = Field(default=32, gt=0)
    """Tokens in a key block (M3: 128)."""
    top_k_blocks: int = Field(default=8, gt=0)
    """Blocks a query token reads, its own included (M3: 16)."""
    projector_hidden_size: int = Field(default=256, gt=0)
    max_position_embeddings: int = Field(default=1_048_576, gt=0)
    """Longest document; positions are document-local."""
    vision: VisionConfig = VisionConfig()

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads: {self.num_kv_heads} does not divide num_heads {self.num_heads}")
        if self.rotary_dim % 2 or self.rotary_dim > min(self.head_dim, self.index_dim):
            raise ValueError(f"rotary_dim: {self.rotary_dim} must be even and fit head_dim and index_dim")
        if self.num_dense_layers > self.num_layers:
            raise ValueError(f"num_dense_layers: {self.num_dense_layers} exceeds {self.num_layers} layers")
        if self.num_experts_per_token > self.num_experts:
            raise ValueError(
                f"num_experts_per_token: {self.num_experts_per_token} exceeds {self.num_experts} experts"
            )
        return self
