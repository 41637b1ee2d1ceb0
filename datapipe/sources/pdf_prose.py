"""Lines of a block to paragraphs, and lines of a paragraph to text.

Owns where a paragraph, a list item or a piece of code begins, and how lines are joined: hyphens at line ends,
scripts without spaces, dotted leaders. Does not order blocks (`pdf_order`).
"""

import dataclasses
import itertools
import re
import statistics
import unicodedata
from collections.abc import Iterable, Sequence

from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_lines import Line
from datapipe.sources.pdf_order import around
from datapipe.sources.pdf_rows import ACCENTS
from datapipe.sources.pdf_tables import LABEL
from datapipe.sources.pdf_words import HYPHEN, Style

_SIZE_CHANGE = 0.08  # of the size; a larger step starts a paragraph
_LEADING_CHANGE = 1.25  # times the usual distance of lines of the block
_INDENT = 0.8  # of the size
_SLACK = 1.5  # characters; a line that leaves room for the next word and these ends its paragraph
_FLUSH = 0.35  # of the size; lines that end so near each other are justified
_SENTENCE_ENDS = ".!?:;\u3002\uff01\uff1f\u2026"
_CLOSERS = "\"')]}»”’"
_HYPHENS = HYPHEN + "-\u2010"
_KEPT_PREFIXES = frozenset(("self", "well", "ill", "all", "ex", "half", "quasi", "so", "cross", "non"))
LEADERS = re.compile(r"(?:\s*[.·․‥…]){5,}\s*")
_RULES = re.compile(r"[_\-–—=*]{6,}")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_LAST_WORD = re.compile(r"([^\W\d_]+)$")
_FIRST_WORD = re.compile(r"([^\W\d_]+)")
_ACCENTED = re.compile(f"([{''.join(ACCENTS).replace('`', '')}])([A-Za-zı])")
NO_STYLE = Style(0.0)
_BULLETS = "•‣◦▪▫●○■□·➢✓❖►▶◆–—*-"
_CLEAR_BULLETS = "•‣◦▪▫●○■□➢❖►▶◆"


@dataclasses.dataclass(slots=True)
class Paragraph:
    """Lines that belong together. `is_open`: the last one is full, so that they may go on elsewhere."""

    role: str  # paragraph, list_item or code
    lines: list[str]
    box: Box
    style: Style
    is_bold: bool
    is_open: bool


def vocabulary(lines: Iterable[str]) -> frozenset[str]:
    """Return the words of a document in small letters, those broken at line ends left out."""
    words: set[str] = set()
    is_broken = False
    for line in lines:
        found = list(_WORD.finditer(line.casefold()))
        if found and is_broken:
            found = found[1:]
        is_broken = line[-1:] in _HYPHENS
        if found and is_broken:
            found = [f for f in found if f.end() < len(line) - 1]
        words.update(match.group() for match in found)
    return frozenset(words)


def joined(lines: Sequence[str], words: frozenset[str]) -> str:
    """Return lines as one text. `words` are the document's, which tell what a broken word is."""
    text = lines[0]
    for line in lines[1:]:
        text = _joined_two(text, line, words)
    return tidy(text)


def tidy(text: str) -> str:
    """Return text with hyphens, accents and dotted leaders as one writes them."""
    text = text.replace(HYPHEN, "-")
    if not text.isascii():
        text = _ACCENTED.sub(_accented, text)
    return _RULES.sub("---", LEADERS.sub(" … ", text)).strip()


def _accented(match: re.Match[str]) -> str:
    letter = "i" if match.group(2) == "ı" else match.group(2)
    one = unicodedata.normalize("NFC", letter + ACCENTS[match.group(1)])
    return one if len(one) == 1 else match.group()


def _joined_two(text: str, line: str, words: frozenset[str]) -> str:
    last, first = text[-1:], line[:1]
    if last in _HYPHENS and last and len(text) > 1:
        return text[:-1] + _hyphen(text[:-1], line, words) + line
    if last in "—/" and re.search(r"(?:https?:|www\.|ftp:)\S*$|—$", text):
        return text + line
    return text + ("" if _is_unspaced(last) and _is_unspaced(first) else " ") + line


