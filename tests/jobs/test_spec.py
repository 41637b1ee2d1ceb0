"""Specs: every shipped one parses, every fault is named with its place, its value and what would be right."""

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from jobs.errors import SpecError
from jobs.spec import JOB_TYPES, PipelineSpec, load_spec, parse

ROOT = Path(__file__).parents[2]
PREPARE = {"kind": "prepare", "sources": [{"path": "pages"}]}


def write(tmp_path, value):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(value))
    return str(path)


def fault(tmp_path, value, *overrides):
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path, value), overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("path", sorted((ROOT / "jobs" / "specs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_spec_parses(path):
    assert load_spec(str(path)).jobs


def test_every_spec_of_the_readme_parses(tmp_path):
    blocks = re.findall("```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [len(load_spec(write(tmp_path, yaml.safe_load(block))).jobs) for block in blocks] == [6, 1]


def test_a_resolved_spec_parses_to_itself(tmp_path):
    spec = load_spec(
        write(tmp_path, {"kind": "pipeline", "output": "x", "jobs": [PREPARE, {"kind": "pretrain"}]})
    )
    assert parse(spec.model_dump(mode="json")) == spec


def test_a_single_job_is_a_pipeline_of_one(tmp_path):
    spec = load_spec(write(tmp_path, {**PREPARE, "output": "runs/x", "num_workers": 1}))
    assert (spec.output, spec.num_workers, [job.kind for job in spec.jobs]) == ("runs/x", 1, ["prepare"])


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (
            {**PREPARE, "clean": {"min_wrds": 3}},
            "prepare.clean.min_wrds: 3: no such field, did you mean 'min_words'?",
        ),
        (
            {"kind": "prepare", "sources": [{"path": "a", "inclde": ["b"]}]},
            "prepare.sources.0.inclde: ['b']: no such field, did you mean 'include'?",
        ),
        (
            {"kind": "pretrain", "model": {"vision": {"num_head": 2}}},
            "pretrain.model.vision.num_head: 2: no such field, did you mean 'num_heads'?",
        ),
        (
            {**PREPARE, "clean": {"languages": "en"}},
            "prepare.clean.languages: 'en': must be a list, such as [a, b]",
        ),
        (
            {"kind": "prepare", "sources": ["pages"]},
            "prepare.sources.0: 'pages': must be a mapping with path, collection, include, exclude, license, "
            "standalone_media",
        ),
        ("prepare", "jobs.0: 'prepare': must be a mapping with a `kind`"),
        (
            {"kind": "prepare", "sources": [{"path": "s3://"}]},
            "prepare.sources.0.path: 's3://': must be a folder or an address such as s3://bucket/folder",
        ),
        ({"kind": "pretrain", "num_steps": -1}, "pretrain.num_steps: -1: input should be greater than 0"),
        (
            {"kind": "score", "scorers": [{"kind": "aligment"}]},
            "score.scorers.0: kind: 'aligment' is not valid, did you mean 'alignment'?",
        ),
        ({"kind": "pretain"}, "pretain: kind: 'pretain' is not valid, did you mean 'pretrain'?"),
        (
            {"kind": "plan", "select": {"scorer": "s", "method": "threshold", "threshold": 1, "floor": 0.1}},
            "plan.select: floor: has no effect with method 'threshold'",
        ),
        (
            {"kind": "pretrain", "optimizer": {"schedule": "cosine", "decay_frac": 0.2}},
            "pretrain.optimizer: decay_frac: has no effect with schedule 'cosine'",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_the_nearest_valid_one(tmp_path, job, expected):
    assert fault(tmp_path, {"kind": "pipeline", "output": "x", "jobs": [job]}) == f"spec.yaml: {expected}"


def test_every_fault_gets_a_line_of_its_own(tmp_path):
    text = fault(
        tmp_path, {"kind": "pipeline", "outptu": "x", "jobs": [{"kind": "pretrain", "save_evry": 1}]}
    )
    assert text.splitlines() == [
        "spec.yaml: output: field required",
        "spec.yaml: pretrain.save_evry: 1: no such field, did you mean 'save_every'?",
        "spec.yaml: outptu: 'x': no such field, did you mean 'output'?",
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("prepare.clean.min_words", "--set prepare.clean.min_words: expected a.b=c"),
        (
            "prepar.clean.min_words=1",
            "--set prepar.clean.min_words: 'prepar' is not valid, did you mean 'prepare'?",
        ),
        ("prepare.sources.7.path=x", "--set prepare.sources.7.path: '7' is no position in a list of 1"),
        ("prepare=3", "--set prepare: name a field of this job"),
        ("prepare.sources.0.path.x=3", "--set prepare.sources.0.path.x: path is a value, it has no fields"),
        (
            "prepare.clean.min_words=abc",
            "spec.yaml: prepare.clean.min_words: 'abc': input should be a valid integer, "
            "unable to parse string as an integer",
        ),
    ],
)
def test_a_wrong_override_is_refused(tmp_path, override, expected):
    assert fault(tmp_path, {"kind": "pipeline", "output": "x", "jobs": [PREPARE]}, override) == expected


def test_overrides_reach_jobs_by_name_lists_by_position_and_the_run_itself(tmp_path):
    jobs = [PREPARE, {"kind": "pretrain"}, {"kind": "pretrain", "name": "late"}]
    path = write(tmp_path, {"kind": "pipeline", "output": "x", "jobs": jobs})
    spec = load_spec(
        path, ["late.num_steps=7", "prepare.sources.0.path=other", "output=y", "prepare.clean.languages=[en]"]
    )
    assert (spec.jobs[1].num_steps, spec.jobs[2].num_steps, spec.output) == (None, 7, "y")
    assert (spec.jobs[0].sources[0].path, spec.jobs[0].clean.languages) == ("other", ("en",))


def test_two_jobs_of_one_name_are_refused(tmp_path):
    text = fault(
        tmp_path, {"kind": "pipeline", "output": "x", "jobs": [{"kind": "evaluate"}, {"kind": "evaluate"}]}
    )
    assert "two have the same name in ['evaluate', 'evaluate']" in text


def test_two_corpora_in_one_run_are_refused(tmp_path):
    jobs = [{**PREPARE, "name": name} for name in ("a", "b")]
    text = fault(tmp_path, {"kind": "pipeline", "output": "x", "jobs": jobs})
    assert "a run prepares one corpus; list all folders in `sources` of one prepare" in text


@pytest.mark.parametrize("output", ["s3://", "s3:/bucket/x", "s3:///x"])
def test_an_address_without_a_bucket_is_refused_as_output(tmp_path, output):
    text = fault(tmp_path, {**PREPARE, "output": output})
    assert f"output: {output!r}: must be a folder or an address such as s3://bucket/folder" in text


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"kind": "pipeline", "output": "x", "jobs": 3}, "jobs: 3: must be a list of jobs"),
        ({"kind": "pipeline", "output": "x", "jobs": "prepare"}, "jobs: 'prepare': must be a list of jobs"),
        ({"kind": ["prepare"], "output": "x"}, "kind: ['prepare'] is not valid"),
    ],
)
def test_what_is_no_list_and_no_kind_is_said_in_one_line(tmp_path, raw, expected):
    text = fault(tmp_path, raw)
    assert expected in text and "\n" not in text


def test_no_yaml_and_no_file_are_one_line(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("a: [1")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    for broken, message in (
        (path, "no YAML"),
        (tmp_path / "latin.yaml", "no YAML: 'utf-8' codec can't decode"),
        (tmp_path / "none.yaml", "No such file"),
    ):
        with pytest.raises(SpecError, match=message) as caught:
            load_spec(str(broken))
        assert "\n" not in str(caught.value)


def models(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation)
    for argument in get_args(annotation):
        yield from models(argument)


def test_every_field_is_read_somewhere():
    """A setting without effect is a defect: each field's name is used as an attribute outside the spec
    files."""
    packages = ("datapipe", "rewards", "trainer", "kernels", "jobs")
    code = "\n".join(
        path.read_text()
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if path.name not in ("spec.py", "config.py")
    )
    unused = {
        f"{model.__name__}.{name}"
        for job in (PipelineSpec, *JOB_TYPES.values())
        for model in models(job)
        for name in model.model_fields
        if not re.search(rf"\.{name}\b", code)
    }
    assert unused - {"PipelineSpec.kind"} == set()
