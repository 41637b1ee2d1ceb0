"""A tiny model, a byte-level tokenizer and short RL runs for the tests of `trainer.rl`."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rewards import verify
from schemas.vocabulary import SPECIAL_TOKENS
from trainer import checkpoint
from trainer.model.config import ModelConfig, VisionConfig
from trainer.model.model import OmniModel
from trainer.rl.engine import Prompt, PromptEncoder
from trainer.rl.environments import draw_tasks
from trainer.rl.train import train
from trainer.spec import OptimizerSpec, RLSpec

VOCAB_SIZE = 320
MODEL = ModelConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rotary_dim=4,
    num_dense_layers=1,
    dense_intermediate_size=32,
    intermediate_size=16,
    shared_intermediate_size=16,
    num_experts=4,
    num_experts_per_token=2,
    index_dim=8,
    block_size=8,
    top_k_blocks=8,
    projector_hidden_size=32,
    vision=VisionConfig(hidden_size=24, intermediate_size=32, num_layers=1, num_heads=2),
)


def write_tokenizer(folder: Path, vocab_size: int = VOCAB_SIZE) -> str:
    """Train a byte-level tokenizer on a few sentences and return its path."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["How many circles or squares? First letter of the colour?"] * 9, trainer)
    path = str(folder / "tokenizer.json")
    tokenizer.save(path)
    return path


def untrained_model(seed: int = 3) -> OmniModel:
    """Return a model with larger weights than the default: at this width pictures reach the output."""
    model = OmniModel(MODEL, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(parameter.shape[-1] ** -0.5 / 0.02)
    return model


def write_checkpoint(folder: Path) -> str:
    """Save an untrained model and return the checkpoint's path."""
    model = untrained_model()
    optimizer = torch.optim.AdamW(model.parameters())
    return checkpoint.save(str(folder), 0, model=model, optimizer=optimizer, loop={}, keep=1)


def spec(**fields: Any) -> RLSpec:
    """Return a spec of a few short steps."""
    small = {
        "num_warm_start_steps": 2,
        "num_steps": 5,
        "prompts_per_step": 4,
        "rollouts_per_prompt": 6,
        "num_eval_tasks": 8,
        "save_every": 2,
        "record_every": 2,
        "optimizer": OptimizerSpec(learning_rate=3e-3),
    }
    return RLSpec(**{**small, **fields})


def run(folder: Path, output: Path, rl_spec: RLSpec, **arguments: Any) -> dict[str, Any]:
    """Train on the checkpoint and tokenizer in `folder`, written on the first call."""
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(folder)
        write_checkpoint(folder)
    defaults = {"verify": verify.exact, "on_step": lambda step, total: None}
    return train(
        rl_spec,
        checkpoint_path=str(folder / "step-00000000"),
        tokenizer_path=str(folder / "tokenizer.json"),
        output_path=str(output),
        **{**defaults, **arguments},
    )


def prompts(encoder: PromptEncoder, num_prompts: int = 4) -> list[Prompt]:
    """Return prompts of both environments."""
    return [encoder.prompt(task) for task in draw_tasks(("count", "colour"), "train", 1, 0, num_prompts)]
