"""Sparse attention on a GPU against dense causal attention, with correctness and the machine's roofline.

Run as `python -m tests.bench.msa_gpu [TOKENS ...]` on a machine with CUDA; the default takes under 5 minutes.

- Geometry 64 query heads, 4 KV heads, widths 128, blocks of 128, 16 kept, bfloat16, random inputs. The peer
  is torch's `scaled_dot_product_attention`, causal, grouped heads, without index or KL. Where dense attention
  would take too long it is left out, and the row has no peer.
- `TFLOP/s` counts what the mathematics needs, nothing that is computed twice: forward two products of reads
  x D a head, one more for the KL's teacher, and the index's score of all earlier tokens; backward five, and
  one again for the teacher. Dense: two and five over all earlier tokens.
- `roofline ms`: the longer of those operations at the rate of a large product and the bytes of memory at the
  rate of a large copy, both measured here. The bytes of a loop order: query-major, each query's blocks of
  keys and values, as if no cache held them; block-major, the queries once for each block they read, and the
  partial outputs, written and read. Less time than that: the cache helped. Backward: operations alone.
- `backward` is the whole step less its forward pass.
"""

import functools
import sys
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.msa import msa_attention, msa_decode
from kernels.msa import triton as msa
from tests.bench import report
from tests.kernels.tolerances import RELATIVE_RMS, relative_rms

LENGTHS = (8192, 32768, 131_072, 524_288, 1_048_576)
DENSE_TOKENS = {"forward": 524_288, "backward": 131_072}
"""Above this the dense peer takes tens of seconds."""
CACHE_TOKENS = 1 << 20
"""Of all sequences together in decoding."""


class Geometry(NamedTuple):
    """Sizes of a benchmark."""

    heads: int = 64
    groups: int = 4
    head_dim: int = 128
    index_dim: int = 128
    block_size: int = 128
    top_k: int = 16
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"
    product_size: int = 8192
    checked_tokens: int = 2048
    cache_tokens: int = CACHE_TOKENS
    rounds: int = 5


class Machine(NamedTuple):
    """Measured peaks."""

    flops: float
    bytes: float


def main(lengths: tuple[int, ...]) -> None:
    """Measure and write `results/msa_gpu.json`."""
    if not torch.cuda.is_available():
        sys.exit("bench-gpu: no CUDA device here")
    report.write("msa_gpu", measure(lengths, Geometry()), ["torch", "triton"])


def measure(lengths: tuple[int, ...], geometry: Geometry) -> list[dict[str, Any]]:
    """All rows: the machine, correctness, then each length."""
    machine = measure_machine(geometry)
    name = torch.cuda.get_device_name() if geometry.device == "cuda" else geometry.device
    rows = [
        report.row(f"{name}: square product of {geometry.product_size:,}", machine.flops / 1e12, "TFLOP/s"),
        report.row(f"{name}: copy", machine.bytes / 1e9, "GB/s"),
    ]
    for phase, loop_order in (("sparse", "queries"), ("sparse", "blocks"), ("dense", None)):
        rows.append(check(geometry, phase, loop_order))
    for tokens in lengths:
        for step in (prefill, decode):
            try:
                rows += step(tokens, geometry, machine)
            except torch.OutOfMemoryError:
                rows.append({**report.row(f"{tokens:,} tokens, {step.__name__}", 0, "ms"), "ours": None})
                rows[-1]["quality"] = {"left out": "out of memory"}
                torch.cuda.empty_cache()
    return rows


def measure_machine(geometry: Geometry) -> Machine:
    """Rates of a large product and of a large copy, read and written bytes counted."""
    size = geometry.product_size
    a, b = (torch.randn(size, size, device=geometry.device).to(geometry.dtype) for _ in range(2))
    source = torch.empty(8 * size * size, dtype=torch.uint8, device=geometry.device)
    target = torch.empty_like(source)
    contestants = {"product": lambda: a @ b, "copy": lambda: target.copy_(source)}
    seconds = timed(contestants, geometry, geometry.rounds)
    return Machine(2 * size**3 / median(seconds["product"]), 2 * source.nbytes / median(seconds["copy"]))


def timed(
    contestants: dict[str, Callable[[], Any]], geometry: Geometry, rounds: int
) -> dict[str, list[float]]:
    """Wall seconds in turn, each until the device is done."""

    def waited(contestant: Callable[[], Any]) -> None:
        contestant()
        if geometry.device == "cuda":
            torch.cuda.synchronize()

    return report.in_turn({name: functools.partial(waited, x) for name, x in contestants.items()}, rounds)


