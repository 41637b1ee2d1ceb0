"""The same spec on a cluster of two nodes, one of which is lost in the middle, and with everything on S3."""

import json
import subprocess
import sys
import time

import pytest
import yaml
from ray.cluster_utils import Cluster

from schemas import shard
from tests import s3
from tests.jobs.make_corpus import write_corpus

TOKENIZE = {"vocab_size": 512, "patch_size": 8, "min_pixels": 256, "max_pixels": 1024}


def spec(source: str, output: str) -> dict:
    return {
        "kind": "prepare",
        "output": output,
        "report": False,
        "sources": [{"path": source, "collection": "made", "standalone_media": True}],
        "ingest": {"documents_per_partition": 4},
        "tokenize": TOKENIZE,
    }


def omniloom(path, *overrides):
    command = [sys.executable, "-m", "jobs.cli", "run", str(path)]
    return subprocess.Popen(
        [*command, *(part for override in overrides for part in ("--set", override))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def manifests(output: str) -> dict[str, str]:
    """The manifest of each step, as its bytes; they name every shard's hash."""
    steps = shard.read_json(shard.join(output, "run.json"))["steps"]
    return {
        name: json.dumps(shard.read_json(shard.join(output, path, "manifest.json")))
        for name, path in steps.items()
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run on this machine, undisturbed, with one worker."""
    folder = tmp_path_factory.mktemp("run")
    write_corpus(folder / "corpus")
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec(str(folder / "corpus"), str(folder / "alone"))))
    process = omniloom(path, "num_workers=1")
    assert process.wait() == 0, process.stderr.read()
    return folder


def test_a_cluster_that_loses_a_node_in_the_middle_makes_the_same_shards(alone):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        lost = cluster.add_node(num_cpus=1)
        output = alone / "cluster"
        process = omniloom(alone / "spec.yaml", f"output={output}", f"address={json.dumps(cluster.address)}")
        while len(list(output.glob("steps/ingest-*/partition-*.json"))) < 2:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        cluster.remove_node(lost, allow_graceful=False)
        stdout, stderr = process.communicate(timeout=300)
        assert process.returncode == 0, stderr
    finally:
        cluster.shutdown()
    assert manifests(str(output)) == manifests(str(alone / "alone")), stdout


def test_a_run_that_reads_from_and_writes_to_s3_makes_the_same_shards(alone):
    with s3.server() as root:
        for path in sorted((alone / "corpus").iterdir()):
            shard.write_bytes(f"{root}/corpus/{path.name}", path.read_bytes())
        process = omniloom(alone / "spec.yaml", f"output={root}/run", f"prepare.sources.0.path={root}/corpus")
        _, stderr = process.communicate(timeout=300)
        assert process.returncode == 0, stderr
        assert manifests(f"{root}/run") == manifests(str(alone / "alone"))
