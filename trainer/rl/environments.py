"""Tasks whose answer stands in a picture, drawn by code.

Owns the tasks: prompt, picture, true answer. Does not judge answers and knows no model or tokenizer. A task is fixed by
(environment, split, seed, index), so tasks need not be stored; the splits draw from different random streams.

- `count`: how many dark shapes of one kind, 1 to 5, stand on a light background, none touching another.
- `colour`: which of six colours the one shape has, on a light background.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from schemas import ids

Environment = Literal["count", "colour"]
Split = Literal["train", "heldout"]

COLOURS = {"red": (220, 35, 35), "green": (40, 165, 60), "blue": (40, 80, 225), "yellow": (240, 220, 45),
           "purple": (150, 55, 190), "orange": (245, 140, 25)}
MAX_COUNT = 5
ANSWERS: dict[Environment, tuple[str, ...]] = {
    "count": tuple(str(n) for n in range(1, MAX_COUNT + 1)),
    "colour": tuple(COLOURS),
}
SHAPES = ("circle", "square")

PICTURE_PIXELS = 48
CELLS = 3                       # shapes of `count` stand in different cells of a CELLS x CELLS grid
COLOUR_JITTER = 15              # largest change of a channel, of 255
LIGHT = (200, 256)              # channels of backgrounds, which are grey
DARK = (0, 80)                  # channels of the shapes of `count`, in any tint

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
    """Return task number `index` of an environment; the same arguments give the same task."""
    stream = list(ANSWERS).index(environment)
    rng = np.random.default_rng([seed, _STREAMS[split], stream, index])
    prompt, picture, answer = _count(rng) if environment == "count" else _colour(rng)
    doc_id = ids.document_id(f"rl-{environment}", f"{split}/{seed}/{index}", ids.content_id(picture.tobytes()))
    return Task(doc_id, prompt, picture, answer, environment)


def draw_tasks(environments: tuple[Environment, ...], split: Split, seed: int, start: int, num_tasks: int) -> list[Task]:
    """Return `num_tasks` tasks from number `start` on, the environments taking turns."""
    return [draw_task(environments[i % len(environments)], split, seed, i) for i in range(start, start + num_tasks)]


def _count(rng: np.random.Generator) -> tuple[str, Image.Image, str]:
    num_shapes = int(rng.integers(1, MAX_COUNT + 1))
    shape, colour = _choice(rng, SHAPES), _dark(rng)
    picture = Image.new("RGB", (PICTURE_PIXELS, PICTURE_PIXELS), _light_grey(rng))
    cell = PICTURE_PIXELS // CELLS
    for place in rng.permutation(CELLS * CELLS)[:num_shapes]:
        size = int(rng.integers(cell - 6, cell - 2))                  # leaves at least one pixel on each side
        left, top = (int(rng.integers(1, cell - size)) for _ in range(2))
        _draw(picture, shape, int(place) % CELLS * cell + left, int(place) // CELLS * cell + top, size, colour)
    return f"How many {shape}s?", picture, str(num_shapes)


def _colour(rng: np.random.Generator) -> tuple[str, Image.Image, str]:
    name, shape = _choice(rng, tuple(COLOURS)), _choice(rng, SHAPES)
    picture = Image.new("RGB", (PICTURE_PIXELS, PICTURE_PIXELS), _light_grey(rng))
    size = int(rng.integers(PICTURE_PIXELS // 2, PICTURE_PIXELS - 6))
    left, top = (int(rng.integers(1, PICTURE_PIXELS - size)) for _ in range(2))
    _draw(picture, shape, left, top, size, _colour_of(name, rng))
    return f"Which colour is the {shape}?", picture, name


def _choice(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[int(rng.integers(len(values)))]


def _light_grey(rng: np.random.Generator) -> Rgb:
    value = int(rng.integers(*LIGHT))
    return value, value, value


def _dark(rng: np.random.Generator) -> Rgb:
    red, green, blue = (int(value) for value in rng.integers(*DARK, size=3))
    return red, green, blue


def _colour_of(name: str, rng: np.random.Generator) -> Rgb:
    red, green, blue = (int(np.clip(c + rng.integers(-COLOUR_JITTER, COLOUR_JITTER + 1), 0, 255)) for c in COLOURS[name])
    return red, green, blue


def _draw(picture: Image.Image, shape: str, left: int, top: int, size: int, colour: Rgb) -> None:
    draw, right, bottom = ImageDraw.Draw(picture), left + size - 1, top + size - 1
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), fill=colour)
    else:
        draw.rectangle((left, top, right, bottom), fill=colour)