def random_inputs(tokens: int, geometry: Geometry) -> list[Tensor]:
    """q, k, v, index_q and index_k."""
    g = geometry
    generator = torch.Generator(g.device).manual_seed(0)
    shapes = (
        (g.heads, g.head_dim),
        (g.groups, g.head_dim),
        (g.groups, g.head_dim),
        (g.groups, g.index_dim),
        (g.index_dim,),
    )
    return [
        torch.randn((tokens, *shape), generator=generator, dtype=g.dtype, device=g.device).requires_grad_()
        for shape in shapes
    ]


def edges(tokens: int, geometry: Geometry) -> Tensor:
    return torch.tensor([0, tokens], dtype=torch.int32, device=geometry.device)


def sparse(inputs: list[Tensor], geometry: Geometry, loop_order: Any, backward: bool) -> None:
    """One call of ours; the gradient of the output is the output, which takes no room."""
    cu = edges(len(inputs[0]), geometry)
    with torch.set_grad_enabled(backward):
        result = msa.msa_attention(
            *inputs,
            cu,
            cu_seqlens_k=cu,
            block_size=geometry.block_size,
            top_k=geometry.top_k,
            phase="sparse",
            block_ids=None,
            loop_order=loop_order,
        )
    if backward:
        outputs = (result.out, result.index_kl)
        torch.autograd.grad(outputs, inputs, (result.out.detach(), torch.ones_like(result.index_kl)))


def dense(inputs: list[Tensor], backward: bool) -> None:
    """One call of torch's."""
    q, k, v = (x.transpose(0, 1)[None] for x in inputs[:3])
    with torch.set_grad_enabled(backward):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    if backward:
        torch.autograd.grad(out, inputs[:3], out.detach())


