"""Export to the published MiniMax-M3 layout, which transformers and the inference engines read.

Owns the names and shapes of that layout. Does not write files and does not import.
"""

from typing import Any

import torch
from torch import Tensor

from trainer.model.config import ModelConfig
from trainer.model.model import OmniModel

_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention": "self_attn",
    "mlp.router.weight": "block_sparse_moe.gate.weight",
    "mlp.router.bias": "block_sparse_moe.e_score_correction_bias",
    "mlp.shared_expert": "block_sparse_moe.shared_experts",
}
_VISION_NAMES = {
    "attention_norm": "layer_norm1",
    "mlp_norm": "layer_norm2",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "out_proj": "self_attn.out_proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
_OTHER_NAMES = {
    "embed_tokens": "language_model.model.embed_tokens",
    "norm": "language_model.model.norm",
    "lm_head": "language_model.lm_head",
    "vision_tower.patch_norm": "vision_tower.vision_model.pre_layrnorm",  # so in the published files
    "projector.linear": "multi_modal_projector.linear",
    "projector.merge_linear": "patch_merge_mlp.linear",
}


def to_hugging_face(
    model: OmniModel, *, image_token_id: int, video_token_id: int, end_token_id: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return `config.json` as a dict and the state dict under the published names.

    The tensors are copies: rows of stacked weights become tensors of their own.
    """
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        state.update(_published(name, tensor.detach(), model.config))
    return _config(model.config, image_token_id, video_token_id, end_token_id), state


def _config(
    config: ModelConfig, image_token_id: int, video_token_id: int, end_token_id: int
) -> dict[str, Any]:
    vision, num_sparse = config.vision, config.num_layers - config.num_dense_layers
    is_sparse = [0] * config.num_dense_layers + [1] * num_sparse
    compression = {
        "image_token_compression_method": "patch_merge",
        "spatial_merge_size": vision.merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
    }
    text_config = {
        "model_type": "minimax_m3_vl_text",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rotary_dim": config.rotary_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        # transformers takes the rotated width from this fraction, not from rotary_dim.
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rotary_dim / config.head_dim,
        },
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": False,
        "dense_intermediate_size": config.dense_intermediate_size,
        "intermediate_size": config.intermediate_size,
        "shared_intermediate_size": config.shared_intermediate_size,
        "n_shared_experts": 1,
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_token,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": config.routed_scaling_factor,
        "hidden_act": "swigluoai",
        "swiglu_alpha": config.swiglu_alpha,
        "swiglu_limit": config.swiglu_limit,
        "moe_layer_freq": is_sparse,
        "bos_token_id": None,
        "eos_token_id": end_token_id,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": config.index_dim,
            "sparse_num_index_heads": config.num_kv_heads,
            "sparse_topk_blocks": config.top_k_blocks,
            "sparse_block_size": config.block_size,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_attention_freq": is_sparse,
            "sparse_disable_index_value": is_sparse,
        },
    }
    vision_config = {
        "model_type": "minimax_m3_vl_vision",
        "hidden_size": vision.hidden_size,
        "intermediate_size": vision.intermediate_size,
        "num_hidden_layers": vision.num_layers,
        "num_attention_heads": vision.num_heads,
        "num_channels": 3,
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "spatial_merge_size": vision.merge_size,
        "hidden_act": "gelu",
        "layer_norm_eps": vision.layer_norm_eps,
        "rope_parameters": {"rope_type": "axial", "rope_theta": vision.rope_theta},
        "img_token_compression_config": compression,
    }
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "image_token_index": image_token_id,
        "video_token_index": video_token_id,
        "tie_word_embeddings": False,
        "projector_hidden_act": "gelu",
        "projector_hidden_size": config.projector_hidden_size,
        "multimodal_projector_bias": True,
        "img_token_compression_config": compression,
        "text_config": text_config,
        "vision_config": vision_config,
    }


def _published(name: str, tensor: Tensor, config: ModelConfig) -> dict[str, Tensor]:
    if name.startswith("layers."):
        _, layer, rest = name.split(".", 2)
        prefix = f"language_model.model.layers.{layer}."
        return {prefix + key: value for key, value in _layer(rest, tensor).items()}
    if name.startswith("vision_tower.layers."):
        _, _, layer, rest = name.split(".", 3)
        prefix = f"vision_tower.vision_model.encoder.layers.{layer}."
        return {prefix + _renamed(rest, _VISION_NAMES): tensor.clone()}
    if name == "vision_tower.patch_embedding.weight":
        vision = config.vision
        shape = (-1, 3, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
        return {"vision_tower.vision_model.embeddings.patch_embedding.weight": tensor.reshape(shape).clone()}
    return {_renamed(name, _OTHER_NAMES): tensor.clone()}


def _layer(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return what a tensor of one of our decoder layers becomes: gate and up parted, experts parted."""
    if name.startswith("mlp.experts."):
        halves = zip(("w1", "w3"), tensor.chunk(2, dim=1), strict=True)
        parts = {"w2": tensor} if "down_proj" in name else dict(halves)
        return {
            f"block_sparse_moe.experts.{expert}.{part}.weight": weight.clone()
            for part, stacked in parts.items()
            for expert, weight in enumerate(stacked)
        }
    name = _renamed(name, _LAYER_NAMES)
    if "gate_up_proj" in name:
        return {
            name.replace("gate_up_proj", half): part.clone()
            for half, part in zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=0), strict=True)
        }
    return {name: tensor.clone(memory_format=torch.contiguous_format)}


def _renamed(name: str, names: dict[str, str]) -> str:
    """Replace the first listed beginning of `name`; a name without one stays."""
    for ours, theirs in names.items():
        if name.startswith(ours):
            return theirs + name[len(ours) :]
    return name
