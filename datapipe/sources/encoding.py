"""Bytes to characters, for every text format: which encoding a file is in, and what it says.

Owns the choice of an encoding. What cannot be right by accident goes first: a byte order mark, then valid
UTF-8; then what the transport or the file declares, unless the outcome is no writing; then the encoding whose
outcome looks most like writing (`sources.letters`). Labels mean what they mean to browsers: latin-1 and ASCII
are windows-1252, gb2312 is gb18030.
"""

import codecs
import dataclasses
import re

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from datapipe.errors import NotText
from datapipe.sources.letters import LANGUAGES, log_likelihood

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SUPERSETS = {  # what files labelled with the left really hold
    "gbk": "gb18030",
    "gb2312": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "euc_jp": "euc_jis_2004",
    "big5": "big5hkscs",
    "iso8859-11": "cp874",
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
}
_MORE_LABELS = {"hz-gb-2312": "hz", "x-mac-cyrillic": "mac-cyrillic", "utf-32": "utf-32", "ibm850": "cp850"}
_SEVEN_BIT = re.compile(rb"\x1b(?:\$[@AB]|\(J|\$\(D|\$\)C)")  # what ISO-2022-JP and -KR switch with
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_LONG_ASCII = re.compile(rb"([\x00-\x7f]{12})[\x00-\x7f]{8,}")
_SAMPLE_BYTES = 20_000

_MAX_CONTROL_FRAC = 0.01
_MAX_ZERO_FRAC = 0.01
_GOOD_PER_BAD = 4  # a file is UTF-8 with faults when so many of its sequences are right for one that is not
_TRUST = 6.0  # by how much less likely than the best a declared encoding may be (natural logarithm) ...
_TRUST_PER_BYTE = 0.25  # ... and by how much more for each byte beyond ASCII
_USUAL_BONUS = 1.5  # what windows-1252 is ahead of the others, in the same unit
_NO_WRITING_PER_BYTE = -7.0  # below this, nothing was recognised


@dataclasses.dataclass(frozen=True)
class Decoded:
    """The characters of a file, the encoding they were in (Python's name), and what told it.

    `told_by` is `mark`, `zero bytes`, `utf-8` (valid, or nearly so), `declared` or `detected`.
    """

    text: str
    encoding: str
    told_by: str


def decode(data: bytes, *declared: str | None) -> str:
    """Return the characters of a text file.

    Args:
        declared: encodings that the transport and the file itself name, the most trusted first.

    Raises:
        NotText: the bytes are binary.
    """
    return find_encoding(data, *declared).text


def find_encoding(data: bytes, *declared: str | None) -> Decoded:
    """Return the characters of a text file with their encoding and what told it; see `decode`.

    Raises:
        NotText: the bytes are binary.
    """
    labels = [name for name in map(_python_name, declared) if name]
    decoded = _by_mark(data) or _by_zero_bytes(data)
    if decoded is None:
        data = data.replace(b"\0", b"")
        decoded = _seven_bit(data, labels) or _as_utf8(data) or _by_letters(data, labels)
    _refuse_binary(decoded)
    return decoded


def _python_name(label: str | None) -> str | None:
    """Return Python's name of what a label means to browsers; None for labels nobody knows."""
    label = (label or "").strip(" \t\r\n\"'").lower()
    if not label or not label.isascii():
        return None
    name = _MORE_LABELS.get(label) or map_encoding_to_html5(label, fallback_utf8=False)
    if not name and label.startswith("iso-2022"):
        name = label
    if not name:
        return None
    try:
        codecs.lookup(name)
    except LookupError:
        return None
    return _SUPERSETS.get(name, name)


