"""Vision tower and projector: patches of pixels to vectors of the decoder's width.

Owns patch positions and attention inside one picture. A picture is an image or one segment of a video; its
patches come in merge-block order: temporal patch, block row, block column, then row and column in the block.

Letters: P patches of all pictures, S pictures, W vision width, M model width, H heads, D head width.
"""

from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.config import ModelConfig, VisionConfig
from trainer.model.decoder import Rotary, rotary_tables, rotate


def patch_positions(grids_S3: Tensor, merge_size: int) -> Tensor:
    """Return temporal, row and column index [P, 3] of every patch, in merge-block order."""
    positions = []
    for t, h, w in grids_S3.tolist():
        indices = torch.meshgrid(torch.arange(t), torch.arange(h), torch.arange(w), indexing="ij")
        blocks = torch.stack(indices, -1).view(t, h // merge_size, merge_size, w // merge_size, merge_size, 3)
        positions.append(blocks.transpose(2, 3).reshape(-1, 3))
    return torch.cat(positions).to(grids_S3.device)


def vision_rotary(grids_S3: Tensor, config: VisionConfig) -> Rotary:
    """Return the three-axis tables: equal shares of a head turn with the temporal, row and column index."""
    axis_dim = config.hidden_size // config.num_heads // 3 // 2 * 2
    tables = [
        rotary_tables(axis, axis_dim, config.rope_theta)
        for axis in patch_positions(grids_S3, config.merge_size).unbind(-1)
    ]
    cos, sin = (torch.cat(parts, dim=-1) for parts in zip(*tables, strict=True))
    return cos, sin


def picture_attention(q_PHD: Tensor, k_PHD: Tensor, v_PHD: Tensor, lengths: list[int]) -> Tensor:
    """Attention inside each picture; neighbours of equal length share one call."""
    outputs, start = [], 0
    for length, run in groupby(lengths):
        end = start + length * len(list(run))
        q, k, v = (x[start:end].unflatten(0, (-1, length)).transpose(1, 2) for x in (q_PHD, k_PHD, v_PHD))
        outputs.append(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1))
        start = end
    return torch.cat(outputs)


class VisionLayer(nn.Module):
    """A pre-norm transformer layer without causal mask."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.attention_norm, self.mlp_norm = (nn.LayerNorm(size, eps=config.layer_norm_eps) for _ in range(2))
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(size, size) for _ in range(4))
        self.fc1 = nn.Linear(size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, size)

    def forward(self, hidden_PW: Tensor, rotary: Rotary, lengths: list[int]) -> Tensor:
        normed_PW = self.attention_norm(hidden_PW)
        q, k, v = (
            project(normed_PW).unflatten(-1, (self.num_heads, -1))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        attention_PHD = picture_attention(rotate(q, rotary), rotate(k, rotary), v, lengths)
        hidden_PW = hidden_PW + self.out_proj(attention_PHD.flatten(1))
        return hidden_PW + self.fc2(F.gelu(self.fc1(self.mlp_norm(hidden_PW))))


class VisionTower(nn.Module):
    """Patch embedding, a norm, and layers; no class token, no learned positions, no last norm."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        # A 3-d convolution whose stride is its kernel is a linear map of the flattened patch.
        self.patch_embedding = nn.Linear(config.patch_width, config.hidden_size, bias=False)
        self.patch_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.num_layers))

    def forward(self, patches: Tensor, grids_S3: Tensor) -> Tensor:
        """Return one vector [P, W] a patch."""
        rotary, lengths = vision_rotary(grids_S3, self.config), grids_S3.prod(-1).tolist()
        hidden_PW = self.patch_norm(self.patch_embedding(patches))
        for layer in self.layers:
            hidden_PW = layer(hidden_PW, rotary, lengths)
        return hidden_PW


class Projector(nn.Module):
    """Projects each patch to the decoder's width, then merges blocks of neighbours into one vector."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_merged = config.vision.merge_size**2
        inner, size = config.projector_hidden_size, config.hidden_size
        self.linear_1, self.linear_2 = nn.Linear(config.vision.hidden_size, inner), nn.Linear(inner, size)
        self.merge_linear_1 = nn.Linear(self.num_merged * size, inner)
        self.merge_linear_2 = nn.Linear(inner, size)

    def forward(self, hidden_PW: Tensor) -> Tensor:
        """Return one vector [P / merged, M] a placeholder token."""
        projected_PM = self.linear_2(F.gelu(self.linear_1(hidden_PW)))
        merged = projected_PM.view(-1, self.num_merged * projected_PM.shape[-1])
        return self.merge_linear_2(F.gelu(self.merge_linear_1(merged)))