def check(geometry: Geometry, phase: str, loop_order: Any) -> dict[str, Any]:
    """Largest error of outputs and gradients against the reference in float64 reading the same blocks."""
    small = geometry._replace(heads=geometry.heads // geometry.groups, groups=1)
    inputs, cu = random_inputs(geometry.checked_tokens, small), edges(geometry.checked_tokens, small)
    options: dict[str, Any] = {
        "block_size": small.block_size,
        "top_k": max(2, small.top_k // 4),
        "phase": phase,
    }
    ours = msa.msa_attention(*inputs, cu, cu_seqlens_k=cu, block_ids=None, loop_order=loop_order, **options)
    if phase == "sparse":
        options["block_ids"] = ours.block_ids
    wide = [x.detach().double().requires_grad_() for x in inputs]
    theirs = msa_attention(*wide, cu, impl="reference", **options)
    errors = {"out": relative_rms(ours.out, theirs.out), "lse": relative_rms(ours.lse, theirs.lse)}
    grads = [
        torch.autograd.grad(result.out.double().square().sum() + result.index_kl.double() * len(cu), leaves)
        for result, leaves in ((ours, inputs), (theirs, wide))
    ]
    names = ("q", "k", "v", "index_q", "index_k")
    errors |= {name: relative_rms(a, b) for name, a, b in zip(names, *grads, strict=True)}
    return report.row(
        f"{geometry.checked_tokens:,} tokens, {phase}, {loop_order or 'queries'}: largest relative RMS error",
        max(errors.values()),
        "",
        better="lower",
        goal=RELATIVE_RMS[geometry.dtype],
        quality={name: float(f"{error:.2g}") for name, error in errors.items()},
    )


def prefill(tokens: int, geometry: Geometry, machine: Machine) -> list[dict[str, Any]]:
    """Forward and backward of both loop orders beside dense attention."""
    inputs = random_inputs(tokens, geometry)
    rounds = geometry.rounds if tokens <= 32768 else 3 if tokens <= 131_072 else 1
    contestants: dict[str, Callable[[], None]] = {}
    for order in ("queries", "blocks"):
        for name, backward in (("forward", False), ("both", True)):
            contestants[f"{order} {name}"] = functools.partial(sparse, inputs, geometry, order, backward)
    if tokens <= DENSE_TOKENS["forward"]:
        contestants["dense forward"] = functools.partial(dense, inputs, False)
    if tokens <= DENSE_TOKENS["backward"]:
        contestants["dense both"] = functools.partial(dense, inputs, True)
    seconds = {name: median(x) for name, x in timed(contestants, geometry, rounds).items()}
    for name in ("queries", "blocks", "dense"):
        if f"{name} both" in seconds:
            seconds[f"{name} backward"] = max(1e-9, seconds[f"{name} both"] - seconds[f"{name} forward"])
    rows = []
    for step in ("forward", "backward"):
        for order in ("queries", "blocks"):
            rows.append(prefill_row(tokens, geometry, machine, step, order, seconds))
    return rows


def prefill_row(
    tokens: int, geometry: Geometry, machine: Machine, step: str, order: str, seconds: dict[str, float]
) -> dict[str, Any]:
    """One loop order beside dense attention and the roofline."""
    ours, peer = seconds[f"{order} {step}"], seconds.get(f"dense {step}")
    of_ours, of_dense = operations(tokens, geometry, step)
    moved = bytes_moved(tokens, geometry, order)
    quality: dict[str, Any] = {"TFLOP/s": round(of_ours / ours / 1e12, 1)}
    if peer is not None:
        quality["TFLOP/s, dense"] = round(of_dense / peer / 1e12, 1)
    quality["FLOP ratio"] = round(of_dense / of_ours, 2)
    if step == "forward":
        quality["FLOP/byte"] = round(of_ours / moved, 1)
        quality["roofline ms"] = round(1e3 * max(of_ours / machine.flops, moved / machine.bytes), 3)
    else:
        quality["roofline ms"] = round(1e3 * of_ours / machine.flops, 3)
    return report.row(
        f"{tokens:,} tokens, {step}, by {order}",
        1e3 * ours,
        "ms",
        peer=None if peer is None else 1e3 * peer,
        peer_name="torch SDPA",
        better="lower",
        quality=quality,
    )


def reads(tokens: int, geometry: Geometry) -> float:
    """Pairs of query and key attended to, of one head."""
    budget = geometry.top_k * geometry.block_size
    short = min(tokens, budget)
    return short * (short + 1) / 2 + (tokens - short) * budget


def operations(tokens: int, geometry: Geometry, step: str) -> tuple[float, float]:
    """Floating-point operations of ours and of dense attention."""
    product = 2 * geometry.heads * geometry.head_dim
    index_product = 2 * geometry.groups * geometry.index_dim
    pairs, read = tokens * (tokens + 1) / 2, reads(tokens, geometry)
    if step == "forward":
        return 3 * product * read + index_product * (pairs + read), 2 * product * pairs
    return 6 * product * read + 3 * index_product * read, 5 * product * pairs


def bytes_moved(tokens: int, geometry: Geometry, order: str) -> float:
    """Of a forward pass's attention."""
    g, size = geometry, geometry.dtype.itemsize
    rows, keys = tokens * g.heads * g.head_dim * size, tokens * g.groups * g.head_dim * size
    if order == "queries":
        return 2 * rows + 2 * g.groups * g.head_dim * size * reads(tokens, g)
    visits = reads(tokens, g) / tokens / g.block_size
    return 2 * keys + rows * (3 * visits + 1)


def decode(tokens: int, geometry: Geometry, machine: Machine) -> list[dict[str, Any]]:
    """One new token of each sequence, beside dense attention over the same cache."""
    g = geometry
    sequences = max(1, g.cache_tokens // tokens)
    generator = torch.Generator(g.device).manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=g.dtype, device=g.device)

    q, index_q = random(sequences, g.heads, g.head_dim), random(sequences, g.groups, g.index_dim)
    k, v = (random(sequences, tokens, g.groups, g.head_dim) for _ in range(2))
    index_k = random(sequences, tokens, g.index_dim)
    lengths = torch.full((sequences,), tokens, dtype=torch.int32, device=g.device)
    sizes = {"block_size": g.block_size, "top_k": g.top_k}
    heads_first = (q[:, :, None], k.transpose(1, 2), v.transpose(1, 2))
    contestants = {
        "ours": lambda: msa_decode(q, k, v, index_q, index_k, lengths, **sizes),
        "dense": lambda: F.scaled_dot_product_attention(*heads_first, enable_gqa=True),
    }
    seconds = {name: median(x) for name, x in timed(contestants, g, g.rounds).items()}
    read = min(tokens, g.top_k * g.block_size)
    moved = sequences * g.dtype.itemsize * (tokens * g.index_dim + 2 * read * g.groups * g.head_dim)
    return [
        report.row(
            f"{tokens:,} tokens, decoding {sequences} sequences",
            1e3 * seconds["ours"],
            "ms",
            peer=1e3 * seconds["dense"],
            peer_name="torch SDPA",
            better="lower",
            quality={
                "GB/s": round(moved / seconds["ours"] / 1e9, 1),
                "roofline ms": round(1e3 * moved / machine.bytes, 4),
            },
        )
    ]


if __name__ == "__main__":
    main(tuple(int(x) for x in sys.argv[1:]) or LENGTHS)
