"""MSA's Triton kernels compile for a GPU that is not here, and spill nothing where that was promised."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="no Triton for this system")

PROGRAM = """
import json
from tests.bench import msa_compile
launches = msa_compile.recorded(**msa_compile.PUBLISHED)
target = msa_compile.TARGETS["90"]
print(json.dumps({work: msa_compile.resources(target, launch) for work, launch in launches}))
"""


def test_no_kernel_spills_on_sm_90_at_the_published_geometry(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    used = json.loads(done.stdout)
    assert len(used) == 16
    assert {work: row["stack"] for work, row in used.items()} == dict.fromkeys(used, 0)
    assert max(row["shared bytes"] for row in used.values()) <= 232_448
