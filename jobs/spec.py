"""Job specs: what people write in YAML, and how it becomes one checked, frozen object.

Owns the union of all jobs, the pipeline, `--set` overrides and the error text for a wrong spec. The fields of
a stage, scorer or trainer are described in the `spec.py` beside it.

A spec file holds one job, or a `pipeline` of them:

    kind: pipeline
    output: runs/demo
    jobs:
      - {kind: prepare, sources: [{path: pages}]}
      - {kind: score, scorers: [{kind: text_quality}]}

A single job takes its inputs from the steps that earlier runs left in the same `output`.
"""

import difflib
import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator, model_validator

from datapipe import spec as data
from jobs.errors import SpecError
from rewards.spec import ScorerSpec, SelectSpec
from schemas import shard
from trainer import spec as training


class PrepareJob(BaseModel, frozen=True, extra="forbid"):
    """Raw files to token shards."""

    kind: Literal["prepare"] = "prepare"
    name: str = "prepare"
    sources: tuple[data.SourceSpec, ...] = Field(min_length=1)
    ingest: data.IngestSpec = data.IngestSpec()
    clean: data.CleanSpec = data.CleanSpec()
    dedupe_media: data.DedupeMediaSpec = data.DedupeMediaSpec()
    dedupe_text: data.DedupeTextSpec = data.DedupeTextSpec()
    mask_text: data.MaskTextSpec = data.MaskTextSpec()
    mask_repeats: data.MaskRepeatsSpec = data.MaskRepeatsSpec()
    mask_video: data.MaskVideoSpec = data.MaskVideoSpec()
    contamination: data.ContaminationSpec | None = None
    """Benchmarks whose content is to leave; empty looks for none."""
    mask_media: data.MaskMediaSpec = data.MaskMediaSpec()
    mask_regions: data.MaskRegionsSpec | None = None
    """Faces and lines of text in pictures; empty looks for none: the detectors are optional packages."""
    interleave: data.InterleaveSpec = data.InterleaveSpec()
    tokenize: data.TokenizeSpec = data.TokenizeSpec()


class ScoreJob(BaseModel, frozen=True, extra="forbid"):
    """One sidecar table a scorer."""

    kind: Literal["score"] = "score"
    name: str = "score"
    scorers: tuple[ScorerSpec, ...] = Field(min_length=1)

    @field_validator("scorers")
    @classmethod
    def _once_each(cls, scorers: tuple[ScorerSpec, ...]) -> tuple[ScorerSpec, ...]:
        kinds = [scorer.kind for scorer in scorers]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"a scorer is named twice in {kinds}")
        return scorers


class PlanJob(BaseModel, frozen=True, extra="forbid"):
    """Which token spans make which training sequence."""

    kind: Literal["plan"] = "plan"
    name: str = "plan"
    select: SelectSpec | None = None
    """Selection by one scorer; empty takes every document."""
    pack: data.PackSpec = data.PackSpec()


class PretrainJob(training.PretrainSpec, frozen=True, extra="forbid"):
    """Pretraining over the plan."""

    kind: Literal["pretrain"] = "pretrain"
    name: str = "pretrain"


class EvaluateJob(training.EvaluateSpec, frozen=True, extra="forbid"):
    """Held-out loss of a checkpoint."""

    kind: Literal["evaluate"] = "evaluate"
    name: str = "evaluate"
    model: str = "pretrain"
    """Name of the pretrain job whose last checkpoint is evaluated."""


class RLJob(training.RLSpec, frozen=True, extra="forbid"):
    """RL from a checkpoint."""

    kind: Literal["rl"] = "rl"
    name: str = "rl"
    model: str = "pretrain"
    """Name of the pretrain job whose last checkpoint RL starts from."""


Job = Annotated[
    PrepareJob | ScoreJob | PlanJob | PretrainJob | EvaluateJob | RLJob, Field(discriminator="kind")
]
JOB_TYPES: dict[str, type[BaseModel]] = {
    t.model_fields["kind"].default: t for t in get_args(get_args(Job)[0])
}


