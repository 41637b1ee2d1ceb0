"""MSA on a CPU: builds `cpu.c` with the system's compiler on first use and calls it, autograd included.

Owns the build, its cache, the tables of tiles and blocks, and the threads. Computes in bfloat16 where the
machine multiplies it (AMX tiles, AVX-512 BF16), else in float32, to which float16 is always widened. Letters
as in reference.py.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.msa.reference import MSAOutput

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("cpu.c")
TILE_BYTES = 1 << 20
"""Size of a tile's float32 accumulators: half of a common level-2 cache."""
MAX_TILE_QUERIES = 256

_COUNTS = (
    """heads groups head_dim index_dim block_size top_k dense choose num_tiles num_blocks max_tile max_seen"""
)
_SCALES = "scale index_scale kl_weight"
_POINTERS = """tiles blocks q k v index_q index_k k_columns v_columns k_rows v_rows index_columns index_rows
out lse kl index_lse block_ids grad_out delta q_turned grad_out_turned grad_q grad_k grad_v grad_index_q
grad_index_k reader_edges readers"""


class _Problem(ctypes.Structure):
    """`Problem` of cpu.c, in its order."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in _COUNTS.split()]
        + [(name, ctypes.c_double) for name in _SCALES.split()]
        + [(name, ctypes.c_void_p) for name in _POINTERS.split()]
    )


@functools.cache
def library(bf16: bool) -> ctypes.CDLL | None:
    """Build (once a machine) and load the kernels for bfloat16 or float32; None where that cannot be done.

    The built file lies in `$XDG_CACHE_HOME/omniloom/kernels`, named by what it was made of and for which
    processor.
    """
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        logger.warning("no C compiler found (CC, cc, gcc, clang): MSA runs on plain torch, which is slower")
        return None
    tuning = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    flags = ["-O3", tuning, "-std=gnu11", "-Wno-psabi", "-fPIC", "-shared", f"-DBF16={int(bf16)}"]
    made_of = SOURCE.read_bytes() + "\n".join([compiler, *flags, _processor()]).encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omniloom" / "kernels"
    built = folder / f"msa-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "made.so"
            command = [compiler, *flags, "-o", str(made), str(SOURCE), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                level = (
                    logging.DEBUG if bf16 else logging.WARNING
                )  # a machine without such products widens bfloat16: no news
                logger.log(level, "MSA's C file did not build: %s\n%s", " ".join(command), done.stderr)
                return None
            made.replace(built)
    loaded = ctypes.CDLL(str(built))
    return None if loaded.msa_start() else loaded


def _processor() -> str:
    """What `-march=native` depends on: a cache folder may be shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


class _Shape(NamedTuple):
    """Counts and tables of one call."""

    fields: dict[str, int]
    tiles: Tensor
    blocks: Tensor
    first_block: Tensor
    """Per query: the number of its document's first block."""
    starts: Tensor
    """Per block: the first query that may read it, and the end of its document's queries."""


