"""Checkpoints: what is saved comes back, damage is found and named, old ones go."""

from pathlib import Path

import pytest
import torch

from tests.trainer import corpus
from trainer import checkpoint
from trainer.errors import CheckpointError
from trainer.model.model import OmniModel
from trainer.optimizer import build_optimizer
from trainer.spec import OptimizerSpec


def trained(num_steps: int, seed: int = 0) -> tuple[OmniModel, torch.optim.AdamW]:
    """A model and optimiser after some steps on a made-up gradient that leaves vision out."""
    model = OmniModel(corpus.MODEL, seed=seed)
    optimizer = build_optimizer(model, model.components(), OptimizerSpec())
    for _ in range(num_steps):
        for name, parameter in model.named_parameters():
            parameter.grad = None if name.startswith("vision_tower") else parameter.detach().cos()
        optimizer.step()
        model.update_router_bias(torch.tensor([[5, 0, 2, 1]]), 0.1)
    return model, optimizer


def save(directory: Path, step: int, keep: int = 5) -> Path:
    model, optimizer = trained(step)
    loop = {"step": step}
    return Path(checkpoint.save(str(directory), step, model=model, optimizer=optimizer, loop=loop, keep=keep))


def test_model_optimiser_and_loop_state_come_back_to_the_last_bit(tmp_path: Path) -> None:
    model, optimizer = trained(2)
    loop = {"step": 2, "losses": [0.1 + 0.2, 1e-300], "rng": "00ff"}
    path = checkpoint.save(str(tmp_path), 2, model=model, optimizer=optimizer, loop=loop, keep=1)
    assert path == str(tmp_path / "step-00000002")

    other, other_optimizer = trained(0, seed=9)
    assert checkpoint.load(path, other, other_optimizer) == loop
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        for name, value in optimizer.state[left].items():
            assert torch.equal(value, other_optimizer.state[right][name]), name
    assert other.state_dict()["layers.1.mlp.router.bias"].abs().max() > 0

    alone = checkpoint.load_model(path)
    assert alone.config == corpus.MODEL
    assert all(torch.equal(value, alone.state_dict()[name]) for name, value in model.state_dict().items())


def test_training_goes_on_from_a_loaded_state_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    path = save(tmp_path, 2)
    model, optimizer = trained(0)
    checkpoint.load(str(path), model, optimizer)
    straight, _ = trained(3)
    for name, parameter in model.named_parameters():
        parameter.grad = None if name.startswith("vision_tower") else parameter.detach().cos()
    optimizer.step()
    pairs = zip(model.parameters(), straight.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)


def test_the_newest_are_kept_and_the_rest_deleted(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    assert checkpoint.latest(str(tmp_path)) == str(tmp_path / "step-00000003")


def test_there_is_no_latest_where_nothing_was_saved(tmp_path: Path) -> None:
    assert checkpoint.latest(str(tmp_path)) is None and checkpoint.latest(str(tmp_path / "none")) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_taken(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    for file in (*sorted((newest / "state").iterdir()), newest / "model.json", newest / "loop.json"):
        data = file.read_bytes()
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        file.write_bytes(data[:-1] if damage == "cut" else bytes(changed))
        if damage == "delete":
            file.unlink()
        caplog.clear()
        assert checkpoint.latest(str(tmp_path)) == str(tmp_path / "step-00000001")
        assert file.name in caplog.text
        with pytest.raises(CheckpointError, match=f"damaged checkpoint .*{file.name}"):
            checkpoint.load_model(str(newest))
        file.write_bytes(data)
    assert checkpoint.latest(str(tmp_path)) == str(newest)


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{"])
def test_a_checkpoint_without_a_whole_marker_does_not_count(tmp_path: Path, content: bytes | None) -> None:
    save(tmp_path, 1)
    marker = save(tmp_path, 2) / "finished.json"
    marker.unlink() if content is None else marker.write_bytes(content)
    assert checkpoint.latest(str(tmp_path)) == str(tmp_path / "step-00000001")


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    (save(tmp_path, 1) / "model.json").unlink()
    assert checkpoint.latest(str(tmp_path)) is None
    checkpoint.verify(str(save(tmp_path, 1)))


def test_a_model_of_another_shape_is_refused_with_the_field(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    model = OmniModel(corpus.MODEL.model_copy(update={"intermediate_size": 24}))
    optimizer = build_optimizer(model, model.components(), OptimizerSpec())
    with pytest.raises(CheckpointError, match="intermediate_size 16, this one has 24"):
        checkpoint.load(str(path), model, optimizer)


def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*step-00000001"):
        save(tmp_path / "file", 1)