def _hyphen(before: str, after: str, words: frozenset[str]) -> str:
    """Return what stands between the halves of a word that was broken at the end of a line."""
    head, tail = _LAST_WORD.search(before), _FIRST_WORD.match(after)
    if head is None or tail is None:
        return "-" if before[-1:].isalnum() else "- "
    if re.search(r"[/@:]\S*$", before):
        return "-"
    first, second = head.group(), tail.group()
    whole, parted = (first + second).casefold(), f"{first}-{second}".casefold()
    if second[0].isupper() and not first.isupper():
        return "-"
    if whole in words and parted not in words:
        return ""
    if parted in words or first.casefold() in _KEPT_PREFIXES:
        return "-"
    return ""


def is_hyphen(character: str) -> bool:
    """Return whether a character breaks a word at the end of a line."""
    return bool(character) and character in _HYPHENS


def _is_unspaced(character: str) -> bool:
    """Return whether a character is of a script that puts no spaces between words."""
    return bool(character) and (
        "\u2e80" <= character <= "\u9fff"
        or "\uf900" <= character <= "\ufaff"
        or "\uff00" <= character <= "\uffef"
    )


def paragraphs(lines: Sequence[Line], mono_is_code: bool) -> list[Paragraph]:
    """Return the paragraphs of a block."""
    if not lines:
        return []
    if _is_formula(lines):
        return [
            Paragraph("paragraph", [line.text for line in lines], around(lines), lines[0].style, False, False)
        ]
    leading = _leading(lines)
    centred = _is_centred(lines)
    groups: list[list[Line]] = []
    for index, line in enumerate(lines):
        if not groups or _begins(lines, index, groups[-1], leading, centred, mono_is_code):
            groups.append([])
        groups[-1].append(line)
    right = max(line.box.x1 for line in lines)
    found = [_paragraph(group, right, leading, mono_is_code) for group in groups]
    for (first, second), (before, after) in zip(
        itertools.pairwise(found), itertools.pairwise(groups), strict=True
    ):
        if _follows(before[0], after[0]) and first.role != "code" and second.role != "code":
            first.role = second.role = "list_item"
    return found


def _is_formula(lines: Sequence[Line]) -> bool:
    """Return whether lines are pieces of a displayed formula, side by side and on many heights."""
    return any(b.baseline - a.baseline < 0.6 * a.style.size for a, b in itertools.pairwise(lines))


def _leading(lines: Sequence[Line]) -> float:
    """Return the distance of lines within paragraphs, in font sizes."""
    steps = [
        (b.baseline - a.baseline) / max(a.style.size, b.style.size, 0.1) for a, b in itertools.pairwise(lines)
    ]
    return statistics.median_low(steps) if steps else 1.2


def _is_centred(lines: Sequence[Line]) -> bool:
    if len(lines) < 2:
        return False
    middles = [(line.box.x0 + line.box.x1) / 2 for line in lines]
    lefts = [line.box.x0 for line in lines]
    size = lines[0].style.size
    return max(middles) - min(middles) < 0.5 * size and max(lefts) - min(lefts) > size


def _begins(
    lines: Sequence[Line],
    index: int,
    group: Sequence[Line],
    leading: float,
    centred: bool,
    mono_is_code: bool,
) -> bool:
    """Return whether a paragraph begins at a line; `group` is the one before it."""
    line, last = lines[index], lines[index - 1]
    size = max(line.style.size, last.style.size)
    is_code, was_code = mono_is_code and line.is_mono, mono_is_code and all(one.is_mono for one in group)
    following = lines[index + 1] if index + 1 < len(lines) else None
    is_short = _is_short(last, line, max(one.box.x1 for one in lines)) and not _is_flush(lines, index - 1)
    is_wide = (line.baseline - last.baseline) / size > _LEADING_CHANGE * leading + 0.1
    if is_code and was_code:
        return False
    if was_code:
        return True
    if is_code:  # a line of a paragraph may consist of a name in a font of one width
        ended = is_short or is_wide or last.text.rstrip(_CLOSERS)[-1:] in _SENTENCE_ENDS
        return ended or abs(line.box.x0 - last.box.x0) > _INDENT * size
    if abs(line.style.size - last.style.size) > _SIZE_CHANGE * size or line.is_bold != last.is_bold:
        return True
    if is_wide:
        return True
    if LEADERS.search(last.text) or LEADERS.search(line.text):
        return True
    if _is_label(line, last, following, is_short, group):
        return True
    if centred:
        return False
    return is_short or _is_indented(line, last, following, group)


