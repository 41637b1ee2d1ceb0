"""Sparse attention on a CPU against dense causal attention: the whole operation with index, choice and KL.

Run as `python -m tests.bench.msa [TOKENS ...]`; the default lengths take about forty minutes on one core.

- Geometry 16 query heads, 1 KV head, widths 128, blocks of 128, 16 kept, bfloat16, one thread. The peer is
  torch's `scaled_dot_product_attention`, causal, with grouped heads: its CPU flash operator, without index
  or KL.
- Random inputs choose blocks all over the document; structured ones have topics that last for a block, so
  that queries agree on what to read.
- `share of the FLOP ratio`: the speed-up over that which the counts of operations allow (dense 4·H·D a pair
  of tokens; sparse the same over 2,048 keys, and 2·E a pair for the index; the KL's second pass is not
  counted). `share of GEMM rate`: those operations a second over what `torch.matmul` reaches on a square of
  4,096.
- `error`: relative RMS of output and gradients against the reference in float64, at the shortest length of
  more than `top_k` blocks.
- Crossover: where the line through the two measured lengths around it, both axes logarithmic, says that ours
  takes as long as dense attention.
- FlexAttention: compiled, with our choice as its mask, which is not in its time; it computes blocks of 128 by
  128, so that a block is skipped only where no query of a block wants it. It has no backward pass on a CPU.
- Memory: the growth of a fresh process's peak over its inputs, forward only.
"""

import functools
import math
import resource
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from kernels.msa import msa_attention
from tests.bench import report
from tests.kernels.tolerances import relative_rms

HEADS, HEAD_DIM, INDEX_DIM, BLOCK, TOP_K = 16, 128, 128, 128, 16
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
CHECKED, FLEX_LENGTHS = 4096, (8192, 16384)
MEMORY_TOKENS = 262_144
GOALS = {"forward": {16384: 1.2, 32768: 2.5, 65536: 4.0}, "both": {16384: 1.5, 32768: 3.0, 65536: 6.0}}
PASSES = {"forward": "forward", "both": "forward and backward"}


def main(lengths: tuple[int, ...]) -> None:
    """Measure and write `results/msa.json`."""
    torch.set_num_threads(1)
    gemm_rate = measure_gemm_rate()
    rows = []
    for tokens in lengths:
        for kind, make in (("random", random_inputs), ("structured", structured_inputs)):
            inputs = make(tokens)
            for passes in PASSES:
                rows.append(compare(inputs, kind, passes, gemm_rate))
    rows += [crossover(rows, lengths, passes) for passes in PASSES]
    rows += [flex(tokens) for tokens in lengths if tokens in FLEX_LENGTHS]
    rows += [two_threads(tokens) for tokens in lengths if tokens == 8192]
    rows.append(memory(min(MEMORY_TOKENS, 8 * max(lengths))))
    report.write("msa", rows, ["torch"])


def random_inputs(tokens: int) -> list[Tensor]:
    """q, k, v, index_q and index_k."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((HEADS, HEAD_DIM), (1, HEAD_DIM), (1, HEAD_DIM), (1, INDEX_DIM), (INDEX_DIM,))
    return [torch.randn((tokens, *shape), generator=generator).bfloat16() for shape in shapes]


def structured_inputs(tokens: int) -> list[Tensor]:
    """The same with a topic a block, rare and frequent ones, in keys, queries and the index."""
    generator = torch.Generator().manual_seed(1)
    topics = torch.randn(64, HEAD_DIM, generator=generator)
    weights = 1 / torch.arange(1, 65)
    topic_of_block = weights.multinomial(-(-tokens // BLOCK), replacement=True, generator=generator)
    topic = topics[topic_of_block.repeat_interleave(BLOCK)[:tokens]]
    added = (topic[:, None], topic[:, None], 0, topic[:, None], topic)
    return [(x.float() + y).bfloat16() for x, y in zip(random_inputs(tokens), added, strict=True)]


def sparse(inputs: list[Tensor], backward: bool) -> None:
    """One call of ours."""
    leaves = [x.detach().requires_grad_(backward) for x in inputs]
    edges = torch.tensor([0, len(inputs[0])], dtype=torch.int32)
    result = msa_attention(*leaves, edges, block_size=BLOCK, top_k=TOP_K, impl="cpu")
    if backward:
        torch.autograd.backward((result.out, result.index_kl), (result.out.detach(), torch.ones(())))


def dense(inputs: list[Tensor], backward: bool) -> None:
    """One call of torch's, on heads laid out as it wants them."""
    q, k, v = (x.transpose(0, 1)[None].contiguous().requires_grad_(backward) for x in inputs[:3])
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    if backward:
        out.backward(out.detach())