def msa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    cu_seqlens: Tensor,
    *,
    cu_seqlens_k: Tensor,
    block_size: int,
    top_k: int,
    phase: str,
    block_ids: Tensor | None,
) -> MSAOutput:
    """Attend with the C kernels; the same bits for any number of threads."""
    dtype = q.dtype
    if dtype == torch.float64:
        raise ValueError("q: dtype torch.float64, which impl 'cpu' does not compute; use impl='reference'")
    if dtype != torch.bfloat16 or library(bf16=True) is None:
        q, k, v, index_q, index_k = (x.float() for x in (q, k, v, index_q, index_k))
    out, index_kl, chosen, lse = _Attention.apply(
        q, k, v, index_q, index_k, cu_seqlens, cu_seqlens_k, block_size, top_k, phase == "dense", block_ids
    )
    return MSAOutput(out.to(dtype), index_kl, chosen, lse)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        index_q: Tensor,
        index_k: Tensor,
        cu_seqlens: Tensor,
        cu_seqlens_k: Tensor,
        block_size: int,
        top_k: int,
        dense: bool,
        block_ids: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        inputs = {
            name: x.contiguous()
            for name, x in (("q", q), ("k", k), ("v", v), ("index_q", index_q), ("index_k", index_k))
        }
        shape = _shape(inputs, cu_seqlens, cu_seqlens_k, block_size, top_k, dense)
        num_tokens, num_groups = index_q.shape[:2]
        chosen_TRK = (
            block_ids if block_ids is not None else _empty(q, torch.int32, num_tokens, num_groups, top_k)
        )
        results = {
            "out": torch.empty_like(inputs["q"]),
            "lse": _empty(q, torch.float32, *q.shape[:2]),
            "kl": _empty(q, torch.float32, num_tokens, num_groups),
            "index_lse": _empty(q, torch.float32, num_tokens, num_groups),
            "block_ids": chosen_TRK.contiguous(),
        }
        panels = _panels(shape, inputs, "k_columns v_rows index_columns")
        _run(shape, ("msa_pack", "msa_forward"), {**inputs, **results, **panels}, choose=block_ids is None)
        ctx.shape, ctx.names = shape, [*inputs, "out", "lse", "index_lse", "block_ids"]
        ctx.save_for_backward(*({**inputs, **results}[name] for name in ctx.names))
        ctx.set_materialize_grads(False)
        lse_TH = results["lse"] * 0.6931471805599453
        ctx.mark_non_differentiable(results["block_ids"], lse_TH)
        return results["out"], _mean(results["kl"]), results["block_ids"], lse_TH

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_kl: Tensor | None, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        shape, saved = ctx.shape, dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        q, num_groups = saved["q"], saved["index_q"].shape[1]
        attention = grad_out is not None and any(ctx.needs_input_grad[:3])
        index = grad_kl is not None and any(ctx.needs_input_grad[3:5])
        names = (["q", "k", "v"] if attention else []) + (["index_q", "index_k"] if index else [])
        grads = {f"grad_{name}": torch.empty_like(saved[name]) for name in names}
        tensors = {**saved, **grads, "delta": torch.empty_like(saved["lse"])}
        needed = "k_columns"
        if attention and grad_out is not None:
            grad_out = grad_out.contiguous()
            turned = {"q_turned": q, "grad_out_turned": grad_out}
            tensors |= {
                name: x.unflatten(1, (num_groups, -1)).transpose(-1, -2).contiguous()
                for name, x in turned.items()
            }
            tensors["grad_out"], needed = grad_out, needed + " v_columns k_rows"
        kl_weight = 0.0 if grad_kl is None or not index else float(grad_kl) / saved["index_lse"].numel()
        if kl_weight:
            needed += " index_columns index_rows"
        elif index:
            for name in ("grad_index_q", "grad_index_k"):
                grads[name].zero_()
        tensors |= _panels(shape, saved, needed) | _readers(shape, saved["block_ids"])
        calls = ("msa_pack", "msa_backward_queries", "msa_backward_keys")
        _run(shape, calls, tensors, kl_weight=kl_weight)
        return *(grads.get(f"grad_{name}") for name in ctx.names[:5]), *[None] * 6


def _mean(x: Tensor) -> Tensor:
    """In pieces so small that torch sums each in one thread, and so in one order."""
    sums = torch.stack([piece.sum() for piece in x.double().flatten().split(1 << 14)])
    return (sums.sum() / x.numel()).float()


def _empty(like: Tensor, dtype: torch.dtype, *size: int) -> Tensor:
    return torch.empty(size, dtype=dtype, device=like.device)