def _is_short(last: Line, line: Line, right: float) -> bool:
    """Return whether the first word of a line would have fitted on the one before."""
    first = line.text.split(" ", 1)[0]
    if _is_unspaced(line.text[:1]):
        first = line.text[:1]
    room = right - last.box.x1
    return (
        room > (len(first) + _SLACK) * max(last.char_width, line.char_width)
        and last.text[-1:] not in _HYPHENS
    )


def _is_flush(lines: Sequence[Line], index: int) -> bool:
    """Return whether lines around one end where it does: their edge is that of the text beside a picture."""
    line = lines[index]
    near = [*lines[max(0, index - 3) : index], *lines[index + 1 : index + 4]]
    return sum(abs(one.box.x1 - line.box.x1) < _FLUSH * line.style.size for one in near) >= 2


def _is_label(line: Line, last: Line, following: Line | None, is_short: bool, group: Sequence[Line]) -> bool:
    """Return whether a line begins with the bullet or number of a list item."""
    first = line.text.split(" ", 1)[0]
    if " " not in line.text or not LABEL.fullmatch(first):
        return False
    if first[0] in _CLEAR_BULLETS:
        return True
    if first.isdigit():
        return _follows(group[0], line)
    hangs = following is not None and abs(following.box.x0 - line.body_x0) < 0.4 * line.style.size
    if hangs and line.body_x0 - line.box.x0 > 0.5 * line.style.size:
        return True
    if _has_label(group[0]) and line.box.x0 - group[0].body_x0 > 0.5 * line.style.size:
        return line.body_x0 - line.box.x0 > _INDENT * line.style.size  # an item of an inner list
    after = last.text.rstrip(_CLOSERS)[-1:] in _SENTENCE_ENDS
    same_place = abs(line.box.x0 - group[0].box.x0) < 0.3 * line.style.size
    return is_short or (after and same_place and _has_label(group[0]))


def _follows(before: Line, line: Line) -> bool:
    """Return whether two lines begin with a number and the next one, in one place."""
    number, following = (one.text.split(" ", 1)[0] for one in (before, line))
    if not number.isdecimal() or not following.isdecimal() or int(following) != int(number) + 1:
        return False
    return abs(before.body_x0 - line.body_x0) < 0.4 * line.style.size


def _has_label(line: Line) -> bool:
    first = line.text.split(" ", 1)[0]
    return " " in line.text and LABEL.fullmatch(first) is not None and not first.isdigit()


def _is_indented(line: Line, last: Line, following: Line | None, group: Sequence[Line]) -> bool:
    """Return whether the left edge of a line says that a paragraph begins."""
    step = line.box.x0 - last.box.x0
    indent = _INDENT * line.style.size
    is_first = last is group[0]
    if step < -indent:
        return not is_first
    if step < indent:
        return False
    if is_first and _has_label(last) and abs(line.box.x0 - last.body_x0) < 0.6 * line.style.size:
        return False  # the second line of a list item
    if following is not None and following.box.x0 < line.box.x0 - indent / 2:
        return True
    ended = last.text.rstrip(_CLOSERS)[-1:] in _SENTENCE_ENDS
    return ended and line.text[:1].isupper() and not (is_first and following is not None)


def _paragraph(lines: Sequence[Line], right: float, leading: float, mono_is_code: bool) -> Paragraph:
    box = around(lines)
    style = lines[0].style
    last = lines[-1]
    if mono_is_code and all(line.is_mono for line in lines):
        return Paragraph("code", _code(lines, box.x0, leading), box, style, False, False)
    text = [line.text for line in lines]
    role = "paragraph"
    first, _, rest = text[0].partition(" ")
    if rest and LABEL.fullmatch(first) and (not first.isdigit()):
        role = "list_item"
        if first in _BULLETS:
            text[0] = rest.lstrip()
    elif LEADERS.search(text[0]):
        role = "list_item"
    is_open = last.box.x1 > right - 3 * last.style.size
    return Paragraph(role, text, box, style, all(line.is_bold for line in lines), is_open)


def _code(lines: Sequence[Line], x0: float, leading: float) -> list[str]:
    """Return lines of code with their indentation, and an empty line where the page leaves one."""
    text: list[str] = []
    for index, line in enumerate(lines):
        if index:
            step = (line.baseline - lines[index - 1].baseline) / max(line.style.size, 0.1)
            text += [""] if step > 1.6 * min(leading, 1.4) else []
        indent = round((line.box.x0 - x0) / line.char_width) if line.char_width > 0 else 0
        text.append(" " * min(indent, 200) + line.text.replace(HYPHEN, "-"))
    return text
