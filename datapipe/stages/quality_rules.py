"""Quality rules: the published rules for web text, each for the documents that it was made for.

Owns the rules, their thresholds, and which documents they fit. Changes no text. Every measure has a name; the
first that fails is the drop reason, such as `gopher_mean_word_length`.

The rules look at prose: headings, paragraphs, list items and notes. Captions, alternative texts and
transcripts belong to a picture or a video, and code and tables follow other laws: they are not looked at. A
list item counts as a line with a bullet.

They were made for pages of plain English from the web. Not judged is what does not fit:

- agent sessions and documents without prose: nothing;
- documents that also hold pictures, videos, code or tables: nothing that asks for an amount of prose or for a
  form of lines (`UNFIT_BESIDE_OTHER_CONTENT`), for a picture with a name under it is whole;
- languages but English: no stop words, no sentences, and no lines that C4 takes out;
- Korean, Vietnamese and Finnish: no word lengths, for these write a word's parts together or apart;
- scripts without spaces between words: nothing that counts words.

Sources: `gopher`, Rae et al., Scaling Language Models, arXiv 2112.11446, appendix A.1.1 and table A1; `c4`,
Raffel et al., Exploring the Limits of Transfer Learning, arXiv 1910.10683, section 2.2, with the numbers and
the phrases of the code that made the data set (tensorflow_datasets, `c4_utils.py`), without its list of bad
words; `fineweb`, Penedo et al., The FineWeb Datasets, arXiv 2406.17557, section 3.5.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from datapipe.stages.words import has_words, unspaced_frac, words

PROSE_ROLES = frozenset({"heading", "paragraph", "list_item", "note"})
SESSION_ROLES = frozenset({"system", "user", "assistant", "thinking", "tool_call", "tool_result"})
OTHER_ROLES = frozenset({"code", "table"})
MAX_UNSPACED_FRAC = 0.3  # of the words; above it a document has no words to count

# Gopher, appendix A.1.1.
MIN_WORDS, MAX_WORDS = 50, 100_000
MIN_MEAN_WORD_LENGTH, MAX_MEAN_WORD_LENGTH = 3, 10
WITHOUT_WORD_LENGTHS = frozenset({"ko", "vi", "fi"})  # of 42 languages, those with good pages outside
MAX_SYMBOLS_PER_WORD = 0.1  # hashes, or ellipses, to words between spaces
ELLIPSES = ("...", "…")
MAX_BULLET_LINES_FRAC = 0.9
MAX_ELLIPSIS_LINES_FRAC = 0.3
MIN_ALPHABETIC_WORDS_FRAC = 0.8
STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
MIN_STOP_WORDS = 2
# Gopher, table A1.
MAX_DUPLICATE_FRAC = 0.30  # of lines, and of paragraphs
MAX_DUPLICATE_CHARACTERS_FRAC = 0.20  # of the characters, in such lines or paragraphs
MAX_TOP_NGRAM_FRAC = {2: 0.20, 3: 0.18, 4: 0.16}
MAX_DUPLICATE_NGRAMS_FRAC = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
# C4.
C4_MIN_SENTENCES, C4_MIN_LINE_WORDS, C4_MAX_WORD_LENGTH = 3, 5, 1000
C4_POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
# FineWeb.
MIN_PUNCTUATED_LINES_FRAC = 0.12
MAX_FINEWEB_DUPLICATE_FRAC = 0.1
SHORT_LINE_CHARACTERS, MAX_SHORT_LINES_FRAC = 30, 0.67

# What is not judged, by what a document is.
UNFIT_BESIDE_OTHER_CONTENT = frozenset(
    {
        "gopher_too_few_words",
        "gopher_bullet_lines",
        "gopher_stop_words",
        "c4_sentences",
        "c4_curly_bracket",
        "fineweb_punctuated_lines",
        "fineweb_short_lines",
    }
)
UNFIT_WITHOUT_SPACES = frozenset(
    {
        "gopher_too_few_words",
        "gopher_too_many_words",
        "gopher_mean_word_length",
        "gopher_hashes",
        "gopher_ellipses",
        "gopher_alphabetic_words",
        "fineweb_punctuated_lines",
        "fineweb_short_lines",
        *(f"gopher_top_{size}_gram" for size in MAX_TOP_NGRAM_FRAC),
        *(f"gopher_duplicate_{size}_grams" for size in MAX_DUPLICATE_NGRAMS_FRAC),
    }
)
UNFIT_BUT_IN_ENGLISH = frozenset({"gopher_stop_words", "c4_sentences"})

_BULLET = re.compile(r"\s*[•‣⁃◦●○▪■□·*–—-](?=\s|\w)")
_TERMINAL = re.compile(r"[.!?…。！？．｡؟۔।॥။።፧։՜՞។៕༎᠃᠉⁇⁈⁉‼][\"'”’»›」』）)\]]*$|[\"”」]$")
_C4_END_MARKS = (".", "?", "!", '"')
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)")

Segment = dict[str, Any]


@dataclass(frozen=True)
class Prose:
    """What the rules see of a document."""

    paragraphs: list[str]  # one a segment
    num_bullets: int  # paragraphs that are list items
    lang: str | None
    has_other_content: bool  # pictures, videos, code or tables

    @cached_property
    def text(self) -> str:
        """The paragraphs, a line each or more."""
        return "\n".join(self.paragraphs)

    @cached_property
    def lines(self) -> list[str]:
        """The lines that are not empty."""
        return [line for line in self.text.split("\n") if line.strip()]

    @cached_property
    def words(self) -> list[str]:
        """The words without punctuation."""
        return words(self.text)

    @cached_property
    def tokens(self) -> list[str]:
        """What stands between spaces."""
        return self.text.split()


def prose_of(segments: Sequence[Segment], lang: str | None) -> Prose | None:
    """Return the prose among a document's segments; None where there is none, or in an agent session."""
    if any(segment["role"] in SESSION_ROLES for segment in segments):
        return None
    chosen = [segment for segment in segments if segment["kind"] == "text" and segment["role"] in PROSE_ROLES]
    if not any(has_words(segment["text"], 1) for segment in chosen):
        return None
    return Prose(
        paragraphs=[segment["text"].strip() for segment in chosen],
        num_bullets=sum(s["role"] == "list_item" or _BULLET.match(s["text"]) is not None for s in chosen),
        lang=lang,
        has_other_content=any(s["kind"] != "text" or s["role"] in OTHER_ROLES for s in segments),
    )