def _shape(
    inputs: dict[str, Tensor],
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor,
    block_size: int,
    top_k: int,
    dense: bool,
) -> _Shape:
    """Cut documents into blocks of keys and their queries into tiles."""
    (_, num_heads, head_dim), num_groups = inputs["q"].shape, inputs["k"].shape[1]
    row_bytes = num_heads // num_groups * _padded(head_dim) * 4
    most = max(16, min(MAX_TILE_QUERIES, TILE_BYTES // row_bytes))
    query_edges, key_edges = cu_seqlens.tolist(), cu_seqlens_k.tolist()
    tiles, counts = [], []
    blocks, starts = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for first, end, first_key, end_key in zip(
        query_edges[:-1], query_edges[1:], key_edges[:-1], key_edges[1:], strict=True
    ):
        shift = end_key - first_key - end  # position of a query = its number + shift
        tiles += [(at, min(most, end - at), shift, len(blocks)) for at in range(first, end, most)]
        counts.append(len(blocks))
        for at in range(0, end_key - first_key, block_size):
            blocks.append((first_key + at, min(block_size, end_key - first_key - at), at, shift))
            starts.append((max(first, at - shift), end))
    tile_table = torch.tensor(tiles, dtype=torch.int64).view(-1, 4)
    fields = {
        "heads": num_heads // num_groups,
        "groups": num_groups,
        "head_dim": head_dim,
        "index_dim": inputs["index_k"].shape[1],
        "block_size": block_size,
        "top_k": top_k,
        "dense": int(dense),
        "num_tiles": len(tiles),
        "num_blocks": len(blocks),
        "max_tile": max(tile[1] for tile in tiles),
        "max_seen": max((tile[0] + tile[1] - 1 + tile[2]) // block_size + 1 for tile in tiles),
    }
    first_block = torch.tensor(counts).repeat_interleave(cu_seqlens.diff().long())
    return _Shape(
        fields,
        tile_table,
        torch.tensor(blocks, dtype=torch.int64),
        first_block,
        torch.tensor(starts, dtype=torch.int64),
    )


def _padded(width: int) -> int:
    return -(-width // 32) * 32


def _panels(shape: _Shape, inputs: dict[str, Tensor], names: str) -> dict[str, Tensor]:
    """Room for the keys and values as right-hand sides of products, as much as they take themselves."""
    counts = shape.fields
    size = counts["num_blocks"] * _padded(counts["block_size"])
    widths = {"index": _padded(counts["index_dim"])}
    main = counts["groups"] * _padded(counts["head_dim"])
    return {
        name: inputs["q"].new_empty(size * widths.get(name.split("_")[0], main)) for name in names.split()
    }


def _readers(shape: _Shape, block_ids_TRK: Tensor) -> dict[str, Tensor]:
    """Turn the choice round: for each group and block the queries that read it."""
    num_tokens, num_groups, _ = block_ids_TRK.shape
    num_blocks = shape.fields["num_blocks"]
    if shape.fields["dense"]:
        edges = shape.starts.expand(num_groups, -1, -1).contiguous()
        return {"readers": torch.arange(num_tokens, dtype=torch.int32), "reader_edges": edges}
    number_RTK = block_ids_TRK.transpose(0, 1) + shape.first_block[:, None]
    number_RTK = number_RTK + torch.arange(num_groups)[:, None, None] * num_blocks
    chosen_RTK = block_ids_TRK.transpose(0, 1) >= 0
    query_RTK = torch.arange(num_tokens, dtype=torch.int32)[:, None].expand_as(chosen_RTK)
    numbers, order = number_RTK[chosen_RTK].sort(stable=True)
    ends = torch.bincount(numbers, minlength=num_groups * num_blocks).cumsum(0)
    edges = torch.stack((torch.cat((ends.new_zeros(1), ends[:-1])), ends), dim=-1)
    return {"readers": query_RTK[chosen_RTK][order].contiguous(), "reader_edges": edges.contiguous()}


def _run(
    shape: _Shape,
    calls: tuple[str, ...],
    tensors: dict[str, Tensor],
    choose: bool = False,
    kl_weight: float = 0.0,
) -> None:
    """Make the calls one after the other, each with torch's number of threads, which share its items."""
    counts = shape.fields
    scales = {
        "scale": counts["head_dim"] ** -0.5,
        "index_scale": counts["index_dim"] ** -0.5,
        "kl_weight": kl_weight,
    }
    tables = {"tiles": shape.tiles, "blocks": shape.blocks}
    problem = _Problem(**counts, choose=int(choose), **scales)
    for name, tensor in {**tables, **tensors}.items():
        assert tensor.is_contiguous(), name
        setattr(problem, name, tensor.data_ptr())
    loaded = library(bf16=tensors["q"].dtype == torch.bfloat16)
    assert loaded is not None
    for call in calls:
        work, claimed = getattr(loaded, call), ctypes.c_int64(0)
        arguments = (ctypes.byref(problem), ctypes.byref(claimed))
        helpers = [threading.Thread(target=work, args=arguments) for _ in range(torch.get_num_threads() - 1)]
        for helper in helpers:
            helper.start()
        work(*arguments)
        for helper in helpers:
            helper.join()
