"""Runs that end by SIGKILL at a chosen moment: `python -m tests.trainer.killed_runs SCENARIOS.json`.

Each scenario is {"output", "paths", and "step" (killed after it) or "event", "text" (killed when Python
reports that audit event with an argument that ends with the text)}. Every run is a process of its own, forked
from this one.
"""

import json
import os
import signal
import sys
from typing import Any

import torch._dynamo  # noqa: F401 (the optimiser imports it late: once here, not in every forked process)

from tests.trainer import corpus
from trainer.pretrain import pretrain


def run_until_killed(scenario: dict[str, Any]) -> None:
    """Start pretraining; the process is killed on the way."""

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == scenario.get("event") and scenario["text"] in str(arguments[0]):
            kill()

    sys.addaudithook(audit)
    pretrain(
        corpus.spec(**scenario["spec"]),
        **scenario["paths"],
        output_path=scenario["output"],
        on_step=lambda step, total: kill() if step == scenario.get("step") else None,
    )


def main() -> None:
    """Run every scenario and check that it was killed."""
    with open(sys.argv[1], encoding="utf-8") as source:
        scenarios = json.load(source)
    for scenario in scenarios:
        child = os.fork()
        if child == 0:
            run_until_killed(scenario)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"{scenario['output']} was not killed: status {status}")


if __name__ == "__main__":
    main()