def failed(prose: Prose, rules: Sequence[str], ignored: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the measures of the rules that a document fails, of those that fit it and are not ignored."""
    skipped = ignored | _unfit(prose)
    for rule in rules:
        for measure, fails in RULES[rule].items():
            if measure not in skipped and fails(prose):
                yield measure


def _unfit(prose: Prose) -> frozenset[str]:
    """Return the measures that a document is not judged by."""
    unfit = UNFIT_BESIDE_OTHER_CONTENT if prose.has_other_content else frozenset()
    if unspaced_frac(prose.text) > MAX_UNSPACED_FRAC:
        unfit |= UNFIT_WITHOUT_SPACES
    if prose.lang != "en":
        unfit |= UNFIT_BUT_IN_ENGLISH
    return unfit | {"gopher_mean_word_length"} if prose.lang in WITHOUT_WORD_LENGTHS else unfit


# ---- fractions and counts


def duplicate_fracs(texts: Sequence[str]) -> tuple[float, float]:
    """Return the fraction of texts that occurred before, and the fraction of characters in them."""
    seen: set[str] = set()
    num_texts = num_characters = 0
    for text in texts:
        if text in seen:
            num_texts += 1
            num_characters += len(text)
        seen.add(text)
    return num_texts / len(texts), num_characters / sum(map(len, texts))


def top_ngram_frac(found: Sequence[str], size: int) -> float:
    """Return the fraction of the words' characters in the most frequent n-gram; 0 where none comes twice.

    Of equally frequent ones the longest counts.
    """
    counts = Counter(zip(*(found[i:] for i in range(size)), strict=False))
    top = max(counts.values(), default=0)
    if top < 2:
        return 0.0
    longest = max(sum(map(len, ngram)) for ngram, count in counts.items() if count == top)
    return longest * top / sum(map(len, found))


def duplicate_ngrams_frac(found: Sequence[str], size: int) -> float:
    """Return the fraction of the words' characters in n-grams that occurred before."""
    seen: set[tuple[str, ...]] = set()
    covered, end = 0, 0  # characters so far, and the word up to which they are counted
    for start, ngram in enumerate(zip(*(found[i:] for i in range(size)), strict=False)):
        if ngram in seen:
            covered += sum(map(len, found[max(start, end) : start + size]))
            end = start + size
        seen.add(ngram)
    return covered / sum(map(len, found))


def c4_keeps(line: str) -> bool:
    """Return whether C4 keeps a line of English."""
    return (
        line.rstrip().endswith(_C4_END_MARKS)
        and not line.rstrip().endswith("...")
        and len(line.split()) >= C4_MIN_LINE_WORDS
        and max(map(len, line.split())) <= C4_MAX_WORD_LENGTH
        and c4_fault(line) is None
    )


def c4_fault(line: str) -> str | None:
    """Return why C4 takes a line out for what it says: `c4_javascript`, `c4_policy`, or None."""
    lower = line.lower()
    if "javascript" in lower:
        return "c4_javascript"
    return "c4_policy" if any(phrase in lower for phrase in C4_POLICIES) else None


def c4_lines(segments: Sequence[Segment]) -> Iterator[tuple[int, int, int, str]]:
    """Yield the lines of an English document that C4 takes out for what they say: segment, start, end, why.

    None in documents with code, and in agent sessions: they may speak of programs.
    """
    if any(segment["role"] in SESSION_ROLES | {"code"} for segment in segments):
        return
    for number, segment in enumerate(segments):
        if segment["kind"] == "text" and segment["role"] in PROSE_ROLES:
            start = 0
            for line in segment["text"].split("\n"):
                fault = c4_fault(line)
                if fault is not None:
                    yield number, start, start + len(line), fault
                start += len(line) + 1


# ---- the measures, each true where a document fails it


def _has_unusual_words(prose: Prose) -> bool:
    mean_length = sum(map(len, prose.words)) / len(prose.words)
    return not MIN_MEAN_WORD_LENGTH <= mean_length <= MAX_MEAN_WORD_LENGTH


def _has_symbols(symbols: Sequence[str], prose: Prose) -> bool:
    return sum(map(prose.text.count, symbols)) > MAX_SYMBOLS_PER_WORD * len(prose.tokens)


def _has_few_alphabetic_words(prose: Prose) -> bool:
    num_alphabetic = sum(any(map(str.isalpha, token)) for token in prose.tokens)
    return num_alphabetic < MIN_ALPHABETIC_WORDS_FRAC * len(prose.tokens)


def _has_ellipsis_lines(prose: Prose) -> bool:
    num_lines = sum(line.rstrip().endswith(ELLIPSES) for line in prose.lines)
    return num_lines > MAX_ELLIPSIS_LINES_FRAC * len(prose.lines)


def _lacks_stop_words(prose: Prose) -> bool:
    return len(STOP_WORDS.intersection(map(str.lower, prose.words))) < MIN_STOP_WORDS


def _repeats(texts: str, place: int, limit: float, prose: Prose) -> bool:
    """Whether too many lines or paragraphs come again (place 0), or too many characters in them (place 1)."""
    return duplicate_fracs(getattr(prose, texts))[place] > limit


def _has_top_ngram(size: int, limit: float, prose: Prose) -> bool:
    return top_ngram_frac(prose.words, size) > limit


def _repeats_ngrams(size: int, limit: float, prose: Prose) -> bool:
    return duplicate_ngrams_frac(prose.words, size) > limit


def _lacks_c4_sentences(prose: Prose) -> bool:
    kept = (line for line in prose.lines if c4_keeps(line))
    return sum(len(_SENTENCE_END.findall(line)) for line in kept) < C4_MIN_SENTENCES


def _lacks_punctuated_lines(prose: Prose) -> bool:
    num_lines = sum(_TERMINAL.search(line.rstrip()) is not None for line in prose.lines)
    return num_lines <= MIN_PUNCTUATED_LINES_FRAC * len(prose.lines)


def _has_short_lines(prose: Prose) -> bool:
    num_lines = sum(len(line) < SHORT_LINE_CHARACTERS for line in prose.lines)
    return num_lines >= MAX_SHORT_LINES_FRAC * len(prose.lines)


# Of each rule, its measures in the order in which they are looked at.
RULES: dict[str, dict[str, Callable[[Prose], bool]]] = {
    "gopher_quality": {
        "gopher_too_few_words": lambda prose: len(prose.words) < MIN_WORDS,
        "gopher_too_many_words": lambda prose: len(prose.words) > MAX_WORDS,
        "gopher_mean_word_length": _has_unusual_words,
        "gopher_hashes": partial(_has_symbols, ("#",)),
        "gopher_ellipses": partial(_has_symbols, ELLIPSES),
        "gopher_alphabetic_words": _has_few_alphabetic_words,
        "gopher_bullet_lines": lambda prose: prose.num_bullets > MAX_BULLET_LINES_FRAC * len(prose.lines),
        "gopher_ellipsis_lines": _has_ellipsis_lines,
        "gopher_stop_words": _lacks_stop_words,
    },
    "gopher_repetition": {
        "gopher_duplicate_lines": partial(_repeats, "lines", 0, MAX_DUPLICATE_FRAC),
        "gopher_duplicate_line_characters": partial(_repeats, "lines", 1, MAX_DUPLICATE_CHARACTERS_FRAC),
        "gopher_duplicate_paragraphs": partial(_repeats, "paragraphs", 0, MAX_DUPLICATE_FRAC),
        "gopher_duplicate_paragraph_characters": partial(
            _repeats, "paragraphs", 1, MAX_DUPLICATE_CHARACTERS_FRAC
        ),
        **{
            f"gopher_top_{size}_gram": partial(_has_top_ngram, size, limit)
            for size, limit in MAX_TOP_NGRAM_FRAC.items()
        },
        **{
            f"gopher_duplicate_{size}_grams": partial(_repeats_ngrams, size, limit)
            for size, limit in MAX_DUPLICATE_NGRAMS_FRAC.items()
        },
    },
    "c4": {
        "c4_lorem_ipsum": lambda prose: "lorem ipsum" in prose.text.lower(),
        "c4_curly_bracket": lambda prose: "{" in prose.text,
        "c4_sentences": _lacks_c4_sentences,
    },
    "fineweb": {
        "fineweb_punctuated_lines": _lacks_punctuated_lines,
        "fineweb_short_lines": _has_short_lines,
        "fineweb_duplicate_line_characters": lambda prose: (
            duplicate_fracs(prose.lines)[1] >= MAX_FINEWEB_DUPLICATE_FRAC
        ),
    },
}
