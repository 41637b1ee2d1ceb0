"""Image hashing and copies of pictures, beside imagehash and what imagededup does.

Run as `python -m tests.bench.image_hash`; takes some minutes, one core.

- Speed: `image.describe` (decode, canonical pixels and their hash, perceptual hash) on JPEGs of 61 kB,
  450 x 450, against `imagehash` (pHash, pHash after JPEG draft scaling, dHash) and against pHash as
  imagededup 0.3 computes it (RGB, 32 x 32 by Lanczos, scipy's DCT), which cannot be installed here for it
  needs torchvision. They decode with Pillow, as these libraries do, and compute one hash each, none of the
  pixels.
- Copies: of pictures from GIMP's manual and of slides made here, each class of copy is a pair that should be
  found. Others should not: slides with one other word, flat colours, mirrored pictures, and all pairs of
  different originals. Ours is candidates by hash, then pixels; the peer is pHash at its usual distance of 10.
- Search: all pairs within 10 bits among 100,000 hashes, of which 10,000 are near copies, against a BK-tree,
  which imagededup searches with, measured on a part of the queries.
"""

import functools
import io
import math
import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import imagehash
import numpy as np
import scipy.fftpack  # type: ignore[import-untyped]
from PIL import Image, ImageDraw, ImageFont

from datapipe import hamming
from datapipe.decode import compare, image, svg
from jobs.fetch import fetch
from tests.bench import report

GOAL_PER_S = 400.0
NUM_SPEED, NUM_PICTURES, NUM_SLIDES = 200, 100, 40
NUM_HASHES, NUM_PLANTED, NUM_TREE_QUERIES, MAX_DISTANCE = 100_000, 10_000, 200, 10
MAX_PIXELS = 10**9
LANCZOS = Image.Resampling.LANCZOS


def main() -> None:
    """Measure and write `results/image_hash.json`."""
    rows = [*speed(), *copies(), *search()]
    report.write("image_hash", rows, ["pillow", "simplejpeg", "blake3", "numpy", "imagehash", "scipy"])


# ---- speed


def speed() -> list[dict[str, Any]]:
    data = [jpeg(seed) for seed in range(NUM_SPEED)]
    size_kb = sum(map(len, data)) / len(data) / 1000
    contestants: dict[str, Callable[[bytes], Any]] = {
        "ours": lambda d: image.describe(d, MAX_PIXELS),
        "imagehash.phash": lambda d: imagehash.phash(Image.open(io.BytesIO(d))),
        "imagehash.phash after draft": drafted_phash,
        "imagehash.dhash": lambda d: imagehash.dhash(Image.open(io.BytesIO(d))),
        "pHash as imagededup": imagededup_phash,
    }
    seconds = report.in_turn({n: functools.partial(_each, f, data) for n, f in contestants.items()})
    per_s = {name: len(data) / median(taken) for name, taken in seconds.items()}
    best = {name: round(len(data) / min(taken)) for name, taken in seconds.items()}
    work = f"{len(data)} JPEGs of 450 x 450, {size_kb:.0f} kB: decode, perceptual hash, hash of the pixels"
    quality = {"pixels differ from Pillow's": sum(not _equals_pillow(d) for d in data[:50])}
    return [
        report.row(
            work,
            per_s["ours"],
            "images/s on one core",
            peer=per_s[name],
            peer_name=name,
            goal=GOAL_PER_S,
            quality={**quality, "fastest round": best["ours"], "fastest round of the peer": best[name]},
        )
        for name in per_s
        if name != "ours"
    ]


