import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import EmptyDocument, NotText
from datapipe.sources import text
from tests import make


def test_wrapped_lines_are_joined_and_other_line_breaks_kept() -> None:
    page = text.read(
        b"The first paragraph was wrapped by an editor at a\r\nnarrow width.\r\n\r\n\r\nRoses are red,\n"
        b"violets are blue.\n \nname      value that is in a table of columns\nother     thing\n",
        "a.txt",
    )
    assert [i.text for i in page.items] == [
        "The first paragraph was wrapped by an editor at a narrow width.",
        "Roses are red,\nviolets are blue.",
        "name      value that is in a table of columns\nother     thing",
    ]


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        ("résumé à la carte", "cp1252"),
        ("I don’t “know”", "cp1252"),
        ("Příliš žluťoučký kůň úpěl", "iso8859-2"),
        ("Zażółć gęślą jaźń", "iso8859-2"),
        ("Привет, как дела сегодня", "cp1251"),
        ("こんにちは世界、元気ですか", "euc_jp"),
        ("你好世界今天天气很好", "gb18030"),
        ("plain", "utf-16-le"),
        ("plain", "utf-16-be"),
        ("ünïcode", "utf-8-sig"),
        ("ünïcode", "utf-32"),
    ],
)
def test_undeclared_encodings_are_found(words: str, encoding: str) -> None:
    assert text.decode(words.encode(encoding)) == words


def test_seven_bit_encodings_are_read_where_declared() -> None:
    assert text.decode("日本語".encode("iso2022_jp"), "iso-2022-jp") == "日本語"


def test_unknown_declared_encodings_are_ignored() -> None:
    assert text.decode("café".encode(), "no-such-encoding") == "café"


@pytest.mark.parametrize("data", [make.picture(), bytes(range(1, 32)) * 20, b"\x00\x01\x02\x03" * 50])
def test_binaries_are_refused(data: bytes) -> None:
    with pytest.raises(NotText):
        text.read(data, "a.txt")


def test_empty_files_are_refused() -> None:
    with pytest.raises(EmptyDocument):
        text.read(b" \n\n ", "a.txt")


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=80))
def test_utf8_text_is_read_unchanged(words: str) -> None:
    expected = words.removeprefix("\ufeff")
    if expected.count("\N{REPLACEMENT CHARACTER}") <= 2:
        assert text.decode(words.encode()) == expected
