"""MSA in transformers against the model's own eager attention: time and peak memory of a small MiniMax-M3.

Run as `python -m tests.bench.msa_hf [TOKENS ...]`; about twelve minutes on one core.

- One dense layer and two sparse ones, 8 query heads and 2 KV heads of width 64, an index of width 64, blocks
  of 128, 16 kept; float32, random weights, one thread. A prefill makes a cache; a training step has the
  language loss of all tokens, ours the index's KL besides.
- Every measurement is a process of its own, ours and transformers' in turn: median of three runs after a
  short one, and growth of the process's peak over what it held before.
- `largest difference`: of the last 64 tokens' logits between the two. The sixteenth and seventeenth block of
  a query may score the same to the last bit of float32; then the two may read different ones (`choices that
  differ`), so that the difference is also given for transformers' attention reading ours.
- Decoding: milliseconds a token after a prefill that ours did for both, median of 30.
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
from unittest import mock

import torch
import torch.nn.functional as F
from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig

from kernels.msa import MSAOutput, hf, msa_attention
from tests.bench import report
from tests.bench.msa import resident_bytes

LENGTHS, MOST_COMPARED = (1024, 2048, 4096, 8192, 16384, 32768), 8192
TRAINED, DECODED_AFTER = 4096, (8192, 32768)
GOAL_RATIO = {8192: 5.0}
KEPT, DECODED = 64, 30
ROUNDS = 3
PEER = "transformers, eager"


def main(lengths: tuple[int, ...]) -> None:
    """Measure and write `results/msa_hf.json`."""
    rows = []
    for tokens in lengths:
        rows += compare("prefill", tokens, alone=tokens > MOST_COMPARED)
        if tokens == TRAINED:
            rows += compare("training step", tokens)
        if tokens in DECODED_AFTER:
            rows.append(compare_decoding(tokens))
    report.write("msa_hf", rows, ["torch", "transformers"])


def compare(work: str, tokens: int, alone: bool = False) -> list[dict[str, Any]]:
    """Rows of time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        names = ("ours",) if alone else ("ours", "own")
        measured = {name: in_child(name, work, tokens, Path(folder)) for name in names}
    quality = {"rounds": ROUNDS, **measured.get("own", {}).get("quality", {})}
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


def compare_decoding(tokens: int) -> dict[str, Any]:
    """A row of the time of a token."""
    measured = {name: in_child(name, "decoding", tokens, Path()) for name in ("ours", "own")}
    return report.row(
        f"decoding after {tokens:,} tokens",
        measured["ours"]["milliseconds"],
        "ms",
        peer=measured["own"]["milliseconds"],
        peer_name=PEER,
        better="lower",
        quality={
            "tokens of the two that differ": differing(measured["ours"]["made"], measured["own"]["made"])
        },
    )


def differing(ours: list[int], own: list[int]) -> str:
    """A count, and of how many."""
    return f"{sum(a != b for a, b in zip(ours, own, strict=True))} of {len(own)}"


def in_child(name: str, work: str, tokens: int, folder: Path) -> dict[str, Any]:
    """Measure one contestant in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.msa_hf", "--child", name, work, str(tokens), str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(name: str, work: str, tokens: int, folder: Path) -> None:
    """In the child: print seconds and gigabytes, and how the logits differ from ours, which come first."""
    torch.set_num_threads(1)
    model, trains = small_model(), work == "training step"
    if name == "ours":
        hf.enable(model, kl_weight=1.0 if trains else None)
    run(model, 300, trains)
    model.zero_grad()
    before, seconds = resident_bytes(), []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        logits = run(model, tokens, trains)
        seconds.append(time.perf_counter() - start)
        model.zero_grad()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result: dict[str, Any] = {"seconds": median(seconds), "gigabytes": (peak - before) / 1e9}
    if not trains and name == "ours":
        torch.save((logits, chosen_blocks(model, tokens)), folder / "ours")
    elif not trains:
        result["quality"] = agreement(model, tokens, logits, *torch.load(folder / "ours"))
    sys.stdout.write(json.dumps(result))


def measure_decoding(name: str, tokens: int) -> None:
    """In the child: print milliseconds a token and the tokens made."""
    torch.set_num_threads(1)
    model = small_model()
    hf.enable(model)
    ids = torch.randint(0, 280, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    milliseconds, made = [], []
    with torch.no_grad():
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        if name == "own":
            hf.disable(model)
        for _ in range(DECODED):
            made.append(int(output.logits[0, -1].argmax()))
            start = time.perf_counter()
            output = model(input_ids=torch.tensor([[made[-1]]]), cache=output.cache)
            milliseconds.append(1000 * (time.perf_counter() - start))
    sys.stdout.write(json.dumps({"milliseconds": median(milliseconds), "made": made}))


def chosen_blocks(model: MiniMaxM3SparseForConditionalGeneration, tokens: int) -> list[torch.Tensor]:
    """What ours chooses in each sparse layer."""
    chosen: list[torch.Tensor] = []

    def attend(*args: Any, **kwargs: Any) -> MSAOutput:
        result = msa_attention(*args, **kwargs)
        chosen.append(result.block_ids)
        return result

    with mock.patch.object(hf, "msa_attention", attend):
        run(model, tokens, trains=False)
    return chosen


def agreement(
    own: MiniMaxM3SparseForConditionalGeneration,
    tokens: int,
    logits: torch.Tensor,
    our_logits: torch.Tensor,
    our_blocks: list[torch.Tensor],
) -> dict[str, Any]:
    """How its own attention differs from ours, by itself and reading the blocks that ours chose."""
    num_choices, num_different, remaining = 0, 0, iter(our_blocks)

    def replay(module: torch.nn.Module, args: Any, chosen: torch.Tensor) -> torch.Tensor:
        nonlocal num_choices, num_different
        ours = next(remaining).transpose(0, 1)[None].long()
        padded = F.pad(chosen, (0, ours.shape[-1] - chosen.shape[-1]), value=-1)
        different = (padded.sort(-1).values != ours.sort(-1).values).any(-1)
        num_choices, num_different = num_choices + different.numel(), num_different + int(different.sum())
        return ours

    for layer in own.model.language_model.layers:
        if layer.self_attn.indexer is not None:
            layer.self_attn.indexer.register_forward_hook(replay)
    replayed = run(own, tokens, trains=False)
    return {
        "largest difference": float(f"{float((logits - our_logits).abs().max()):.1e}"),
        "choices that differ": f"{num_different} of {num_choices}",
        "largest difference, same choices": float(f"{float((replayed - our_logits).abs().max()):.1e}"),
        "spread of logits": round(float(logits.std()), 2),
    }


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
    if sys.argv[1:2] == ["--child"] and sys.argv[3] == "decoding":
        measure_decoding(sys.argv[2], int(sys.argv[4]))
    elif sys.argv[1:2] == ["--child"]:
        measure(sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
    else:
        main(tuple(int(x) for x in sys.argv[1:]) or LENGTHS)