def compare(inputs: list[Tensor], kind: str, passes: str, gemm_rate: float) -> dict[str, Any]:
    """Ours and dense attention in turn."""
    tokens, backward = len(inputs[0]), passes == "both"
    contestants: dict[str, Callable[[], None]] = {
        "ours": functools.partial(sparse, inputs, backward),
        "dense": functools.partial(dense, inputs, backward),
    }
    seconds = report.in_turn(contestants, rounds=5 if tokens <= 8192 else 3 if tokens <= 16384 else 1)
    ours, peer = median(seconds["ours"]), median(seconds["dense"])
    of_dense, of_ours = operations(tokens)
    quality = {
        "rounds": len(seconds["ours"]),
        "FLOP ratio": round(of_dense / of_ours, 2),
        "share of the FLOP ratio": round(peer / ours / (of_dense / of_ours), 2),
    }
    if tokens == CHECKED:
        quality |= {f"error of {name}": error for name, error in errors(inputs).items()}
    if not backward:
        quality["share of GEMM rate"] = round(of_ours / ours / gemm_rate, 2)
        quality["share of GEMM rate, dense"] = round(of_dense / peer / gemm_rate, 2)
    return report.row(
        f"{tokens:,} tokens, {kind}, {PASSES[passes]}",
        ours,
        "s",
        peer=peer,
        peer_name="torch SDPA",
        better="lower",
        goal_ratio=GOALS[passes].get(tokens),
        quality=quality,
    )


def errors(inputs: list[Tensor]) -> dict[str, float]:
    """Relative RMS errors of the output and all gradients."""
    grad_out = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(2)).bfloat16()
    edges = torch.tensor([0, len(inputs[0])], dtype=torch.int32)
    results = {}
    for impl, dtype in (("cpu", torch.bfloat16), ("reference", torch.float64)):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
        chosen = results["cpu"][0].block_ids if results else None  # ties of bfloat16 scores are no errors
        made = msa_attention(*leaves, edges, block_size=BLOCK, top_k=TOP_K, block_ids=chosen, impl=impl)
        torch.autograd.backward(
            (made.out, made.index_kl), (grad_out.to(dtype), torch.ones((), dtype=made.index_kl.dtype))
        )
        results[impl] = made, [leaf.grad for leaf in leaves]
    (ours, our_grads), (reference, grads) = results["cpu"], results["reference"]
    pairs = zip(
        ("out", "dq", "dk", "dv", "dindex_q", "dindex_k"),
        (ours.out, *our_grads),
        (reference.out, *grads),
        strict=True,
    )
    return {name: float(f"{relative_rms(actual, expected):.1e}") for name, actual, expected in pairs}


def crossover(rows: list[dict[str, Any]], lengths: tuple[int, ...], passes: str) -> dict[str, Any]:
    """The length from which ours is faster, on random inputs."""
    named = {row["work"]: row["ratio"] for row in rows}
    ratios = [named[f"{tokens:,} tokens, random, {PASSES[passes]}"] for tokens in lengths]
    at = next((i for i in range(len(ratios)) if min(ratios[i:]) >= 1), None)  # faster from here on
    value = float(lengths[0] if at == 0 else lengths[-1])
    if at:
        low, high = math.log(ratios[at - 1]), math.log(ratios[at])
        value = lengths[at - 1] * (lengths[at] / lengths[at - 1]) ** (-low / (high - low))
    found = (
        "between measured lengths" if at else "faster at all measured" if at == 0 else "slower at the longest"
    )
    return report.row(
        f"crossover with dense, random, {PASSES[passes]}",
        round(value),
        "tokens",
        better="lower",
        quality={"found": found},
    )