class PipelineSpec(BaseModel, frozen=True, extra="forbid"):
    """Jobs that run one after the other into one run directory."""

    kind: Literal["pipeline"] = "pipeline"
    name: str = ""
    """Name shown in the report; empty takes the output directory's."""
    output: str = Field(min_length=1)
    """Run directory; steps are shared by all runs into it."""
    num_workers: int | None = Field(default=None, gt=0)
    """Ray workers on this machine; empty takes all cores. Results do not depend on it."""
    address: str | None = None
    """Ray cluster to join; empty starts Ray on this machine."""
    report: bool = True
    """Write `report.html` at the end."""
    jobs: tuple[Job, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _settings_have_effect(self) -> Self:
        if self.address is not None and self.num_workers is not None:
            raise ValueError("num_workers: has no effect on the cluster at `address`; leave one of them out")
        names = [job.name for job in self.jobs]
        if len(set(names)) < len(names):
            raise ValueError(f"jobs: two have the same name in {names}; give one a `name`")
        if sum(job.kind == "prepare" for job in self.jobs) > 1:
            raise ValueError("jobs: a run prepares one corpus; list all folders in `sources` of one prepare")
        return self

    _output_is_a_place = field_validator("output")(shard.check_address)


_SAID = {  # by pydantic's type of fault
    "tuple_type": "must be a list, such as [a, b]",
    "dict_type": "must be a mapping",
}


def load_spec(path: str, overrides: Sequence[str] = ()) -> PipelineSpec:
    """Read a spec file, apply `a.b=c` overrides, and check it.

    Raises:
        SpecError: the file is missing or no YAML, or a field or value is wrong; one line a fault.
    """
    try:
        with open(path, encoding="utf-8") as file:
            raw = yaml.safe_load(file)
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: expected a mapping with `kind`, got {type(raw).__name__}")
    pipeline = _as_pipeline(raw, path)
    for override in overrides:
        _apply(pipeline, override)
    return parse(pipeline, path)


def parse(raw: dict[str, Any], path: str = "spec") -> PipelineSpec:
    """Check plain data against the pipeline spec.

    Raises:
        SpecError: one line a fault, with the nearest valid name for a misspelt field.
    """
    try:
        return TypeAdapter(PipelineSpec).validate_python(raw)
    except ValidationError as error:
        raise SpecError("\n".join(f"{path}: {line}" for line in _explain(error, raw))) from error


def _as_pipeline(raw: dict[str, Any], path: str) -> dict[str, Any]:
    """Wrap a single job into a pipeline of one; run-wide fields stay outside the job."""
    kind: Any = raw.get("kind")
    if kind == "pipeline":
        jobs = raw.get("jobs") or []
        if not isinstance(jobs, list):
            raise SpecError(f"{path}: jobs: {jobs!r}: must be a list of jobs, each with a `kind`")
        return {**raw, "jobs": list(jobs)}
    if not isinstance(kind, str) or kind not in JOB_TYPES:
        raise SpecError(f"{path}: kind: {_not_valid(kind, ['pipeline', *JOB_TYPES])}")
    outer = {
        name: raw[name] for name in PipelineSpec.model_fields if name in raw and name not in ("kind", "name")
    }
    job = {name: value for name, value in raw.items() if name not in outer}
    return {"kind": "pipeline", **outer, "jobs": [job]}


def _apply(pipeline: dict[str, Any], override: str) -> None:
    """Set one value; the first part of the path is a run-wide field or a job's name."""
    target, equals, text = override.partition("=")
    if not equals:
        raise SpecError(f"--set {override}: expected a.b=c")
    keys = target.split(".")
    jobs = {job.get("name", job.get("kind")): job for job in pipeline["jobs"] if isinstance(job, dict)}
    node: Any = pipeline
    if keys[0] in jobs:
        node, keys = jobs[keys[0]], keys[1:]
    elif keys[0] not in PipelineSpec.model_fields or keys[0] == "jobs":
        raise SpecError(
            f"--set {target}: {_not_valid(keys[0], [*map(str, jobs), *PipelineSpec.model_fields])}"
        )
    if not keys:
        raise SpecError(f"--set {target}: name a field of this job")
    for key in keys[:-1]:
        node = _child(node, key, target)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"--set {target}: {text!r} is no YAML value") from error
    if isinstance(node, list):
        node[_position(node, keys[-1], target)] = value
    else:
        node[keys[-1]] = value


