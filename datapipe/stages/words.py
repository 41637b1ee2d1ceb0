"""What a word is, in any script, and which texts are written without spaces between words.

Owns the word pattern that every stage over text shares.
"""

import itertools
import re

# Scripts written without spaces: one character counts as one word. Thai, Lao, Myanmar, Khmer, kana and Han.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_PUNCTUATION = r"!-/:-@\[-`{-~\u00a1-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f\uff1a-\uff20"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_PUNCTUATION}{_UNSPACED}]+")
_UNSPACED_CHARACTER = re.compile(rf"[{_UNSPACED}]")


def words(text: str) -> list[str]:
    """Return the words of a text without punctuation; where a script has no spaces, its characters.

    >>> words("Open the file, then 保存.")
    ['Open', 'the', 'file', 'then', '保', '存']
    """
    return _WORD.findall(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where in the text each of its words stands, as [start, end)."""
    return [match.span() for match in _WORD.finditer(text)]


def has_words(text: str, number: int) -> bool:
    """Return whether a text has at least so many words, without looking further than these."""
    return number <= 0 or next(itertools.islice(_WORD.finditer(text), number - 1, None), None) is not None


def unspaced_frac(text: str) -> float:
    """Return the fraction of a text's words that are single characters of scripts without spaces."""
    num_unspaced = 0 if text.isascii() else len(_UNSPACED_CHARACTER.findall(text))
    return num_unspaced / len(words(text)) if num_unspaced else 0.0
