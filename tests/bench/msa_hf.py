"""MSA in transformers against the model's own eager attention: time and peak memory of a small MiniMax-M3.

Run as `python -m tests.bench.msa_hf [TOKENS ...]`; about six minutes on one core.

- One dense layer and two sparse ones, 8 query heads and 2 KV heads of width 64, an index of width 64, blocks
  of 128, 16 kept; float32, random weights, one thread. A prefill makes a cache; a training step has the
  language loss of all tokens, ours the index's KL besides.
- Every measurement is a process of its own, ours and transformers' in turn: median of three runs after a
  short one, and growth of the process's peak over what it held before.
- `largest difference`: of the last 64 tokens' logits between the two, for a prefill.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig

from kernels.msa import hf
from tests.bench import report
from tests.bench.msa import resident_bytes

LENGTHS, MOST_COMPARED = (1024, 2048, 4096, 8192, 16384, 32768), 8192
TRAINED = 4096
GOAL_RATIO = {8192: 5.0}
KEPT = 64
ROUNDS = 3
PEER = "transformers, eager"


def main(lengths: tuple[int, ...]) -> None:
    """Measure and write `results/msa_hf.json`."""
    rows = []
    for tokens in lengths:
        rows += compare("prefill", tokens, alone=tokens > MOST_COMPARED)
        if tokens == TRAINED:
            rows += compare("training step", tokens)
    report.write("msa_hf", rows, ["torch", "transformers"])


def compare(work: str, tokens: int, alone: bool = False) -> list[dict[str, Any]]:
    """Rows of time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        names = ("ours",) if alone else ("ours", "own")
        measured = {name: in_child(name, work, tokens, Path(folder) / name) for name in names}
        quality: dict[str, Any] = {"rounds": ROUNDS}
        if not alone and work == "prefill":
            ours, own = (torch.load(Path(folder) / name) for name in names)
            quality["largest difference"] = float(f"{float((ours - own).abs().max()):.1e}")
            quality["spread of logits"] = round(float(own.std()), 2)
    peer = {"peer_name": None if alone else PEER}
    of_peer = measured.get("own", {})
    what = f"{work} of {tokens:,} tokens"
    return [
        report.row(
            what,
            measured["ours"]["seconds"],
            "s",
            peer=of_peer.get("seconds"),
            **peer,
            better="lower",
            goal_ratio=GOAL_RATIO.get(tokens) if work == "prefill" else None,
            quality=quality,
        ),
        report.row(
            f"{what}, peak memory above the model",
            measured["ours"]["gigabytes"],
            "GB",
            peer=of_peer.get("gigabytes"),
            **peer,
            better="lower",
            quality={"bytes a token, ours": round(measured["ours"]["gigabytes"] * 1e9 / tokens)},
        ),
    ]


def in_child(name: str, work: str, tokens: int, logits: Path) -> dict[str, float]:
    """Measure one contestant in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.msa_hf", "--child", name, work, str(tokens), str(logits)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(name: str, work: str, tokens: int, logits: Path) -> None:
    """In the child: print seconds and gigabytes, and leave the logits in a file."""
    torch.set_num_threads(1)
    model, trains = small_model(), work == "training step"
    if name == "ours":
        hf.enable(model, kl_weight=1.0 if trains else None)
    run(model, 300, trains)
    model.zero_grad()
    before, seconds = resident_bytes(), []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        kept = run(model, tokens, trains)
        seconds.append(time.perf_counter() - start)
        model.zero_grad()
    torch.save(kept, logits)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(json.dumps({"seconds": median(seconds), "gigabytes": (peak - before) / 1e9}))


def run(model: MiniMaxM3SparseForConditionalGeneration, tokens: int, trains: bool) -> torch.Tensor:
    """One prefill, or one forward and backward pass; returns the last logits."""
    ids = torch.randint(0, 280, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    if trains:
        output = model(input_ids=ids, labels=ids, use_cache=False)
        output.loss.backward()
        return output.logits[:, -KEPT:].detach()
    with torch.no_grad():
        return model(input_ids=ids, use_cache=True, logits_to_keep=KEPT).logits


def small_model() -> MiniMaxM3SparseForConditionalGeneration:
    """With weights so large that a wrong block shows."""
    text = {
        "vocab_size": 300,
        "hidden_size": 256,
        "intermediate_size": 128,
        "dense_intermediate_size": 512,
        "shared_intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rotary_dim": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "index_n_heads": 2,
        "index_head_dim": 64,
        "index_block_size": 128,
        "index_topk_blocks": 16,
        "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 2,
        "mlp_layer_types": ["dense"] + ["sparse"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        "bos_token_id": None,
        "eos_token_id": None,
    }
    vision = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "patch_size": 4,
    }
    config = MiniMaxM3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=290,
        video_token_index=291,
        projector_hidden_size=64,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = MiniMaxM3SparseForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        measure(sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
    else:
        main(tuple(int(x) for x in sys.argv[1:]) or LENGTHS)