def flex(tokens: int) -> dict[str, Any]:
    """Ours, index and KL included, beside FlexAttention over blocks that are already chosen."""
    inputs = random_inputs(tokens)
    edges = torch.tensor([0, tokens], dtype=torch.int32)
    result = msa_attention(*inputs, edges, block_size=BLOCK, top_k=TOP_K, impl="cpu")
    num_blocks = -(-tokens // BLOCK)
    ids_TK = result.block_ids[:, 0].long()
    chosen_TN = torch.zeros(tokens, num_blocks + 1, dtype=torch.bool)
    chosen_TN.scatter_(1, torch.where(ids_TK < 0, num_blocks, ids_TK), True)

    def is_read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & chosen_TN[query, key // BLOCK]

    mask = create_block_mask(is_read, 1, 1, tokens, tokens, device="cpu", BLOCK_SIZE=BLOCK)
    q, k, v = (x.transpose(0, 1)[None].contiguous() for x in inputs[:3])
    compiled = torch.compile(flex_attention)
    out = compiled(q, k, v, block_mask=mask, enable_gqa=True)[0].transpose(0, 1)
    seconds = report.in_turn(
        {
            "ours": lambda: sparse(inputs, False),
            "flex": lambda: compiled(q, k, v, block_mask=mask, enable_gqa=True),
        },
        rounds=3,
    )
    return report.row(
        f"{tokens:,} tokens, random, forward, against FlexAttention",
        median(seconds["ours"]),
        "s",
        peer=median(seconds["flex"]),
        peer_name="torch FlexAttention",
        better="lower",
        quality={"relative RMS difference of outputs": float(f"{relative_rms(result.out, out):.1e}")},
    )


def operations(tokens: int) -> tuple[float, float]:
    """Floating-point operations of a dense and of a sparse forward pass, causal."""
    pairs = tokens * (tokens + 1) / 2
    read = sum(min(position + 1, TOP_K * BLOCK) for position in range(tokens))
    per_pair = 4 * HEADS * HEAD_DIM
    return per_pair * pairs, per_pair * read + 2 * INDEX_DIM * pairs


def measure_gemm_rate() -> float:
    """Operations a second of a large product of bfloat16 in one thread."""
    size = 4096
    a, b = (torch.randn(size, size).bfloat16() for _ in range(2))
    return 2 * size**3 / median(report.in_turn({"gemm": lambda: a @ b}, rounds=3)["gemm"])


def two_threads(tokens: int) -> dict[str, Any]:
    """Ours with two threads beside ours with one."""
    inputs = random_inputs(tokens)

    def with_threads(count: int) -> None:
        torch.set_num_threads(count)
        sparse(inputs, True)

    seconds = report.in_turn({str(count): functools.partial(with_threads, count) for count in (1, 2)})
    torch.set_num_threads(1)
    return report.row(
        f"{tokens:,} tokens, random, forward and backward, two threads",
        median(seconds["2"]),
        "s",
        peer=median(seconds["1"]),
        peer_name="one thread",
        better="lower",
    )


def memory(tokens: int) -> dict[str, Any]:
    """Peak memory of a forward pass above its inputs."""
    command = [sys.executable, "-m", "tests.bench.msa", "--memory", str(tokens)]
    grown = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    goal = 4.0 if tokens == MEMORY_TOKENS else None
    return report.row(
        f"{tokens:,} tokens, random, forward, peak memory above the inputs",
        grown,
        "GB",
        better="lower",
        goal=goal,
    )


def print_memory(tokens: int) -> None:
    """In a process of its own: growth of the peak in GB, the kernels having been loaded before."""
    torch.set_num_threads(1)
    sparse(random_inputs(1024), False)
    inputs = random_inputs(tokens)
    before = resident_bytes()
    sparse(inputs, False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(f"{(peak - before) / 1e9}\n")


def resident_bytes() -> int:
    """What this process holds now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print_memory(int(sys.argv[2]))
    else:
        main(tuple(int(x) for x in sys.argv[1:]) or LENGTHS)
