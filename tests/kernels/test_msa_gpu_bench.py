"""The GPU benchmark of MSA assembles its rows; here with a tiny geometry in the interpreter."""

import json

import pytest
import torch

pytest.importorskip("triton", reason="no Triton for this system")

from tests.bench import msa_gpu


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_gpu_benchmark_assembles_its_rows() -> None:
    tiny = msa_gpu.Geometry(
        heads=2,
        groups=1,
        head_dim=16,
        index_dim=16,
        block_size=8,
        top_k=2,
        dtype=torch.float32,
        device="cpu",
        product_size=64,
        checked_tokens=12,
        cache_tokens=40,
        rounds=1,
    )
    rows = msa_gpu.measure((12,), tiny)
    assert json.loads(json.dumps(rows)) == rows
    checks = [row for row in rows if "error" in row["work"]]
    assert len(checks) == 3 and all(row["ours"] <= row["goal"] for row in checks)
    assert [row["work"] for row in rows[5:]] == [
        "12 tokens, forward, by queries",
        "12 tokens, forward, by blocks",
        "12 tokens, backward, by queries",
        "12 tokens, backward, by blocks",
        "12 tokens, decoding 3 sequences",
    ]
    assert all(row["ours"] > 0 and row["quality"]["roofline ms"] >= 0 for row in rows[5:])


def test_operations_are_those_of_the_paper_at_its_longest_context() -> None:
    tokens, geometry = 1 << 20, msa_gpu.Geometry()
    of_ours, of_dense = msa_gpu.operations(tokens, geometry, "forward")
    teacher = 2 * geometry.heads * geometry.head_dim * msa_gpu.reads(tokens, geometry)
    student = 2 * geometry.groups * geometry.index_dim * msa_gpu.reads(tokens, geometry)
    assert of_dense / (of_ours - teacher - student) == pytest.approx(28.4, abs=0.1)
