"""The whole model: vision tower, projector, decoder and output layer.

Owns the inputs and outputs of a forward pass, initial weights, and the split of the parameters into
components. Losses and the optimiser are not here.

Letters: T tokens of all documents, M model width, V vocabulary, P patches, S pictures, X experts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.model.config import ModelConfig
from trainer.model.decoder import DecoderLayer, Phase, RMSNorm, rotary_tables
from trainer.model.experts import Router
from trainer.model.vision import Projector, VisionTower

INIT_STD = 0.02
RESIDUAL_OUTPUTS = ("o_proj", "down_proj", "out_proj", "fc2")


@dataclass
class ModelInputs:
    """Packed documents and their pictures."""

    input_ids: Tensor
    """Token ids [T], int64."""
    positions: Tensor
    """Position of each token inside its document [T], int64."""
    cu_seqlens: Tensor
    """Document edges [documents + 1], int32, from 0 to T."""
    patches: Tensor
    """Normalised pixels [P, channels x frames x height x width of a patch], pictures in stream order, each in
    merge-block order; P may be 0.
    """
    grids: Tensor
    """Temporal patches, patch rows and patch columns of each picture [S, 3], int64; S may be 0."""
    is_placeholder: Tensor
    """Tokens that stand for pictures [T], bool: one for each merged block of patches, in order."""

    def to(self, device: torch.device | str) -> "ModelInputs":
        """Return the inputs on `device`."""
        return ModelInputs(**{name: tensor.to(device) for name, tensor in vars(self).items()})


@dataclass
class ModelOutput:
    """Hidden states and what the sparse layers report."""

    hidden: Tensor
    """Hidden states after the last norm [T, M]; `OmniModel.logits` turns rows of it into logits."""
    index_kl: Tensor
    """Index KL in nats, mean over sparse layers, tokens and groups."""
    expert_load: Tensor
    """Tokens that chose each expert [expert layers, X], int64."""


class OmniModel(nn.Module):
    """The M3 architecture at any size."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.vision_tower = VisionTower(config.vision)
        self.projector = Projector(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, sparse=layer >= config.num_dense_layers)
            for layer in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.reset_parameters(seed)

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        """Set initial weights; equal seeds give equal weights.

        Matrices are normal with deviation 0.02, over √(2 · layers) for those that write into the residual
        stream; norms start as the identity and biases at zero.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            in_vision = name.startswith("vision_tower.")
            if parameter.ndim == 1:
                parameter.fill_(1.0 if in_vision and name.endswith("norm.weight") else 0.0)
                continue
            is_residual = any(part in RESIDUAL_OUTPUTS for part in name.split("."))
            num_layers = self.config.vision.num_layers if in_vision else self.config.num_layers
            std = INIT_STD / (2 * num_layers) ** 0.5 if is_residual else INIT_STD
            parameter.copy_(torch.empty(parameter.shape).normal_(std=std, generator=generator))

    def forward(self, inputs: ModelInputs, phase: Phase = "sparse") -> ModelOutput:
        """Run packed documents through the model.

        Raises:
            ValueError: when patches, grids and placeholders do not agree.
        """
        rotary = rotary_tables(inputs.positions, self.config.rotary_dim, self.config.rope_theta)
        hidden_TM = self._embed(inputs)
        index_kls, loads = [], []
        for layer in self.layers:
            hidden_TM, index_kl, load_X = layer(hidden_TM, rotary, inputs.cu_seqlens, phase)
            if layer.sparse:
                index_kls.append(index_kl)
                loads.append(load_X)
        no_load = inputs.input_ids.new_zeros(0, self.config.num_experts)
        return ModelOutput(
            hidden=self.norm(hidden_TM),
            index_kl=torch.stack(index_kls).mean() if index_kls else hidden_TM.new_zeros(()),
            expert_load=torch.stack(loads) if loads else no_load,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [N, V] of hidden states [N, M]."""
        return self.lm_head(hidden).float()

    def components(self) -> dict[str, list[nn.Parameter]]:
        """Return every parameter once, by component: vision, projector, decoder or index."""
        parts: dict[str, list[nn.Parameter]] = {"vision": [], "projector": [], "decoder": [], "index": []}
        for name, parameter in self.named_parameters():
            if name.startswith("vision_tower."):
                parts["vision"].append(parameter)
            elif name.startswith("projector."):
                parts["projector"].append(parameter)
            else:
                parts["index" if ".index_" in name else "decoder"].append(parameter)
        return parts

    @torch.no_grad()
    def update_router_bias(self, expert_load: Tensor, rate: float) -> None:
        """Move each router's bias by `rate` towards experts below the mean load and away from those above.

        Shapes:
            expert_load [expert layers, X]: as in `ModelOutput`, summed over what made the step.

        Source:
            arXiv:2408.15664, algorithm 1.
        """
        routers = [module for module in self.modules() if isinstance(module, Router)]
        for router, load_X in zip(routers, expert_load.float(), strict=True):
            router.bias += rate * torch.sign(load_X.mean() - load_X).to(router.bias)

    def _embed(self, inputs: ModelInputs) -> Tensor:
        """Embed the ids and put picture features in the place of placeholders."""
        hidden_TM = self.embed_tokens(inputs.input_ids)
        _check_pictures(inputs, self.config)
        if not len(inputs.grids):
            # One blank block of weight 0: vision runs and has gradients on every rank, as collectives need.
            merge = self.config.vision.merge_size
            blank = hidden_TM.new_zeros(merge * merge, self.config.vision.patch_width)
            grid = inputs.grids.new_tensor([[1, merge, merge]])
            return hidden_TM + 0 * self.projector(self.vision_tower(blank, grid)).sum()
        features = self.projector(self.vision_tower(inputs.patches, inputs.grids))
        return hidden_TM.index_copy(0, inputs.is_placeholder.nonzero()[:, 0], features.to(hidden_TM.dtype))


def _check_pictures(inputs: ModelInputs, config: ModelConfig) -> None:
    num_patches, num_merged = int(inputs.grids.prod(-1).sum()), config.vision.merge_size**2
    if tuple(inputs.patches.shape) != (num_patches, config.vision.patch_width):
        raise ValueError(
            f"patches: shape {tuple(inputs.patches.shape)}, but the grids hold {num_patches} "
            f"patches of width {config.vision.patch_width}"
        )
    if (inputs.grids[:, 1:] % config.vision.merge_size).any():
        raise ValueError(
            f"grids: {inputs.grids.tolist()}, rows and columns must divide by {config.vision.merge_size}"
        )
    num_placeholders = int(inputs.is_placeholder.sum())
    if num_placeholders != num_patches // num_merged:
        raise ValueError(
            f"is_placeholder: {num_placeholders} tokens, but the pictures give {num_patches // num_merged}"
        )
