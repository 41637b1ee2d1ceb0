"""Tar files of samples (WebDataset): files that share a name up to its first point are one document.

Owns the grouping of files into samples, the index of where each begins, and how the files of one sample make
a document: text and JSON say what is said, pictures and videos are shown. A JSON with `texts` and `images` is
interleaved; its pictures are the frames of a TIFF (MINT-1T), or the sample's picture files.

    0001.jpg 0001.txt            picture, then its caption
    0002.mp4 0002.json           video, then the caption in the JSON
    0003.json 0003.tiff          interleaved

A frame of a TIFF becomes a file of its own without loss: its content id is that of what is stored, not a hash
from the JSON, which is known to be wrong in published files.
"""

import array
import dataclasses
import functools
import io
import posixpath
import re
import sys
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from PIL import Image

from datapipe.errors import FileTooLarge, MalformedMarkup, SourceError
from datapipe.sources import corpora_rows, json_lines, sessions
from datapipe.sources.items import Item, Member, RawDocument
from datapipe.sources.json_media import NOWHERE
from datapipe.sources.text import decode
from schemas import ids

MAX_SAMPLE_BYTES = 1 << 30  # all files of one sample, which are in memory together
MAX_FRAME_PIXELS = 178_956_970  # the hard limit of Pillow

_BLOCK_BYTES = 512
_KEY = re.compile(r"((?:.*/)?[^/.][^/]*?)\.([^/]*)", re.DOTALL)
_TEXTS = ("txt", "text", "caption", "cap")
_IMAGES = ("jpg", "jpeg", "jpe", "png", "webp", "gif", "bmp", "avif", "jp2", "ppm", "pbm", "pgm")
_TIFFS = ("tif", "tiff")
_VIDEOS = ("mp4", "m4v", "webm", "mkv", "mov", "avi", "mpg", "mpeg", "ogv", "flv")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_FAULTS = (tarfile.TarError, EOFError, ValueError, OSError)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A file in the tar: where its header and its bytes begin, and which sample it is of."""

    name: str
    key: str
    header: int
    offset: int
    size_bytes: int


def index(file: BinaryIO) -> bytes:
    """Return where each sample begins, as 8 little-endian bytes each. Reads the headers alone."""
    offsets = array.array("Q", (sample[0].header for sample in _samples(_entries(file, 0), is_strict=False)))
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets.tobytes()


def count(file: BinaryIO, index: bytes | None = None) -> int:
    """Return the number of samples, up to where a broken file breaks.

    Raises:
        MalformedMarkup: it is no tar file.
    """
    if index is not None:
        return len(index) // 8
    return sum(1 for _ in _samples(_entries(file, 0), is_strict=False))


def members(file: BinaryIO, start: int, stop: int, index: bytes | None = None) -> Iterator[Member]:
    """Yield the samples `start` to `stop` (exclusive), each under its key.

    Args:
        index: what `index` returned, to go to `start` at once; without it the headers before are read.

    Raises:
        MalformedMarkup: it is no tar file, or it breaks before `stop`.
    """
    if start >= stop:
        return
    begin = 0
    if index:
        if start >= len(index) // 8:
            return
        begin, start, stop = int.from_bytes(index[8 * start : 8 * start + 8], "little"), 0, stop - start
    for number, sample in enumerate(_samples(_entries(file, begin), is_strict=True)):
        if number >= start:
            yield _member(file, sample)
        if number + 1 >= stop:
            return


# ---- files and samples


def _entries(file: BinaryIO, begin: int) -> Iterator[_Entry]:
    """Yield the files of the tar from a header on; raises at a break."""
    file.seek(begin)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # which would grow with the file
                if not info.isreg():
                    continue
                name = info.name.removeprefix("./")
                named = _KEY.fullmatch(name)
                if named is not None:
                    yield _Entry(name, named.group(1), info.offset, info.offset_data, info.size)
            end = archive.offset
    except tarfile.TarError as error:
        raise MalformedMarkup(f"tar: {error}") from error
    _check_end(file, end)


def _check_end(file: BinaryIO, end: int) -> None:
    """Refuse a tar that stops at something other than an empty block or the end of the file."""
    file.seek(end)
    if file.read(_BLOCK_BYTES).strip(b"\0"):
        raise MalformedMarkup(f"tar: broken at byte {end}")


def _samples(entries: Iterator[_Entry], is_strict: bool) -> Iterator[list[_Entry]]:
    """Yield files that follow each other and share a key. A break ends it; if strict, by raising."""
    sample: list[_Entry] = []
    broken: MalformedMarkup | None = None
    while True:
        try:
            entry = next(entries, None)
        except MalformedMarkup as error:
            entry, broken = None, error
        if sample and (entry is None or entry.key != sample[0].key):
            yield sample
            sample = []
        if entry is None:
            break
        sample.append(entry)
    if broken is not None and is_strict:
        raise broken


def _member(file: BinaryIO, sample: list[_Entry]) -> Member:
    key = sample[0].key
    if (size_bytes := sum(entry.size_bytes for entry in sample)) > MAX_SAMPLE_BYTES:
        return _refused(key, FileTooLarge(f"{size_bytes} bytes in one sample, more than {MAX_SAMPLE_BYTES}"))
    files: dict[str, bytes] = {}
    for entry in sample:
        file.seek(entry.offset)
        files[entry.name] = data = file.read(entry.size_bytes)
        if len(data) < entry.size_bytes:
            return _refused(key, MalformedMarkup(f"{entry.name}: cut off after {len(data)} bytes"))
    content = "".join(f"{_extension(name)}\0{ids.content_id(files[name])}\n" for name in sorted(files))
    return Member(key, content.encode(), functools.partial(_document, files), functools.partial(_load, files))


def _refused(key: str, error: Exception) -> Member:
    def document() -> RawDocument:
        raise error

    return Member(key, str(error).encode(), document, functools.partial(_load, {}))


def _load(files: dict[str, bytes], href: str) -> bytes:
    if href not in files:
        raise SourceError(f"{href!r} is not in the sample")
    return files[href]


# ---- a sample as a document


def _document(files: dict[str, bytes]) -> RawDocument:
    """Return the document that the files of a sample make together."""
    row: dict[str, Any] = {}
    for name, data in files.items():
        extension = _extension(name)
        if extension == "json":
            row |= _said(json_lines.parse(data))
        elif extension in _TEXTS:
            row.setdefault("text", decode(data))
    tiffs = [data for name, data in files.items() if _extension(name) in _TIFFS]
    shown = [Item("image", "figure", href=name) for name in files if _extension(name) in _IMAGES]
    videos = [Item("video", "figure", href=name) for name in files if _extension(name) in _VIDEOS]
    if not (row or tiffs or shown or videos):
        raise MalformedMarkup(
            f"no text, picture or session, only {', '.join(sorted(files))}: a tar is read as samples; "
            "unpack it to have such files read as documents"
        )
    if sessions.is_session(row) and shown:
        row = {**row, "image": None, "images": [item.href for item in shown]}
    if isinstance(row.get("texts"), list):
        return corpora_rows.read(row, "", _pictures_of(row, tiffs, shown))
    return corpora_rows.read(
        row, "", [*shown, *(f for data in tiffs for f in _frames(data)), *videos] or None
    )


def _said(value: Any) -> dict[str, Any]:
    """Return what the JSON of a sample says as a row: an object, a caption, or a list of messages."""
    if isinstance(value, dict):
        return value
    return {"text": value} if isinstance(value, str) else {"messages": value}


def _pictures_of(row: dict[str, Any], tiffs: list[bytes], shown: list[Item]) -> list[Item] | None:
    """Return the pictures of an interleaved sample in their order; None where it holds none."""
    if tiffs:
        return [frame for data in tiffs for frame in _frames(data)]
    images = row.get("images")
    names = [image for image in images if image] if isinstance(images, list) else []
    by_name = {posixpath.basename(item.href or ""): item for item in shown}
    by_name |= {_extension_of_path(name): item for name, item in list(by_name.items())}
    if shown and all(isinstance(name, str) and posixpath.basename(name) in by_name for name in names):
        return [by_name[posixpath.basename(name)] for name in names]
    return shown or None


def _frames(data: bytes) -> Iterator[Item]:
    """Yield the frames of a TIFF, each as a file of its own; one that cannot be had keeps its place."""
    try:
        picture = Image.open(io.BytesIO(data), formats=("TIFF",))
        num_frames = getattr(picture, "n_frames", 1)
    except Exception as error:  # Pillow raises whatever its parsers do
        raise MalformedMarkup(f"tiff: {error}") from error
    for number in range(num_frames):
        try:
            picture.seek(number)
            if picture.width * picture.height > MAX_FRAME_PIXELS:
                raise FileTooLarge(f"{picture.width} x {picture.height} pixels")
            yield Item("image", "figure", data=_frame(picture, data, num_frames))
        except Exception:  # as above; the other frames are still good
            yield Item("image", "figure", href=NOWHERE)


def _frame(picture: Image.Image, data: bytes, num_frames: int) -> bytes:
    if num_frames == 1:
        return data
    buffer, profile = io.BytesIO(), picture.info.get("icc_profile")
    if picture.mode in _PNG_MODES:
        picture.save(buffer, "PNG", icc_profile=profile)
    else:
        picture.copy().save(buffer, "TIFF", compression="tiff_adobe_deflate", icc_profile=profile)
    return buffer.getvalue()


def _extension(name: str) -> str:
    """Return the last part of a file's name, lower case: jpg for `0001.seg.JPG`."""
    return name.rpartition(".")[2].lower()


def _extension_of_path(name: str) -> str:
    return name.partition(".")[2]