def _by_mark(data: bytes) -> Decoded | None:
    """Decode a file that begins with a byte order mark, if the rest of it agrees."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            text = data[len(mark) :].decode(encoding, errors="replace")
            return None if _num_undecodable(text) > max(2, len(text) // 50) else _told("mark", text, encoding)
    return None


def _by_zero_bytes(data: bytes) -> Decoded | None:
    """Decode UTF-16 and UTF-32 without a mark; a few zero bytes in other text are noise.

    Raises:
        NotText: too many zero bytes for any of that.
    """
    num_zeros = data.count(0)
    if num_zeros <= _MAX_ZERO_FRAC * len(data):
        return None
    zeros = [data[i::4].count(0) for i in range(4)]
    quarter = len(data) // 4
    by_place = {
        "utf-32-le": min(zeros[2:]) > 0.95 * quarter,
        "utf-32-be": min(zeros[:2]) > 0.95 * quarter,
        "utf-16-le": zeros[1] + zeros[3] > 4 * (zeros[0] + zeros[2]),
        "utf-16-be": zeros[0] + zeros[2] > 4 * (zeros[1] + zeros[3]),
    }
    for encoding, fits in by_place.items():
        if fits and quarter:
            text = data.decode(encoding, errors="replace")
            if _num_undecodable(text) + len(_CONTROLS.findall(text)) <= 1 + len(text) // 100:
                return _told("zero bytes", text, encoding)
    raise NotText(f"{num_zeros} zero bytes in {len(data)}: not text")


def _seven_bit(data: bytes, labels: list[str]) -> Decoded | None:
    """Decode encodings that hide behind ASCII: ISO-2022 by its escapes, HZ where it is declared."""
    names = [label for label in labels if label.startswith("iso2022") or label == "hz"]
    if _SEVEN_BIT.search(data):
        names += [label for label in labels if label.startswith("iso-2022")]
        names += ["iso2022_kr"] if b"\x1b$)C" in data else ["iso2022_jp_2004", "iso2022_jp_ext"]
    for name in names:
        try:
            return _told("declared" if name in labels else "detected", data.decode(name), name)
        except UnicodeDecodeError:
            continue
    return None


def _as_utf8(data: bytes) -> Decoded | None:
    """Decode UTF-8. Where few sequences are wrong (a cut end, pieces pasted in), those are windows-1252."""
    try:
        return _told("utf-8", data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        pass
    text = data.decode("utf-8", errors="replace")
    num_bad = _num_undecodable(text) - data.count("\N{REPLACEMENT CHARACTER}".encode())
    num_good = sum(map(len, re.findall(r"[^\x00-\x7f]+", text))) - num_bad
    cut = data[: len(data) - 3].decode("utf-8", errors="replace")
    if num_good >= _GOOD_PER_BAD * num_bad or (num_good and not _num_undecodable(cut)):
        return _told("utf-8", data.decode("utf-8", errors=_STRAY_BYTES), "utf-8")
    return None


def _by_letters(data: bytes, labels: list[str]) -> Decoded:
    """Decode by what is declared if that gives writing, or else by what gives the likeliest."""
    squeezed = _LONG_ASCII.sub(rb"\1 ", data)
    sample, is_whole = squeezed[:_SAMPLE_BYTES], len(squeezed) <= _SAMPLE_BYTES
    num_bytes = sum(map(len, re.findall(rb"[\x80-\xff]+", sample)))
    candidates = dict.fromkeys([*(label for label in labels if label != "utf-8"), *LANGUAGES])
    likely = {encoding: _log_likelihood(sample, encoding, is_whole) for encoding in candidates}
    likely["cp1252"] += _USUAL_BONUS
    best = max(likely, key=lambda encoding: likely[encoding])
    for label in labels:
        if label in likely and likely[label] >= likely[best] - _TRUST - _TRUST_PER_BYTE * num_bytes:
            return _told("declared", data.decode(label, errors="replace"), label)
    if likely[best] < _NO_WRITING_PER_BYTE * num_bytes - _TRUST:
        best = _python_name(detect_encoding(data)) or "cp1252"
    return _told("detected", data.decode(best, errors="replace"), best)


def _log_likelihood(sample: bytes, encoding: str, is_whole: bool) -> float:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    return log_likelihood(decoder.decode(sample, final=is_whole), encoding)


def _told(told_by: str, text: str, encoding: str) -> Decoded:
    return Decoded(text.removeprefix("\ufeff"), encoding, told_by)


def _num_undecodable(text: str) -> int:
    return text.count("\N{REPLACEMENT CHARACTER}")


def _refuse_binary(decoded: Decoded) -> None:
    """Refuse text that is mostly control characters, or that nothing could decode."""
    text = decoded.text
    strange = len(_CONTROLS.findall(text))
    if decoded.encoding != "utf-8":
        strange += _num_undecodable(text)
    if strange > max(2, _MAX_CONTROL_FRAC * len(text)):
        raise NotText(f"{strange} control or undecodable characters in {len(text)}: not text")


def _stray_bytes(error: UnicodeError) -> tuple[str, int]:
    """Read bytes that are no UTF-8 as windows-1252; the registered error handler `_STRAY_BYTES`."""
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252", errors="replace"), error.end


_STRAY_BYTES = "omniloom.windows-1252"
codecs.register_error(_STRAY_BYTES, _stray_bytes)
