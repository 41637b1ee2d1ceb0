"""Our model against transformers' MiniMax-M3, through the exported files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import MiniMaxM3SparseForConditionalGeneration

from trainer.model.config import ModelConfig, VisionConfig
from trainer.model.experts import Router
from trainer.model.hugging_face import to_hugging_face
from trainer.model.model import ModelInputs, OmniModel

IMAGE, VIDEO, END = 290, 291, 292
CONFIG = ModelConfig(
    vocab_size=300,
    hidden_size=64,
    num_layers=3,
    num_heads=8,
    num_kv_heads=2,
    head_dim=16,
    rotary_dim=8,
    rope_theta=5e6,
    num_dense_layers=1,
    dense_intermediate_size=96,
    intermediate_size=32,
    shared_intermediate_size=48,
    num_experts=8,
    num_experts_per_token=2,
    index_dim=16,
    block_size=8,
    top_k_blocks=3,
    projector_hidden_size=40,
    vision=VisionConfig(hidden_size=48, intermediate_size=96, num_layers=2, num_heads=4, patch_size=4),
)
Pair = tuple[OmniModel, MiniMaxM3SparseForConditionalGeneration]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Ours, and transformers' loaded from our export; weights are large so that every part shows."""
    ours = OmniModel(CONFIG, seed=3).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for module in ours.modules():
            if isinstance(module, Router):
                module.bias.normal_(std=0.05, generator=generator)
    config, state = to_hugging_face(ours, image_token_id=IMAGE, video_token_id=VIDEO, end_token_id=END)
    folder = tmp_path_factory.mktemp("export")
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return ours, load(folder)


def load(folder: Path) -> MiniMaxM3SparseForConditionalGeneration:
    theirs, info = MiniMaxM3SparseForConditionalGeneration.from_pretrained(  # type: ignore[misc]
        folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return theirs.eval()


def inputs(ids: Tensor, patches: Tensor | None = None, grids: list[list[int]] | None = None) -> ModelInputs:
    """One document."""
    return ModelInputs(
        input_ids=ids,
        positions=torch.arange(len(ids)),
        cu_seqlens=torch.tensor([0, len(ids)]).int(),
        patches=torch.zeros(0, CONFIG.vision.patch_width) if patches is None else patches,
        grids=torch.tensor(grids or []).long().reshape(-1, 3),
        is_placeholder=(ids == IMAGE) | (ids == VIDEO),
    )


def relative_difference(models: Pair, ours_inputs: ModelInputs, **theirs: Tensor) -> float:
    ours, reference = models
    with torch.no_grad():
        logits = ours.logits(ours(ours_inputs).hidden)
        expected = reference(input_ids=ours_inputs.input_ids[None], **theirs).logits[0]
    return float((logits - expected).abs().max() / expected.abs().max())


def text(length: int, seed: int) -> Tensor:
    return torch.randint(0, 280, (length,), generator=torch.Generator().manual_seed(seed))


def pixels(num_patches: int, seed: int) -> Tensor:
    return torch.randn(num_patches, CONFIG.vision.patch_width, generator=torch.Generator().manual_seed(seed))


def test_text_with_active_selection_has_the_same_logits(models: Pair) -> None:
    ids = text(100, seed=1)
    assert relative_difference(models, inputs(ids)) < 1e-5
    ours = models[0]
    with torch.no_grad():
        # 13 blocks, of which 3 are read: the dense phase differs, so the selection is in the figures above.
        assert (ours(inputs(ids)).hidden - ours(inputs(ids), phase="dense").hidden).abs().max() > 1e-2


def test_two_images_give_the_same_logits(models: Pair) -> None:
    grids, patches = [[1, 4, 6], [1, 2, 4]], pixels(24 + 8, seed=2)
    ids = torch.cat([text(30, 3), torch.full((6,), IMAGE), text(20, 4), torch.full((2,), IMAGE), text(40, 5)])
    assert (
        relative_difference(
            models, inputs(ids, patches, grids), pixel_values=patches, image_grid_thw=torch.tensor(grids)
        )
        < 1e-5
    )


def test_a_video_in_two_segments_beside_an_image_gives_the_same_logits(models: Pair) -> None:
    video_grids, image_grids = [[3, 4, 2], [1, 4, 2]], [[1, 2, 2]]
    image, video = pixels(4, seed=6), pixels(32, seed=7)
    frames = [part for index in range(4) for part in (text(9, 10 + index), torch.full((2,), VIDEO))]
    ids = torch.cat([text(20, 8), torch.tensor([IMAGE]), *frames, text(40, 9)])
    ours = inputs(ids, torch.cat([image, video]), image_grids + video_grids)
    assert (
        relative_difference(
            models,
            ours,
            pixel_values=image,
            image_grid_thw=torch.tensor(image_grids),
            pixel_values_videos=video,
            video_grid_thw=torch.tensor(video_grids),
        )
        < 1e-5
    )


def test_a_wrong_segment_border_would_show(models: Pair) -> None:
    patches, ids = pixels(32, seed=7), torch.cat([text(20, 8), torch.full((8,), VIDEO), text(50, 9)])
    ours = inputs(ids, patches, [[4, 4, 2]])
    assert (
        relative_difference(
            models, ours, pixel_values_videos=patches, video_grid_thw=torch.tensor([[3, 4, 2], [1, 4, 2]])
        )
        > 1e-4
    )
