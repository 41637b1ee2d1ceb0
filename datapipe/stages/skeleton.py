"""Skeletons: what of a text stays when its numbers, dates and names are taken out.

Owns how texts are compared that may differ in small things: `normalised` forgets case, width and white space,
`without_numbers` numbers and dates too, `skeleton` also names. Finds nothing by itself.
"""

import dataclasses
import re
import unicodedata

NUMBER, SLOT = "0", "*"  # what stands where something was taken out

_NUMBER = re.compile(r"[+-]?\d+(?:[.,:/–-]\d+)*(?:st|nd|rd|th)?\b%?|\d+")
_MONTHS_AND_DAYS = (
    "january|february|march|april|may|june|july|august|september|october|november|december"
    "|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
    "|monday|tuesday|wednesday|thursday|friday|saturday|sunday|mon|tue|wed|thu|fri|sat|sun|am|pm|utc|gmt"
)
_DATE_WORDS = re.compile(rf"(?<=0)[ ,.]*\b(?:{_MONTHS_AND_DAYS})\b\.?|\b(?:{_MONTHS_AND_DAYS})\b[ ,.]*(?=0)")
_NUMBERS_IN_A_ROW = re.compile(r"0(?:[\s,.:/–-]*0)+")
# What stands in quotation marks, or between spaces.
_PIECE = re.compile(r"“[^”]*”|„[^“]*“|«[^»]*»|\"[^\"]*\"|「[^」]*」|‘[^’]*’|\S+")
_QUOTE = frozenset('“„«"「‘')
_NAME_LIKE = re.compile(r"[/\\_@=<>]|\w\.\w|[a-z][A-Z]|\d|^https?:")
_LINKS = frozenset({"→", ">", "»", "/", "|", "&", "-", "–", "—", "·", "•", "+"})  # what joins names
_PUNCTUATION = ".,;:!?()[]{}…\"'“”‘’„«»「」"
# German writes its nouns, Luxembourgish likewise, as others write names.
NOUNS_LIKE_NAMES = frozenset({"de", "lb"})


def normalised(text: str) -> str:
    """Return a text as it is compared: NFKC, without case, one space between words.

    >>> normalised("See  Ｔhis\\npage")
    'see this page'
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def without_numbers(text: str) -> str:
    """Return a normalised text with numbers and dates taken out.

    >>> without_numbers("Last changed: 12 May 2021, 10:31")
    'last changed: 0'
    """
    text = _NUMBER.sub(NUMBER, normalised(text))
    return _NUMBERS_IN_A_ROW.sub(NUMBER, _DATE_WORDS.sub("", text))


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """A text with its numbers, dates and names taken out."""

    text: str
    num_words: int  # that stay
    num_slots: int  # places where something was taken out
    fixed: tuple[tuple[int, int], ...]  # characters of the parts between names that have two words or more


NO_SKELETON = Skeleton("", 0, 0, ())


def skeleton(text: str, lang: str | None = None) -> Skeleton:
    """Return what stays of a text.

    A name is what stands in quotation marks, a path, an address or an identifier, and a word with a capital
    that does not begin a sentence; names joined by arrows and the like are one. Numbers are taken out too,
    but part nothing: they are no words to learn.

    >>> skeleton("Open it through Filters → Blur → Gaussian Blur….")
    Skeleton(text='open it through *', num_words=3, num_slots=1, fixed=((0, 15),))
    """
    pieces: list[str] = []
    parts: list[list[int]] = [[]]  # between names: the number of words, start, end
    begins_sentence = True
    for match in _PIECE.finditer(text):
        bare = match[0].strip(_PUNCTUATION)
        is_slot = _is_slot(match[0], bare, begins_sentence, lang)
        begins_sentence = match[0].endswith((".", "!", "?", ":")) or (begins_sentence and not bare)
        if match[0] in _LINKS and pieces[-1:] == [SLOT]:
            continue
        if is_slot and any(map(str.isalpha, bare)):
            parts.append([])
        else:
            num_words, start, _ = parts[-1] or [0, match.start(), 0]
            parts[-1] = [num_words + (not is_slot and bare != ""), start, match.end()]
        if is_slot and pieces[-1:] != [SLOT]:
            pieces.append(SLOT)
        elif not is_slot and bare:
            pieces.append((bare if bare.isascii() else unicodedata.normalize("NFKC", bare)).casefold())
    num_slots = pieces.count(SLOT)
    fixed = tuple((part[1], part[2]) for part in parts if part and part[0] > 1)
    return Skeleton(" ".join(pieces), len(pieces) - num_slots, num_slots, fixed)


def _is_slot(piece: str, bare: str, begins_sentence: bool, lang: str | None) -> bool:
    is_capital = bare[:1].isupper() and not begins_sentence and lang not in NOUNS_LIKE_NAMES
    return piece[0] in _QUOTE or is_capital or _NAME_LIKE.search(bare) is not None
