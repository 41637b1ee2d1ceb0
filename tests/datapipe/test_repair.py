"""Repair: mojibake is undone where that is sure, nothing else changes, and spans stay on their characters."""

import unicodedata

import ftfy
import ftfy.bad_codecs  # registers the sloppy codecs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.stages import repair
from datapipe.stages.repair import moved_span, repaired

SENTENCES = [
    "Vous verrez l’été à Genève – déjà !",
    "Größe ändern: „Über“ wählen",
    "Añade años: ¿qué más?",
    "Český překlad není úplný",
    "Привет, мир — это работает",
    "Το κείμενο είναι εδώ",
    "中文简体 is read here",
    "naïve café, œuvre, 5 €",
    "हिन्दी में पाठ",
]


def mangled(text: str, codec: str = "sloppy-windows-1252", times: int = 1) -> str:
    """Read the UTF-8 bytes of a text as another encoding."""
    for _ in range(times):
        text = text.encode().decode(codec)
    return text


@pytest.mark.parametrize("text", SENTENCES)
@pytest.mark.parametrize("times", [1, 2])
def test_mojibake_is_undone(text: str, times: int) -> None:
    assert repaired(mangled(text, times=times), "paragraph") == unicodedata.normalize("NFC", text)
    assert repaired(text, "paragraph") == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("CafÃ© au lait", "Café au lait"),
        ("voilÃ le travail", "voilà le travail"),  # its no-break space had become a space
        ("“Fine” and itâ€™s â€œbrokenâ€\x9d", "“Fine” and it’s “broken”"),  # one line, partly right
        ("\x93quoted\x94 \x85", "“quoted” …"),  # windows-1252 read as latin-1
        ("Ã\x85ngstrÃ¶m", "Ångström"),
        ("one\x85two", "one\ntwo"),
        ("first\nsecond Ã¼ber\n\n\nthird", "first\nsecond über\n\nthird"),
    ],
)
def test_partly_broken_lines_and_controls_are_repaired(before: str, after: str) -> None:
    assert repaired(before, "paragraph") == after


@pytest.mark.parametrize(
    "text",
    [
        "If you see characters like “Ã©” or Ã¨” or “Ã§”, it is probably the encoding.",
        "du type « Ã© », « Ã¨ » ou « Ã§ », il s'agit",
        "「Ã©」、「Ã¨」、「Ã§」などの文字列",
        'The page shows "Ã©" there.',
        "It reads Ã© instead of é everywhere.",
        "“Curly” ‘quotes’, ﬁne ligatures, ｗｉｄｅ letters, &amp; entities, x² ½",
        "Die »übliche« Art … “„quotes“”",
        "ÃO É NÃO",
        "e-acute\u200f (”é“)",
        "Â",
        "🙂 ☕ 10 °C ±5 % §3 ¶ ¿qué? ¡ya!",
    ],
)
def test_what_is_right_or_speaks_of_mojibake_stays(text: str) -> None:
    assert repaired(text, "paragraph") == text


@pytest.mark.parametrize("role", ["code", "table", "user", "tool_result"])
def test_verbatim_roles_lose_control_characters_only(role: str) -> None:
    assert repaired("x = 'CafÃ©'  # \x00â€™\r\n", role) == "x = 'CafÃ©'  # â€™\n"


PIECES = st.one_of(
    st.sampled_from(SENTENCES),
    st.sampled_from(SENTENCES).map(mangled),
    st.sampled_from(SENTENCES).map(lambda s: mangled(s, "sloppy-windows-1251")),
    st.sampled_from(
        ["Ã", "Â ", " ", "\n", "“", "”", "\x85", "\x9d", "e\u0301", "\r\n", "\xad", "Ã©", "a", "ab"]
    ),
    st.text(st.characters(max_codepoint=0x2FF), max_size=6),
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)


@settings(max_examples=150)
@given(TEXTS, st.sampled_from(["paragraph", "code"]))
def test_repairing_again_changes_nothing(text: str, role: str) -> None:
    once = repaired(text, role)
    assert repaired(once, role) == once
    assert unicodedata.is_normalized("NFC", once)


@settings(max_examples=150)
@given(st.lists(PIECES, max_size=4).map("".join))
def test_the_quick_test_hides_no_repair_from_ftfy(line: str) -> None:
    line = line.replace("\n", " ")
    if ftfy.fix_encoding(line) != line and not line.isascii():
        assert repair._MAY_BE_MOJIBAKE.search(line) is not None


def essence(text: str) -> set[str]:
    return set(unicodedata.normalize("NFD", "".join(repaired(text, "paragraph").split())))


@settings(max_examples=60)
@given(
    TEXTS, st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=2).map(" ".join), TEXTS, st.booleans()
)
def test_a_span_around_words_covers_them_after_the_repair(
    before: str, covered: str, after: str, is_mangled: bool
) -> None:
    text = f"{before}\n{mangled(covered) if is_mangled else covered}\n{after}"
    start = len(before) + 1
    end = len(text) - len(after) - 1
    left, right = moved_span(start, end, text, "paragraph")
    assert left is not None and right is not None
    found = repaired(text, "paragraph")[left:right]
    assert essence(found) >= essence(text[start:end])
    assert len(found) <= len(covered) + 2


def test_a_span_keeps_to_its_word_inside_a_line_that_is_decoded() -> None:
    text = "Le cafÃ© de lâ€™Ã©tÃ© est  fermÃ©."
    after = repaired(text, "paragraph")
    assert after == "Le café de l’été est fermé."
    for word in ("Le", "cafÃ©", "de", "lâ€™Ã©tÃ©", "est", "fermÃ©"):
        start = text.index(word)
        left, right = moved_span(start, start + len(word), text, "paragraph")
        assert after[left:right] == repaired(word, "paragraph")
    assert moved_span(None, None, text, "paragraph") == (None, None)
    inside = text.index("Ã©")
    left, right = moved_span(inside + 1, inside + 2, text, "paragraph")  # half of a letter takes the letter
    assert after[left:right] == "é"
