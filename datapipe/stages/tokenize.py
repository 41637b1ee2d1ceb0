"""Tokenize: a document's stream becomes ids, and its pictures become model-sized bytes with placeholder ids.

Owns the layout of a token row, the size of pictures, and the training of a byte-level BPE. Does not choose
what is in the stream (`interleave`) and does not cut pictures into patches: the trainer does, from the bytes
stored here.

A document is `BEGIN_OF_DOCUMENT`, its segments in order, `END_OF_DOCUMENT`:

    text     its ids; two texts in a row have an empty line between them, which belongs to the first
    image    START_OF_IMAGE, IMAGE x n, END_OF_IMAGE
    video    segments of up to `max_segment_patches` temporal patches, each patch as its time in plain text,
             START_OF_IMAGE, VIDEO x n, END_OF_IMAGE

Spans tile the row. There is one for each picture and each video segment, in the order of `images`, and for a
text one for each run of tokens that the same mask touches. Text trains with weight 1, or 0 where a `no_loss`
mask touches the token; the end of the document trains too; everything else has weight 0.

Source: MiniMax-M3's processor (`transformers`, minimax_m3_vl), whose format this is.
"""

import dataclasses
import functools
import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
from PIL import Image, ImageDraw

from datapipe.decode import image as image_decoder
from datapipe.spec import TokenizeSpec
from schemas import media as media_schema
from schemas import tokens, vocabulary

VERSION = "1"

TEXT_SEPARATOR = "\n\n"
NEEDED_TOKENS = (
    vocabulary.BEGIN_OF_DOCUMENT,
    vocabulary.END_OF_DOCUMENT,
    vocabulary.START_OF_IMAGE,
    vocabulary.IMAGE,
    vocabulary.VIDEO,
    vocabulary.END_OF_IMAGE,
)
# What a masked-out part of a picture shows: the mean of CLIP's pictures, which normalisation turns into zero.
BLANK_COLOR = (123, 117, 104)

Row = dict[str, Any]
Media = tuple[dict[str, Row], dict[str, list[Row]]]  # see `_index`


def train_tokenizer(texts: Iterable[str], spec: TokenizeSpec) -> str:
    """Return the `tokenizer.json` of a byte-level BPE trained on `texts`, special tokens first, from id 0.

    The same texts give the same tokenizer in any order. Every string round-trips, for all 256 bytes are in
    it.
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=list(vocabulary.SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def check_tokenizer(tokenizer_json: str) -> None:
    """Check that a tokenizer can be used.

    Raises:
        ValueError: it is no `tokenizer.json`, or lacks a special token.
    """
    _encoder(tokenizer_json)


def tokenize(
    batch: pa.RecordBatch, media: pa.Table, tokenizer_json: str, spec: TokenizeSpec
) -> pa.RecordBatch:
    """Return the token rows of interleaved documents; `media` holds the pictures and frames that they show.

    A stretch of video between two sampled frames shows nothing and has no tokens.

    Raises:
        ValueError: the tokenizer lacks a special token, or `media` lacks a segment's medium or has its error.
    """
    encoder, shown = _encoder(tokenizer_json), _index(batch, media)
    documents = batch.select(["doc_id", "segments", "masks"]).to_pylist()
    texts = [text for document in documents for text in _texts(document["segments"])]
    encodings = iter(encoder.encode_batch(texts, add_special_tokens=False))
    rows = [_tokenized(document, encodings, shown, encoder, spec) for document in documents]
    return pa.RecordBatch.from_pylist(rows, schema=tokens.SCHEMA)


def decode(token_ids: list[int], tokenizer_json: str) -> str:
    """Return what tokens say, special ones by name."""
    return str(_encoder(tokenizer_json).decode(token_ids, skip_special_tokens=False))


def offsets(segments: list[Row], number: int, tokenizer_json: str) -> list[tuple[int, int]]:
    """Return the characters [start, end) that each token of text segment `number` of a stream has bytes of.

    Those past the segment's end are the separator to the next text.
    """
    assert segments[number]["kind"] == "text"
    following = segments[number + 1] if number + 1 < len(segments) else None
    (text,) = itertools.islice(_texts([segments[number], *([following] if following else [])]), 1)
    return list(_encoder(tokenizer_json).encode(text, add_special_tokens=False).offsets)


def smart_resize(height: int, width: int, spec: TokenizeSpec) -> tuple[int, int]:
    """Return the (height, width) at which the model sees a picture.

    Both are multiples of `patch_size * merge_size`; the area is at most `max_pixels`, and at least
    `min_pixels` unless that contradicts; the aspect is kept as far as this allows.

    Source: `smart_resize` of the M3 and Qwen-VL processors. Theirs refuse an aspect above 200 and may exceed
    `max_pixels` below it; here the long side gives way.
    """
    factor = spec.patch_size * spec.merge_size
    sides = [round(side / factor) * factor for side in (height, width)]
    if math.prod(sides) < spec.min_pixels:
        scale = math.sqrt(spec.min_pixels / (height * width))
        sides = [math.ceil(side * scale / factor) * factor for side in (height, width)]
    if math.prod(sides) > spec.max_pixels:
        scale = math.sqrt(height * width / spec.max_pixels)
        sides = [max(1, math.floor(side / scale / factor)) * factor for side in (height, width)]
        longest = spec.max_pixels // min(sides) // factor * factor
        sides = [min(side, longest) for side in sides]
    return sides[0], sides[1]


# ---- rows


@dataclasses.dataclass
class _Stream:
    """A token row while it is being written."""

    input_ids: list[int] = dataclasses.field(default_factory=list)
    spans: list[Row] = dataclasses.field(default_factory=list)
    images: list[Row] = dataclasses.field(default_factory=list)

    def add(
        self,
        ids: list[int],
        kind: str,
        segment: int = -1,
        loss_weight: float = 0.0,
        reason: str | None = None,
    ) -> None:
        """Append a span."""
        if ids:
            start = len(self.input_ids)
            self.input_ids += ids
            self.spans.append(
                {
                    "start": start,
                    "end": len(self.input_ids),
                    "kind": kind,
                    "segment": segment,
                    "loss_weight": loss_weight,
                    "reason": reason,
                }
            )


def _tokenized(
    document: Row,
    encodings: Iterator[tokenizers.Encoding],
    media: Media,
    encoder: tokenizers.Tokenizer,
    spec: TokenizeSpec,
) -> Row:
    """Return a document's token row; takes its texts from `encodings`."""
    stream = _Stream()
    stream.add([_special(encoder, vocabulary.BEGIN_OF_DOCUMENT)], "special")
    for number, segment in enumerate(document["segments"]):
        masks = [mask for mask in document["masks"] if mask["segment"] == number]
        if segment["kind"] == "text":
            _add_text(stream, number, next(encodings), masks)
            continue
        frames = _frames(segment, media)
        if frames is None:
            raise ValueError(
                f"document {document['doc_id']}, segment {number}: medium {segment['media_id']} "
                "is not in the media table or has an error; mask_media drops such segments"
            )
        for shown in [frames] if segment["kind"] == "image" else _video_segments(frames, spec):
            _add_frames(stream, number, segment, shown, masks, encoder, spec)
    stream.add([_special(encoder, vocabulary.END_OF_DOCUMENT)], "special", loss_weight=1.0)
    return {"doc_id": document["doc_id"], "num_tokens": len(stream.input_ids), **vars(stream)}


