"""Tasks whose answer stands in a picture, drawn by code.

Owns the tasks: prompt, picture, true answer. Does not judge answers and knows no model or tokenizer. A task
is fixed by (environment, split, seed, index), so tasks need not be stored; the splits draw from different
random streams.

- `count`: how many dark shapes of one kind, 1 to 5, stand on a light background, none touching another.
- `colour`: which of six colours the one shape has, on a light background; the answer is its first letter.

Answers are one character: every byte-level tokenizer has it as one token, so all rollouts of a prompt
together cost one pass over it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from schemas import ids

Environment = Literal["count", "colour"]
Split = Literal["train", "heldout"]

COLOURS = {
    "red": (225, 35, 35),
    "green": (35, 165, 50),
    "blue": (40, 60, 225),
    "yellow": (240, 225, 40),
    "cyan": (40, 205, 225),
    "magenta": (215, 45, 200),
}
MAX_COUNT = 5
LETTERS = {name[0]: name for name in COLOURS}
ANSWERS: dict[Environment, tuple[str, ...]] = {
    "count": tuple(str(n) for n in range(1, MAX_COUNT + 1)),
    "colour": tuple(LETTERS),
}
SHAPES = ("circle", "square")

PICTURE_PIXELS = 48
CELLS = 3  # shapes of `count` stand in different cells of a CELLS x CELLS grid
COLOUR_JITTER = 15  # largest change of a channel, of 255
LIGHT = (200, 256)  # channels of backgrounds, which are grey
DARK = (0, 80)  # channels of the shapes of `count`, in any tint

_STREAMS: dict[Split, int] = {"train": 0, "heldout": 1}
Rgb = tuple[int, int, int]


@dataclass(frozen=True)
class Task:
    """A question about a picture. `picture` is RGB."""

    doc_id: str
    prompt: str
    picture: Image.Image
    answer: str
    environment: Environment


def draw_task(environment: Environment, split: Split, seed: int, index: int) -> Task:
    """Return task number `index` of an environment; the same arguments give the same task.

    Each run of tasks as long as the list of answers has every answer once, so no batch favours one by chance.
    """
    stream, answers = [seed, _STREAMS[split], list(ANSWERS).index(environment)], ANSWERS[environment]
    block, place = divmod(index, len(answers))
    answer = answers[np.random.default_rng([*stream, 0, block]).permutation(len(answers))[place]]
    rng = np.random.default_rng([*stream, 1, index])
    prompt, picture = _count(int(answer), rng) if environment == "count" else _colour(LETTERS[answer], rng)
    doc_id = ids.document_id(
        f"rl-{environment}", f"{split}/{seed}/{index}", ids.content_id(picture.tobytes())
    )
    return Task(doc_id, prompt, picture, answer, environment)


def draw_tasks(
    environments: tuple[Environment, ...], split: Split, seed: int, start: int, num_tasks: int
) -> list[Task]:
    """Return `num_tasks` tasks from number `start` on, the environments taking turns."""
    num_environments = len(environments)
    return [
        draw_task(environments[i % num_environments], split, seed, i // num_environments)
        for i in range(start, start + num_tasks)
    ]


def _count(num_shapes: int, rng: np.random.Generator) -> tuple[str, Image.Image]:
    shape, colour = _choice(rng, SHAPES), _dark(rng)
    picture = Image.new("RGB", (PICTURE_PIXELS, PICTURE_PIXELS), _light_grey(rng))
    cell = PICTURE_PIXELS // CELLS
    for place in rng.permutation(CELLS * CELLS)[:num_shapes]:
        size = int(rng.integers(cell - 6, cell - 2))  # leaves at least one pixel on each side
        left, top = (int(rng.integers(1, cell - size)) for _ in range(2))
        _draw(
            picture, shape, int(place) % CELLS * cell + left, int(place) // CELLS * cell + top, size, colour
        )
    return f"How many {shape}s?", picture


def _colour(name: str, rng: np.random.Generator) -> tuple[str, Image.Image]:
    shape = _choice(rng, SHAPES)
    picture = Image.new("RGB", (PICTURE_PIXELS, PICTURE_PIXELS), _light_grey(rng))
    size = int(rng.integers(2 * PICTURE_PIXELS // 3, PICTURE_PIXELS - 3))
    left, top = (int(rng.integers(1, PICTURE_PIXELS - size)) for _ in range(2))
    _draw(picture, shape, left, top, size, _colour_of(name, rng))
    return f"First letter of the {shape}'s colour?", picture


def _choice(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[int(rng.integers(len(values)))]


def _light_grey(rng: np.random.Generator) -> Rgb:
    value = int(rng.integers(*LIGHT))
    return value, value, value


def _dark(rng: np.random.Generator) -> Rgb:
    red, green, blue = (int(value) for value in rng.integers(*DARK, size=3))
    return red, green, blue


def _colour_of(name: str, rng: np.random.Generator) -> Rgb:
    red, green, blue = (
        int(np.clip(c + rng.integers(-COLOUR_JITTER, COLOUR_JITTER + 1), 0, 255)) for c in COLOURS[name]
    )
    return red, green, blue


def _draw(picture: Image.Image, shape: str, left: int, top: int, size: int, colour: Rgb) -> None:
    draw, right, bottom = ImageDraw.Draw(picture), left + size - 1, top + size - 1
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), fill=colour)
    else:
        draw.rectangle((left, top, right, bottom), fill=colour)
