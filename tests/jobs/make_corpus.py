"""A small corpus made by code: pages with pictures and captions, a logo on all of them, personal data,
duplicates, a video with captions, a text file, and inputs that cannot be read.
"""

import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tests import make

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 30), "blue": (40, 60, 220), "yellow": (230, 210, 40)}
NOUNS = ("layer", "brush", "palette", "canvas", "filter", "window", "menu", "gradient", "pattern", "channel")
VERBS = ("opens", "moves", "changes", "shows", "keeps", "removes", "copies", "paints", "selects", "blends")


def sentence(rng: random.Random) -> str:
    """A plain sentence of known words."""
    return (
        f"The {rng.choice(NOUNS)} {rng.choice(VERBS)} the {rng.choice(NOUNS)} when the {rng.choice(NOUNS)} "
        f"{rng.choice(VERBS)} it in the {rng.choice(NOUNS)}."
    )


def shape(path: Path, colour: str, seed: int) -> None:
    """A picture of one coloured disc on a noisy ground."""
    ground = np.random.default_rng(seed).integers(200, 256, (60, 80, 3), dtype=np.uint8)
    picture = Image.fromarray(ground)
    ImageDraw.Draw(picture).ellipse((15, 10, 55, 50), fill=COLOURS[colour])
    picture.save(path)


def page(rng: random.Random, number: int, colour: str, extra: str = "") -> str:
    """An HTML page with a logo, two paragraphs and a captioned picture."""
    return f"""<html lang="en"><head><title>Page {number}</title></head><body><img src="logo.png" alt="logo">
<h1>How the {colour} disc works, part {number}</h1><p>{" ".join(sentence(rng) for _ in range(6))}</p>
<figure><img src="disc-{number}.png" alt="a disc">
<figcaption>A {colour} disc in example {number}</figcaption></figure>
<p>{" ".join(sentence(rng) for _ in range(4))} {extra}</p></body></html>"""


def write_corpus(folder: Path, num_pages: int = 40) -> None:
    """Write the corpus; equal arguments give equal bytes."""
    folder.mkdir(parents=True)
    rng = random.Random(1)
    (folder / "logo.png").write_bytes(make.picture(64, 64, seed=999))
    for number in range(num_pages):
        colour = list(COLOURS)[number % 4]
        extra = "Write to anna.berg@inselmuseum.org or call +49 30 901820." if number == 3 else ""
        html = page(rng, number, colour, extra)
        (folder / f"page-{number:03}.html").write_text(html)
        shape(folder / f"disc-{number}.png", colour, number)
        if number == 5:
            (folder / "page-copy.html").write_text(html)
    (folder / "notes.txt").write_text(
        "\n\n".join(" ".join(sentence(rng) for _ in range(5)) for _ in range(4))
    )
    (folder / "clip.mp4").write_bytes(make.video())
    (folder / "clip.vtt").write_text(
        "WEBVTT\n\n00:00.000 --> 00:01.000\nThe disc moves to the left.\n\n"
        "00:01.000 --> 00:02.000\nThe disc moves to the right.\n"
    )
    (folder / "broken.html").write_bytes(b"\x7fELF\x00\x01\x02\x03" * 50)