# ---- text


@functools.lru_cache(maxsize=2)
def _encoder(tokenizer_json: str) -> tokenizers.Tokenizer:
    """Return the tokenizer for raw text: whatever it says is text, also where it spells a special token.

    Raises:
        ValueError: it is no tokenizer, or lacks a special token that the stream needs.
    """
    try:
        value = json.loads(tokenizer_json)
        for token in value["added_tokens"]:
            token["special"] = True  # only such tokens are left alone by `encode_special_tokens`
        value.update(post_processor=None, truncation=None, padding=None)
        encoder = tokenizers.Tokenizer.from_str(json.dumps(value))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"no `tokenizer.json` of Hugging Face: {error!r}") from error
    encoder.encode_special_tokens = True
    missing = [token for token in NEEDED_TOKENS if encoder.token_to_id(token) is None]
    if missing:
        raise ValueError(
            f"lacks the special tokens {missing}; add them, "
            "or leave `tokenizer` empty to train one"
        )
    return encoder


def _special(encoder: tokenizers.Tokenizer, token: str) -> int:
    token_id = encoder.token_to_id(token)
    assert token_id is not None, token  # `_encoder` saw to it
    return token_id


def _texts(segments: list[Row]) -> Iterator[str]:
    """Yield the texts of a document, each with the separator it needs before the next."""
    for segment, following in itertools.pairwise([*segments, None]):
        if segment is not None and segment["kind"] == "text":
            before_text = following is not None and following["kind"] == "text"
            yield segment["text"] + (TEXT_SEPARATOR if before_text else "")


def _add_text(stream: _Stream, number: int, encoding: tokenizers.Encoding, masks: list[Row]) -> None:
    """Append a text: one span for each run of tokens that the same mask touches, or none.

    A token's offsets are the characters it has a byte of, so a mask reaches every token of a character of
    several.
    """
    reasons = np.full(len(encoding.ids), None, dtype=object)
    if masks:
        starts, ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
        for mask in reversed(masks):  # where two masks touch a token, the first names the reason
            if mask["action"] == "no_loss":
                low, high = _bounds(mask)
                reasons[(starts < high) & (ends > low)] = mask["reason"]
    start = 0
    for reason, run in itertools.groupby(reasons.tolist()):
        end = start + len(list(run))
        stream.add(encoding.ids[start:end], "text", number, 1.0 if reason is None else 0.0, reason)
        start = end


def _bounds(mask: Row) -> tuple[float, float]:
    """Return a mask's [start, end), a side left open as infinite."""
    start, end = mask["start"], mask["end"]
    return -math.inf if start is None else start, math.inf if end is None else end