def jpeg(seed: int) -> bytes:
    """A noisy picture of about 61 kB."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
    levels = np.asarray(small.resize((450, 450), Image.Resampling.BICUBIC)) + rng.normal(0, 15, (450, 450, 3))
    return encoded(Image.fromarray(levels.clip(0, 255).astype(np.uint8)), "JPEG", quality=82)


def _each(work: Callable[[bytes], Any], data: Sequence[bytes]) -> None:
    for one in data:
        work(one)


def _equals_pillow(data: bytes) -> bool:
    return (
        image.decode(data, MAX_PIXELS).array.tobytes()
        == Image.open(io.BytesIO(data)).convert("RGB").tobytes()
    )


def drafted_phash(data: bytes) -> imagehash.ImageHash:
    picture = Image.open(io.BytesIO(data))
    picture.draft("L", (64, 64))
    return imagehash.phash(picture)


def imagededup_phash(data: bytes) -> int:
    picture = Image.open(io.BytesIO(data)).convert("RGB").resize((32, 32), LANCZOS).convert("L")
    low = scipy.fftpack.dct(scipy.fftpack.dct(np.asarray(picture, dtype=float), axis=0), axis=1)[:8, :8]
    bits = low >= np.median(low.ravel()[1:])
    return int(np.packbits(bits.ravel()).view(">u8")[0])


# ---- copies


def copies() -> list[dict[str, Any]]:
    originals = [*manual_pictures(), *(slide(seed) for seed in range(NUM_SLIDES))]
    found: dict[str, list[tuple[bool, bool]]] = {}
    for number, picture in enumerate(originals):
        whole = encoded(picture)
        for name, make in CLASSES.items():
            found.setdefault(name, []).append(_is_copy(whole, make(picture, number)))
    rows = [_class_row(name, pairs, should_meet=True) for name, pairs in found.items()]
    slides = [_is_copy(encoded(slide(seed)), encoded(slide(seed, 3))) for seed in range(NUM_SLIDES)]
    saved = [
        _is_copy(encoded(slide(seed)), encoded(slide(seed, 3), "JPEG", quality=70))
        for seed in range(NUM_SLIDES)
    ]
    mirrored = [
        _is_copy(encoded(p), encoded(p.transpose(Image.Transpose.FLIP_LEFT_RIGHT))) for p in originals
    ]
    shades = [Image.new("RGB", (300, 200), (level, level, 255 - level)) for level in range(0, 256, 17)]
    flat = [_is_copy(encoded(one), encoded(two)) for i, one in enumerate(shades) for two in shades[:i]]
    others = {
        "slides that differ by one word": slides,
        "slides that differ by one word, one of them JPEG": saved,
        "mirrored": [pair for pair, p in zip(mirrored, originals, strict=True) if not _is_symmetric(p)],
        "flat colours": flat,
        "different originals": _pairs_of_different(originals),
    }
    return [*rows, *(_class_row(name, pairs, should_meet=False) for name, pairs in others.items())]


def _class_row(name: str, pairs: list[tuple[bool, bool]], should_meet: bool) -> dict[str, Any]:
    ours, peer = (sum(pair[i] for pair in pairs) for i in (0, 1))
    unit = f"found of {len(pairs)}" if should_meet else f"false merges of {len(pairs)}"
    return report.row(
        f"{'copies' if should_meet else 'no copies'}: {name}",
        ours,
        unit,
        peer=peer,
        peer_name="imagehash.phash at 10 bits",
        better="higher" if should_meet else "lower",
        goal=None if should_meet else 0.0,
    )


def _is_copy(one: bytes, two: bytes) -> tuple[bool, bool]:
    """What we say of two pictures, and what pHash says."""
    first, second = image.decode(one, MAX_PIXELS), image.decode(two, MAX_PIXELS)
    ours = first.pixels_id == second.pixels_id
    if not ours and first.perceptual_hash is not None and second.perceptual_hash is not None:
        near = (first.perceptual_hash ^ second.perceptual_hash).bit_count() <= MAX_DISTANCE
        small = [compare.thumbnail(d.array, d.mime) for d in (first, second)]
        ours = near and compare.difference(small[0], small[1]) <= 1
    opened = [Image.open(io.BytesIO(data)) for data in (one, two)]
    return ours, bool(imagehash.phash(opened[0]) - imagehash.phash(opened[1]) <= MAX_DISTANCE)


def _pairs_of_different(originals: list[Image.Image]) -> list[tuple[bool, bool]]:
    """Compare all originals with all; only those with near hashes need a closer look."""
    decoded = [image.decode(encoded(p), MAX_PIXELS) for p in originals]
    hashes = [imagehash.phash(p) for p in originals]
    pairs = []
    for i, one in enumerate(decoded):
        for j, two in enumerate(decoded[:i]):
            near = (
                one.perceptual_hash is not None
                and two.perceptual_hash is not None
                and (one.perceptual_hash ^ two.perceptual_hash).bit_count() <= MAX_DISTANCE
            )
            ours = near and compare.difference(*(compare.thumbnail(d.array, d.mime) for d in (one, two))) <= 1
            pairs.append((ours, bool(hashes[i] - hashes[j] <= MAX_DISTANCE)))
    return pairs


def _is_symmetric(picture: Image.Image) -> bool:
    one = compare.thumbnail(np.asarray(picture), "image/png")
    two = compare.thumbnail(np.asarray(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)), "image/png")
    return compare.difference(one, two) < 3


def resized(picture: Image.Image, scale: float) -> Image.Image:
    return picture.resize((round(picture.width * scale), round(picture.height * scale)), LANCZOS)


def cropped(picture: Image.Image, share: float, seed: int) -> Image.Image:
    """A picture without `share` of its width and height, cut off at edges chosen by the seed."""
    rng = random.Random(seed)
    width, height = (math.ceil(n * (1 - share)) for n in picture.size)
    left, top = rng.randint(0, picture.width - width), rng.randint(0, picture.height - height)
    return picture.crop((left, top, left + width, top + height))


def as_jpeg(quality: int, picture: Image.Image, _: int) -> bytes:
    return encoded(picture, "JPEG", quality=quality)


def as_resized(scale: float, picture: Image.Image, _: int) -> bytes:
    return encoded(resized(picture, scale))


def turned(picture: Image.Image) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif.tobytes(), quality=90)


def with_alpha(picture: Image.Image) -> bytes:
    """The picture with its white made transparent, as logos are saved."""
    white = picture.convert("L").point([255] * 255 + [0])
    return encoded(Image.merge("RGBA", (*picture.split(), white)))


CLASSES: dict[str, Callable[[Image.Image, int], bytes]] = {
    **{f"JPEG quality {q}": functools.partial(as_jpeg, q) for q in (90, 70, 50, 30)},
    **{f"resized to {s:.0%}": functools.partial(as_resized, s) for s in (0.75, 0.5, 0.33, 1.5)},
    "resized to 50%, JPEG 50": lambda p, _: encoded(resized(p, 0.5), "JPEG", quality=50),
    "WebP quality 50": lambda p, _: encoded(p, "WEBP", quality=50),
    "AVIF quality 50": lambda p, _: encoded(p, "AVIF", quality=50),
    "GIF, 256 colours": lambda p, _: encoded(p.quantize(256), "GIF"),
    "CMYK JPEG": lambda p, _: encoded(p.convert("CMYK"), "JPEG", quality=90),
    "turned, upright by EXIF": lambda p, _: turned(p),
    "white made transparent": lambda p, _: with_alpha(p),
    "cropped by 5% (another picture by our rule)": lambda p, n: encoded(cropped(p, 0.05, n)),
    "cropped by 10% (another picture by our rule)": lambda p, n: encoded(cropped(p, 0.1, n)),
}


def manual_pictures() -> list[Image.Image]:
    """Pictures of GIMP's manual, no two of which look alike: chosen by the order of their names' hashes."""
    (folder, _) = fetch("demo")
    paths = sorted(p for p in folder.rglob("images/**/*") if p.suffix in (".jpg", ".png"))
    random.Random(0).shuffle(paths)
    chosen: list[Image.Image] = []
    for path in paths:
        decoded = image.decode(path.read_bytes(), MAX_PIXELS)
        if min(decoded.width, decoded.height) >= 120 and decoded.perceptual_hash is not None:
            hashes = [image.perceptual_hash(picture) for picture in chosen]
            if all(h is None or (h ^ decoded.perceptual_hash).bit_count() > 12 for h in hashes):
                chosen.append(decoded.pixels)
        if len(chosen) == NUM_PICTURES:
            break
    return chosen


def slide(seed: int, changed: int | None = None) -> Image.Image:
    """A slide of text; `changed` puts another word into that line."""
    rng, words = random.Random(seed), WORDS
    lines = [[rng.choice(words) for _ in range(7)] for _ in range(12)]
    if changed is not None:
        old = lines[changed][4]
        lines[changed][4] = rng.choice([w for w in words if w != old and abs(len(w) - len(old)) < 2])
    picture = Image.new("RGB", (1280, 720), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.truetype(svg._fonts()[0], 24)
    draw.rectangle((0, 0, 1280, 80), fill=(30, 60, 140 - 10 * (seed % 4)))
    for number, line in enumerate(lines):
        draw.text((60, 110 + 48 * number), " ".join(line), font=font, fill=(20, 20, 20))
    return picture


WORDS = (
    *("method", "system", "value", "energy", "result", "change", "model", "theory", "increase", "decrease"),
    *("positive", "negative", "large", "small", "river", "before", "after", "never", "always", "light"),
)


def encoded(picture: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


# ---- search


def search() -> list[dict[str, Any]]:
    hashes = planted()
    seconds = report.in_turn({"ours": lambda: hamming.near_pairs(hashes, MAX_DISTANCE, 16)}, rounds=3)
    earlier, later, *_ = hamming.near_pairs(hashes, MAX_DISTANCE, NUM_HASHES)
    tree = Tree(hashes.tolist())
    queries = np.random.default_rng(1).choice(NUM_HASHES, NUM_TREE_QUERIES, replace=False).tolist()
    hits: list[set[int]] = []
    taken = report.in_turn(
        {"tree": lambda: hits.extend(tree.near(int(hashes[q])) for q in queries)}, rounds=1
    )
    mine: dict[int, set[int]] = {q: {q} for q in queries}
    for one, two in zip(earlier.tolist(), later.tolist(), strict=True):
        for query, other in ((one, two), (two, one)):
            if query in mine:
                mine[query].add(other)
    agree = sum(mine[query] == hit for query, hit in zip(queries, hits[-len(queries) :], strict=True))
    row = report.row(
        f"all pairs within {MAX_DISTANCE} bits of {NUM_HASHES:,} hashes",
        median(seconds["ours"]),
        "s",
        peer=taken["tree"][0] * NUM_HASHES / NUM_TREE_QUERIES,
        peer_name=f"BK-tree in Python, from {NUM_TREE_QUERIES} queries",
        better="lower",
        quality={"pairs": len(earlier), "queries with the tree's answer": f"{agree} of {len(queries)}"},
    )
    return [row]


def planted() -> np.ndarray:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, NUM_HASHES, dtype=np.uint64)
    for source, target in rng.integers(0, NUM_HASHES, (NUM_PLANTED, 2)):
        changed = sum(1 << int(bit) for bit in rng.choice(64, rng.integers(0, 11), replace=False))
        hashes[target] = hashes[source] ^ np.uint64(changed)
    return hashes


class Tree:
    """A BK-tree over 64-bit hashes (Burkhard and Keller, 1973)."""

    def __init__(self, hashes: list[int]) -> None:
        self.root: tuple[int, list[int], dict[int, Any]] = (hashes[0], [0], {})
        for row, value in enumerate(hashes[1:], 1):
            node = self.root
            while distance := (node[0] ^ value).bit_count():
                if distance not in node[2]:
                    node[2][distance] = (value, [], {})
                node = node[2][distance]
            node[1].append(row)

    def near(self, value: int) -> set[int]:
        """Return the rows within `MAX_DISTANCE` bits."""
        found: set[int] = set()
        waiting = [self.root]
        while waiting:
            own, rows, children = waiting.pop()
            distance = (own ^ value).bit_count()
            if distance <= MAX_DISTANCE:
                found.update(rows)
            reach = range(distance - MAX_DISTANCE, distance + MAX_DISTANCE + 1)
            waiting += [children[d] for d in reach if d in children]
        return found


if __name__ == "__main__":
    main()
