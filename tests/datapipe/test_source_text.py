import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import EmptyDocument, NotText, ReadError
from datapipe.sources import text
from tests import make


def paragraphs(data: bytes, charset: str | None = None) -> list[str | None]:
    return [item.text for item in text.read(data, "a.txt", charset).items]


def test_wrapped_lines_are_joined_and_other_line_breaks_kept() -> None:
    assert paragraphs(
        b"The first paragraph was wrapped by an editor at a\r\nnarrow width.\r\n\r\n\r\nRoses are red,\n"
        b"violets are blue.\n \nname      value that is in a table of columns\nother     thing\n"
    ) == [
        "The first paragraph was wrapped by an editor at a narrow width.",
        "Roses are red,\nviolets are blue.",
        "name      value that is in a table of columns\nother     thing",
    ]


def test_the_encoding_is_found_or_told_by_the_transport() -> None:
    words = "Le café était déjà fermé"
    assert paragraphs(words.encode("cp1252")) == [words]
    assert paragraphs(words.encode("utf-16")) == [words]
    assert paragraphs("Да".encode("koi8-r"), "koi8-r") == ["Да"]


@pytest.mark.parametrize("data", [make.picture(), bytes(range(1, 32)) * 20, b"\x00\x01\x02\x03" * 50])
def test_binaries_are_refused(data: bytes) -> None:
    with pytest.raises(NotText):
        text.read(data, "a.txt")


def test_empty_files_are_refused() -> None:
    with pytest.raises(EmptyDocument):
        text.read(b" \n\n ", "a.txt")


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=80))
def test_utf8_text_is_read_unchanged(words: str) -> None:
    assert text.decode(words.encode()) == words.removeprefix("\ufeff")


@settings(max_examples=100)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_document_or_refused(data: bytes) -> None:
    try:
        page = text.read(data, "a.txt")
    except ReadError:
        return
    assert all(item.text for item in page.items)
