"""Compiles every Triton kernel of MSA ahead of time, without a GPU: registers, spills and shared memory.

Run as `python -m tests.bench.msa_compile [TARGET ...]`, targets being 80, 90, 100 (CUDA) and gfx942; all by
default, in a process without TRITON_INTERPRET. The calls are those that `msa_attention` makes on bfloat16
tensors of the published geometry, recorded instead of launched.

- `ours` is the number of registers of a thread, `goal` the most there are. CUDA: `stack` bytes of a thread
  hold what found no register; 0 is no spill. AMD: registers spilled, of vectors and of scalars.
- The compiler may use more registers than the goal's half and so run fewer warps; that is not judged here.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.msa import triton as msa
from kernels.msa import triton_tiles
from tests.bench import report

TARGETS = {
    "80": GPUTarget("cuda", 80, 32),
    "90": GPUTarget("cuda", 90, 32),
    "100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
MAX_REGISTERS = {"cuda": 255, "hip": 512}
SHARED_BYTES = {"80": 166_912, "90": 232_448, "100": 232_448, "gfx942": 65_536}
"""That one block of threads may have."""
PUBLISHED = {"heads": 64, "groups": 4, "head_dim": 128, "index_dim": 128, "block_size": 128, "top_k": 16}
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int32: "i32"}
Launch = tuple[Any, dict[str, Any], int, int]


def main(targets: list[str]) -> None:
    """Compile for each target and write `results/msa_compile.json`."""
    assert not knobs.runtime.interpret, "TRITON_INTERPRET is set: nothing is compiled"
    launches = list(recorded(**PUBLISHED))
    rows = [measure(name, work, launch) for name in targets for work, launch in launches]
    report.write("msa_compile", rows, ["triton", "torch"])


def recorded(
    *,
    heads: int,
    groups: int,
    head_dim: int,
    index_dim: int,
    block_size: int,
    top_k: int,
    dtype: torch.dtype = torch.bfloat16,
    num_tokens: int = 512,
) -> Iterator[tuple[str, Launch]]:
    """Each kernel once with the arguments that a forward and backward pass launches it with."""
    launches: list[Launch] = []

    def record(
        kernel: Any, grid: tuple[int, ...], *, num_warps: int = 4, num_stages: int = 2, **arguments: Any
    ) -> None:
        launches.append((kernel, arguments, num_warps, num_stages))

    shapes = ((heads, head_dim), (groups, head_dim), (groups, head_dim), (groups, index_dim), (index_dim,))
    cu = torch.tensor([0, num_tokens], dtype=torch.int32)
    seen = set()
    with mock.patch.object(triton_tiles, "launch", record):
        for phase, loop_order in (("sparse", "queries"), ("sparse", "blocks"), ("dense", None)):
            inputs = [torch.zeros(num_tokens, *shape, dtype=dtype).requires_grad_() for shape in shapes]
            result = msa.msa_attention(
                *inputs,
                cu,
                cu_seqlens_k=cu,
                block_size=block_size,
                top_k=top_k,
                phase=phase,
                block_ids=None,
                loop_order=loop_order,  # type: ignore[arg-type] # from a tuple of strings
            )
            torch.autograd.grad(result.out.float().sum() + result.index_kl, inputs)
            for launch in launches:
                kernel, arguments, *_ = launch
                by_phase = f", {phase}" if "DENSE" in arguments else ""
                work = kernel.fn.__name__.removeprefix("_").removesuffix("_kernel") + by_phase
                if work not in seen:
                    seen.add(work)
                    yield work, launch
            launches.clear()


def measure(target_name: str, work: str, launch: Launch) -> dict[str, Any]:
    """Compile one kernel: its row."""
    target = TARGETS[target_name]
    used = resources(target, launch)
    limit = SHARED_BYTES[target_name]
    quality = {key: value for key, value in used.items() if key != "registers"}
    quality["fits"] = used["shared bytes"] <= limit
    return report.row(
        f"{target_name}: {work}",
        used["registers"],
        "registers",
        better="lower",
        goal=MAX_REGISTERS[target.backend],
        quality=quality,
    )


def resources(target: GPUTarget, launch: Launch) -> dict[str, int]:
    """What the compiled kernel takes of a multiprocessor."""
    kernel, arguments, num_warps, num_stages = launch
    if target.backend == "hip":
        num_warps //= 2  # as `launch` does
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, Tensor):
            # A launch finds that torch's memory is aligned, and compiles for that.
            signature[parameter.name] = "*" + TYPES.get(value.dtype, "i64")
            attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    compiled = triton.compile(source, target=target, options=options)
    used = {"warps": num_warps, "shared bytes": compiled.metadata.shared}
    if target.backend == "hip":
        listing = compiled.asm["amdgcn"]
        names = {
            "registers": "vgpr_count",
            "vector spills": "vgpr_spill_count",
            "scalar spills": "sgpr_spill_count",
        }
        return used | {name: int(re.findall(rf"\.{key}:\s*(\d+)", listing)[0]) for name, key in names.items()}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK):(\d+)", shown))
    return used | {"registers": int(found["REG"]), "stack": int(found["STACK"])}


if __name__ == "__main__":
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton warns without it
    main(sys.argv[1:] or list(TARGETS))