def _child(node: Any, key: str, target: str) -> Any:
    if isinstance(node, list):
        return node[_position(node, key, target)]
    child = node.setdefault(key, {})
    if not isinstance(child, dict | list):
        raise SpecError(f"--set {target}: {key} is a value, it has no fields")
    return child


def _position(node: list[Any], key: str, target: str) -> int:
    if not key.isdigit() or int(key) >= len(node):
        raise SpecError(f"--set {target}: {key!r} is no position in a list of {len(node)}")
    return int(key)


def _not_valid(value: Any, valid: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(value), valid, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"valid are {', '.join(sorted(valid))}"
    return f"{value!r} is not valid, {hint}"


def _explain(error: ValidationError, raw: dict[str, Any]) -> Iterator[str]:
    faults = error.errors()
    for fault in faults:
        if any(other["loc"][: len(fault["loc"])] == fault["loc"] for other in faults if other is not fault):
            continue  # follows from the fault inside it
        where = _path_for_people(fault["loc"], raw)
        if fault["type"] == "extra_forbidden":
            names = _fields_beside(fault["loc"])
            near = difflib.get_close_matches(str(fault["loc"][-1]), names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"valid are {', '.join(names)}"
            yield f"{where}: {fault['input']!r}: no such field, {hint}"
        elif fault["type"] in ("union_tag_invalid", "union_tag_not_found"):
            tag = fault.get("ctx", {}).get("tag")
            valid = fault.get("ctx", {}).get("expected_tags", "'" + "', '".join(JOB_TYPES) + "'")
            yield f"{where}: kind: {_not_valid(tag, valid.replace(chr(39), '').split(', '))}"
        else:
            message = _SAID.get(fault["type"], fault["msg"]).removeprefix("Value error, ")
            if fault["type"] in ("model_type", "model_attributes_type"):
                fields = ", ".join(_fields_beside((*fault["loc"], "")))
                message = f"must be a mapping with {fields or 'a `kind`'}"
            shown = "" if isinstance(fault["input"], dict | list) else f"{fault['input']!r}: "
            yield f"{where}: {shown}{message[0].lower()}{message[1:]}" if where else message


def _path_for_people(location: tuple[int | str, ...], raw: dict[str, Any]) -> str:
    """Write a fault's place as `--set` takes it: jobs by name, union tags left out."""
    parts: list[str] = []
    node: Any = raw
    for key in location:
        if isinstance(node, list) and isinstance(key, int) and key < len(node):
            node = node[key]
            if parts == ["jobs"] and isinstance(node, dict):
                parts = [str(node.get("name", node.get("kind", key)))]
            else:
                parts.append(str(key))
        elif isinstance(node, dict) and key == node.get("kind") and key not in node:
            continue  # pydantic names the union member; people do not
        else:
            parts.append(str(key))
            node = node.get(key) if isinstance(node, dict) else None
    return ".".join(parts)


def _fields_beside(location: tuple[int | str, ...]) -> list[str]:
    """Return the valid field names at the place of an unknown field."""
    node: Any = PipelineSpec
    for key in location[:-1]:
        node = _step_into(node, key)
    return [name for name in getattr(node, "model_fields", {}) if name != "kind"]


def _step_into(node: Any, key: int | str) -> Any:
    """Follow one key of a fault's location through models, tuples and unions."""
    if isinstance(node, type) and issubclass(node, BaseModel):
        if key in node.model_fields:
            return node.model_fields[str(key)].annotation
        return node if node.model_fields.get("kind") and node.model_fields["kind"].default == key else None
    members = [m for m in _members(node) if isinstance(m, type) and issubclass(m, BaseModel)]
    if isinstance(key, int):
        return members[0] if len(members) == 1 else node
    for member in members:
        if "kind" in member.model_fields and member.model_fields["kind"].default == key:
            return member
    return _step_into(members[0], key) if len(members) == 1 else None


def _members(node: Any) -> Iterator[Any]:
    yield node
    for argument in get_args(node):
        yield from _members(argument)


def expand(path: str) -> str:
    """Return a path with `~` and environment variables filled in."""
    return os.path.expandvars(os.path.expanduser(path))
