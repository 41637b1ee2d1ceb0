"""Tasks: drawn the same way every time, and the answer can be read from the pixels alone."""

import numpy as np
import pytest
from PIL import Image

from trainer.rl.environments import ANSWERS, COLOURS, Environment, Task, draw_task, draw_tasks

ENVIRONMENTS: tuple[Environment, ...] = ("count", "colour")


def shape_pixels(task: Task) -> np.ndarray:
    """True where the pixel differs from that in the corner, which no shape reaches."""
    pixels = np.asarray(task.picture)
    return (pixels != pixels[0, 0]).any(-1)


def count_islands(mask: np.ndarray) -> int:
    """Number of groups of touching true pixels, corners included."""
    todo, islands = set(zip(*np.nonzero(mask), strict=True)), 0
    while todo:
        islands, front = islands + 1, [todo.pop()]
        while front:
            y, x = front.pop()
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & todo
            todo -= near
            front += near
    return islands


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_task_is_fixed_by_its_number_and_seed(environment: Environment) -> None:
    assert draw_task(environment, "train", 3, 7) == draw_task(environment, "train", 3, 7)
    others = [
        draw_task(environment, "train", 3, 8),
        draw_task(environment, "train", 4, 7),
        draw_task(environment, "heldout", 3, 7),
    ]
    assert all(o.picture != draw_task(environment, "train", 3, 7).picture for o in others)


def test_no_heldout_picture_is_a_training_picture() -> None:
    train, heldout = (
        {t.picture.tobytes() for t in draw_tasks(ENVIRONMENTS, split, 1, 0, 400)}
        for split in ("train", "heldout")
    )
    assert len(train) == len(heldout) == 400 and not train & heldout


def test_the_count_is_the_number_of_islands_of_shape_pixels() -> None:
    for task in (draw_task("count", "train", 1, i) for i in range(60)):
        assert str(count_islands(shape_pixels(task))) == task.answer


def test_the_colour_is_the_named_one_nearest_to_the_shape_pixels() -> None:
    names, palette = list(COLOURS), np.array(list(COLOURS.values()))
    for task in (draw_task("colour", "train", 1, i) for i in range(60)):
        mean = np.asarray(task.picture)[shape_pixels(task)].mean(0)
        assert names[int(np.abs(palette - mean).sum(-1).argmin())][0] == task.answer


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_answers_are_evenly_spread_and_prompts_do_not_tell_them(environment: Environment) -> None:
    tasks = [draw_task(environment, "train", 1, i) for i in range(600)]
    share = {a: sum(t.answer == a for t in tasks) / len(tasks) for a in ANSWERS[environment]}
    assert sum(share.values()) == pytest.approx(1) and max(share.values()) < 1.5 / len(share)
    for prompt in {t.prompt for t in tasks}:
        same = [t.answer for t in tasks if t.prompt == prompt]
        assert max(same.count(a) for a in share) / len(same) < 1.6 / len(share)
        assert not any(a in prompt.split() for a in share)


def test_environments_take_turns() -> None:
    tasks = draw_tasks(ENVIRONMENTS, "train", 1, 5, 4)
    assert [t.environment for t in tasks] == ["colour", "count", "colour", "count"]
    assert all(isinstance(t.picture, Image.Image) for t in tasks) and len({t.doc_id for t in tasks}) == 4
