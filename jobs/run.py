"""Runs a spec: its jobs in order, each step skipped, resumed or made, and written down in the run directory.

Owns the run directory: `run.json` (resolved spec and the steps in use), `steps/`, `report.html`, and the lock
that keeps two runs out of one directory. What the steps of a job are stands in `jobs.prepare`, `jobs.score`
and `jobs.plan`; training jobs are here, since they are one step each.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from datapipe.on_ray import Engine, Step
from jobs.errors import JobError
from jobs.prepare import prepare
from jobs.spec import EvaluateJob, PipelineSpec, PlanJob, PrepareJob, PretrainJob, RLJob, ScoreJob, expand
from jobs.state import RunState
from schemas import shard

logger = logging.getLogger(__name__)

OnStep = Callable[[int, int], None]


def run(spec: PipelineSpec, console: Console) -> str:
    """Run all jobs of a spec and return the run directory.

    Raises:
        JobError: a job lacks an input, or another run holds the directory.
        ShardError, DatapipeError, ValueError: what a step ran into; steps finished before stay committed.
    """
    output = expand(spec.output)
    with _locked(output), Engine(spec.num_workers, spec.address, console.is_terminal) as engine:
        record = _Record(output, spec, console)
        state = RunState(engine, shard.join(output, "steps"), record.steps, record.commit)
        logger.info("spec %s commit %s", spec.model_dump_json(), _commit_hash())
        for job in spec.jobs:
            _run_job(state, job, console)
        if spec.report:
            with console.status("report"):
                report = _report(output, record.changed)
            console.print(f"\nreport: {report}")
        _show_what_next(state, output, console)
    return output


def _report(output: str, changed: bool) -> str:
    """Write the report, unless nothing has changed since it was written."""
    path = shard.join(output, "report.html")
    if not changed and shard.exists(path):
        return path
    from jobs.report import write_report  # matplotlib takes seconds to load

    return write_report(output)


def _show_what_next(state: RunState, output: str, console: Console) -> None:
    """Print three commands that look closer at what was made."""
    name, table = ("plan", "plan") if "plan" in state.steps else ("ingest", "documents")
    found = (
        shard.read_step_table(state.path_of(name, "walk"), table, ["doc_id"]) if name in state.steps else None
    )
    doc_id = found["doc_id"][0].as_py()[:12] if found is not None and found.num_rows else "DOC_ID"
    here = "" if shutil.which("omniloom") else os.path.relpath(os.path.dirname(sys.executable)) + "/"
    console.print("try next:", highlight=False)
    for command in (
        f"{here}omniloom walk {doc_id} --run {output}",
        f"make notebook RUN={output}",
        f'{here}python -c "import polars as pl; '
        f"print(pl.scan_ipc('{output}/steps/tokenize-*/tokens-*.arrow')"
        ".select('doc_id', 'num_tokens').collect())\"",
    ):
        console.print(f"  {command}", highlight=False, markup=False)


def _run_job(state: RunState, job: object, console: Console) -> None:
    match job:
        case PrepareJob():
            prepare(state, job)
        case ScoreJob():
            from jobs.score import score  # torch takes seconds to load

            score(state, job)
        case PlanJob():
            from jobs.plan import plan

            plan(state, job)
        case PretrainJob():
            _pretrain(state, job, console)
        case EvaluateJob():
            _evaluate(state, job, console)
        case RLJob():
            _rl(state, job, console)
        case _:
            raise AssertionError(f"no such job: {job}")


def _pretrain(state: RunState, job: PretrainJob, console: Console) -> None:
    from trainer import pretrain  # torch takes seconds to load

    tokens_id, plan_id = state.id_of("tokenize", job.name), state.id_of("plan", job.name)
    step = state.step(
        job.name, pretrain.VERSION, job.model_dump(mode="json", exclude={"kind", "name"}), tokens_id, plan_id
    )

    def work() -> shard.Manifest:
        state.engine.stop()  # its memory is the trainer's now
        with _progress(console, job.name) as on_step:
            summary = pretrain.pretrain(
                job,
                tokens_path=state.path_of("tokenize", job.name),
                plan_path=state.path_of("plan", job.name),
                output_path=step.path,
                on_step=on_step,
            )
        return _finish_training(step, summary)

    state.commit(step, work)


def _evaluate(state: RunState, job: EvaluateJob, console: Console) -> None:
    from trainer import evaluate

    model_id, tokens_id, plan_id = (state.id_of(name, job.name) for name in (job.model, "tokenize", "plan"))
    step = state.step(
        job.name,
        evaluate.VERSION,
        job.model_dump(mode="json", exclude={"kind", "name", "model"}),
        model_id,
        tokens_id,
        plan_id,
    )

    def work() -> shard.Manifest:
        state.engine.stop()
        with console.status(job.name):
            summary = evaluate.evaluate(
                job,
                checkpoint_path=_last_checkpoint(state, job.model, job.name),
                tokens_path=state.path_of("tokenize", job.name),
                plan_path=state.path_of("plan", job.name),
            )
        return _finish_training(step, summary)

    state.commit(step, work)


def _rl(state: RunState, job: RLJob, console: Console) -> None:
    from rewards import verify
    from trainer.rl import train

    model_id, tokens_id = state.id_of(job.model, job.name), state.id_of("tokenize", job.name)
    step = state.step(
        job.name,
        train.VERSION,
        job.model_dump(mode="json", exclude={"kind", "name", "model"}),
        model_id,
        tokens_id,
    )

    def work() -> shard.Manifest:
        state.engine.stop()
        with _progress(console, job.name) as on_step:
            summary = train.train(
                job,
                checkpoint_path=_last_checkpoint(state, job.model, job.name),
                tokenizer_path=shard.join(state.path_of("tokenize", job.name), "tokenizer.json"),
                output_path=step.path,
                verify=verify.exact,
                on_step=on_step,
            )
        return _finish_training(step, summary)

    state.commit(step, work)


def _last_checkpoint(state: RunState, model: str, needed_by: str) -> str:
    from trainer import checkpoint

    path = checkpoint.latest(shard.join(state.path_of(model, needed_by), "checkpoints"))
    if path is None:
        raise JobError(f"{needed_by} needs a checkpoint of {model!r}, which has none")
    return str(path)


def _finish_training(step: Step, summary: dict[str, object]) -> shard.Manifest:
    manifest = shard.Manifest(
        step=step.id,
        version=step.version,
        spec=step.spec,
        inputs=list(step.inputs),
        rows_in=0,
        rows_out=0,
        dropped={},
        metrics=summary,
        files=[],
    )
    shard.write_manifest(step.path, manifest)
    return manifest


class _Record:
    """Keeps run.json up to date and shows one line a step."""

    def __init__(self, output: str, spec: PipelineSpec, console: Console):
        self.output, self.path = output, shard.join(output, "run.json")
        self.spec, self.console = spec, console
        self.name = spec.name or os.path.basename(output.rstrip("/"))
        self.written: dict[str, Any] = {"steps": {}}
        if shard.exists(self.path):
            self.written = shard.read_json(self.path)
        self.steps: dict[str, str] = {n: path.rpartition("/")[2] for n, path in self.written["steps"].items()}
        self.changed = False

    def commit(self, step: Step, work: Callable[[], shard.Manifest]) -> None:
        """Make a step unless it is finished, and write down that this run uses it."""
        started, skipped = time.monotonic(), step.is_finished()
        manifest = shard.read_manifest(step.path) if skipped else work()
        if self.steps.get(step.name) not in (None, step.id):
            self._forget_followers(self.steps[step.name])
        self.steps[step.name] = step.id
        record = {
            "name": self.name,
            "spec": self.spec.model_dump(mode="json"),
            "steps": {name: f"steps/{id_}" for name, id_ in self.steps.items()},
        }
        if record != self.written:
            shard.write_json(self.path, record)
            self.written, self.changed = record, True
        seconds = None if skipped else time.monotonic() - started
        self.console.print(_line(step, manifest, seconds), highlight=False)

    def _forget_followers(self, step_id: str) -> None:
        """Take out the steps that were made from one that this run no longer uses."""
        for name, follower in list(self.steps.items()):
            path = shard.join(self.output, "steps", follower)
            if name in self.steps and shard.is_finished(path) and step_id in shard.read_manifest(path).inputs:
                del self.steps[name]
                self._forget_followers(follower)


def _line(step: Step, manifest: shard.Manifest, seconds: float | None) -> str:
    how = "[dim]done before[/dim]" if seconds is None else f"{seconds:8.1f} s"
    rows = f"{manifest.rows_in:>7} → {manifest.rows_out:<7}" if manifest.rows_in else " " * 17
    if step.name == "dedupe_media":
        rows = f"{manifest.metrics['clusters']:>7} clusters of copies among {manifest.metrics['media']} media"
    dropped = ", ".join(f"{n} {reason}" for reason, n in manifest.dropped.items())
    return f"{step.name:<20} {how:>12}  {rows} {dropped}".rstrip()


@contextlib.contextmanager
def _progress(console: Console, name: str) -> Iterator[OnStep]:
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


@contextlib.contextmanager
def _locked(output: str) -> Iterator[None]:
    """Keep a second run out of a local run directory; the lock goes with the process, however it ends."""
    if "://" in output:
        yield
        return
    try:
        os.makedirs(output, exist_ok=True)
        lock = open(os.path.join(output, ".lock"), "w")  # noqa: SIM115  # the with below closes it
    except OSError as error:
        raise JobError(f"output: {output!r}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobError(
                f"output: {output!r} is in use by another run; wait for it, or choose another output"
            ) from error
        yield


def _commit_hash() -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    found = subprocess.run(
        ["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"