# ---- pictures and video


def _index(batch: pa.RecordBatch, table: pa.Table) -> Media:
    """Return the pictures that a batch shows by media_id, and the frames by that of their video."""
    named = pc.unique(pc.struct_field(batch["segments"].flatten(), "media_id")).drop_null()
    shown = pc.or_(pc.is_in(table["media_id"], named), pc.is_in(table["parent_id"], named))
    return media_schema.index_by_id(table.filter(pc.and_(shown, pc.not_equal(table["kind"], "video"))))


def _frames(segment: Row, media: Media) -> list[Row] | None:
    """Return the picture or the frames that a segment shows; None where its medium cannot be had."""
    pictures, frames_of_video = media
    if segment["kind"] == "image":
        return [pictures[segment["media_id"]]] if segment["media_id"] in pictures else None
    if segment["media_id"] not in frames_of_video:
        return None
    start_s, end_s = segment["t_start_s"], segment["t_end_s"]
    return [
        frame
        for frame in frames_of_video[segment["media_id"]]
        if (start_s is None or start_s <= frame["t_s"]) and (end_s is None or frame["t_s"] < end_s)
    ]


def _video_segments(frames: list[Row], spec: TokenizeSpec) -> Iterator[list[Row]]:
    """Yield the frames of each video segment, the last frame repeated to fill its temporal patch."""
    padded = frames + frames[-1:] * (-len(frames) % spec.temporal_patch_size)
    size = spec.temporal_patch_size * spec.max_segment_patches
    for first in range(0, len(padded), size):
        yield padded[first : first + size]


def _add_frames(
    stream: _Stream,
    number: int,
    segment: Row,
    frames: list[Row],
    masks: list[Row],
    encoder: tokenizers.Tokenizer,
    spec: TokenizeSpec,
) -> None:
    """Append a picture (one frame) or a video segment: a span of its ids, and its bytes in `images`."""
    pixels, grid = _pixels(frames, masks, spec)
    first_of_patch = frames if segment["kind"] == "image" else frames[:: spec.temporal_patch_size]
    placeholder = vocabulary.IMAGE if segment["kind"] == "image" else vocabulary.VIDEO
    start, fill, end = (
        _special(encoder, token)
        for token in (vocabulary.START_OF_IMAGE, placeholder, vocabulary.END_OF_IMAGE)
    )
    ids: list[int] = []
    for frame in first_of_patch:
        if segment["kind"] == "video":
            ids += encoder.encode(vocabulary.timestamp(frame["t_s"]), add_special_tokens=False).ids
        ids += [start, *[fill] * (math.prod(grid) // spec.merge_size**2), end]
    token_start = len(stream.input_ids) + ids.index(fill)
    stream.images.append(
        {
            "media_id": segment["media_id"],
            "token_start": token_start,
            "bytes": pixels,
            "grid_t": len(first_of_patch),
            "grid_h": grid[0],
            "grid_w": grid[1],
        }
    )
    reasons = [
        mask["reason"]
        for mask in masks
        if mask["action"] == "no_loss" and any(_touches(mask, frame) for frame in frames)
    ]
    stream.add(ids, segment["kind"], number, 0.0, reasons[0] if reasons else None)


def _touches(mask: Row, frame: Row) -> bool:
    """Return whether a mask holds at a frame's time; a picture has none, and every mask of it holds."""
    low, high = _bounds(mask)
    return frame["t_s"] is None or low <= frame["t_s"] * 1000 < high


def _pixels(frames: list[Row], masks: list[Row], spec: TokenizeSpec) -> tuple[bytes, tuple[int, int]]:
    """Return the frames at model size, stacked downwards in one PNG, and their (height, width) in patches."""
    shown = [_without_masked(frame, masks) for frame in frames]
    height, width = smart_resize(shown[0].height, shown[0].width, spec)
    stack = Image.new("RGB", (width, height * len(shown)))
    for place, pixels in enumerate(shown):
        stack.paste(pixels.resize((width, height), Image.Resampling.BICUBIC), (0, place * height))
    sink = io.BytesIO()
    stack.save(sink, "PNG", compress_level=1)
    return sink.getvalue(), (height // spec.patch_size, width // spec.patch_size)


def _without_masked(frame: Row, masks: list[Row]) -> Image.Image:
    """Return a frame's canonical pixels, blank where a drop mask covers them."""
    pixels = image_decoder.decode(frame["bytes"], frame["width"] * frame["height"]).pixels
    for mask in masks:
        if mask["action"] == "drop" and mask["box"] is not None and _touches(mask, frame):
            left, top, right, bottom = mask["box"]
            corners = (
                math.floor(left * pixels.width),
                math.floor(top * pixels.height),
                math.ceil(right * pixels.width) - 1,
                math.ceil(bottom * pixels.height) - 1,
            )
            ImageDraw.Draw(pixels).rectangle(corners, fill=BLANK_COLOR)
    return pixels
