import contextlib
import io
import random
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from datapipe.decode import image as images
from datapipe.errors import EmptyDocument, Encrypted, MalformedMarkup, TooManyPixels
from datapipe.sources import ocr, pdf
from datapipe.sources.items import Item, RawDocument
from tests.pdfs import Page, Picture, picture, rule, text, turned_text
from tests.pdfs import pdf as made

LEADING = 12.0
LETTERS = "abdeghnopqu"  # as wide as each other in Helvetica


def read(pages: list[Page | str], **options: object) -> RawDocument:
    return pdf.read(made(pages, **options), "book.pdf", max_ocr_pages=0)  # type: ignore[arg-type]


def seen(document: RawDocument) -> list[tuple[str, str | None]]:
    """What a reader sees, in order: (role, text); masked parts left out, pictures without text."""
    return [(i.role, i.text) for i in document.items if i.mask is None]


def masked(document: RawDocument) -> list[tuple[str | None, str | None]]:
    return [(i.mask, i.text) for i in document.items if i.mask is not None]


def pictures(document: RawDocument) -> list[Item]:
    return [i for i in document.items if i.kind == "image"]


def pixels(item: Item) -> np.ndarray:
    """A picture as the pipeline sees it, [height, width, 3]."""
    assert item.data is not None
    return np.asarray(images.decode(item.data, 10**8).pixels).astype(int)


def lines(name: str, count: int, words: int = 5, seed: int = 0, end: str = ".") -> list[str]:
    """Lines of words of five letters, all nearly as wide; the first word of each names it."""
    rng = random.Random(f"{name}{seed}")
    made = [
        " ".join([f"{name}{i:02}", *("".join(rng.choices(LETTERS, k=5)) for _ in range(words - 1))])
        for i in range(count)
    ]
    made[-1] += end
    return made


def column(x: float, top: float, words: list[str], size: float = 10) -> list[str]:
    return [text(x, top - i * LEADING, line, size) for i, line in enumerate(words)]


def photo(width: int = 60, height: int = 40) -> Image.Image:
    """Red at the left, blue at the right, a green band along the top."""
    image = Image.new("RGB", (width, height), (200, 30, 30))
    image.paste((30, 30, 200), (width // 2, 0, width, height))
    image.paste((20, 160, 20), (0, 0, width, height // 4))
    return image


def quarters(item: Item) -> list[str]:
    """The colours of the four corners, clockwise from the top left."""
    values = pixels(item)
    height, width, _ = values.shape
    corners = [values[y, x] for y, x in ((2, 2), (2, width - 3), (height - 3, width - 3), (height - 3, 2))]
    return ["rgb"[int(np.argmax(c))] for c in corners]


# --- reading order


def test_columns_drawn_line_by_line_are_read_one_after_the_other() -> None:
    left, right = lines("left", 12), lines("right", 12)
    drawn = [t for pair in zip(column(72, 700, left), column(330, 700, right), strict=True) for t in pair]
    assert [t for _, t in seen(read(["".join(drawn)]))] == [" ".join(left), " ".join(right)]


def test_title_and_wide_figure_part_the_columns_above_from_those_below() -> None:
    parts = [lines(name, 6) for name in ("a", "b", "c", "d")]
    content = "".join(
        [
            text(150, 740, "A title that spans the columns of the page", 16, "F2"),
            *column(72, 700, parts[0]),
            *column(330, 700, parts[1]),
            picture("Im", 72, 420, 440, 180),
            text(200, 400, "Figure 1: A wide figure", 9),
            *column(72, 370, parts[2]),
            *column(330, 370, parts[3]),
        ]
    )
    document = read([Page(content, images={"Im": Picture.jpeg(photo())})])
    assert seen(document) == [
        ("heading", "A title that spans the columns of the page"),
        ("paragraph", " ".join(parts[0])),
        ("paragraph", " ".join(parts[1])),
        ("figure", None),
        ("caption", "Figure 1: A wide figure"),
        ("paragraph", " ".join(parts[2])),
        ("paragraph", " ".join(parts[3])),
    ]


@settings(max_examples=30)
@given(
    num_columns=st.integers(2, 3),
    lengths=st.lists(st.integers(5, 25), min_size=3, max_size=3),
    shift=st.sampled_from([0.0, 1.0, 3.0, 6.0, 9.0]),
    has_title=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_columns_are_read_in_order_wherever_their_lines_stand_and_however_they_are_drawn(
    num_columns: int, lengths: list[int], shift: float, has_title: bool, seed: int
) -> None:
    parts = [lines("abd"[i], lengths[i], {2: 6, 3: 4}[num_columns], seed) for i in range(num_columns)]
    step = 480 / num_columns
    drawn = [t for i, part in enumerate(parts) for t in column(60 + i * step, 700 - i * shift, part)]
    if has_title:
        drawn.append(
            text(60, 745, "A long title which spans all of the columns of this whole page", 14, "F2")
        )
    random.Random(seed).shuffle(drawn)
    words = " ".join(t or "" for _, t in seen(read(["".join(drawn)]))).split()
    wanted = [w for part in parts for line in part for w in line.split()]
    assert words[-len(wanted) :] == wanted
    assert len(words) - len(wanted) == (13 if has_title else 0)


def test_columns_of_a_right_to_left_script_begin_at_the_right() -> None:
    letters = dict(zip("abcdefghij", "אבגדהוזחטי", strict=True))
    rng = random.Random(1)
    drawn = {
        x: [" ".join("".join(rng.choices("abcdefghij", k=5)) for _ in range(4)) for _ in range(6)]
        for x in (72, 330)
    }
    content = "".join(t for x, part in drawn.items() for t in column(x, 700, part))

    def logical(part: list[str]) -> str:
        return " ".join("".join(letters.get(c, c) for c in reversed(line)) for line in part)

    document = read([content], to_unicode=letters)
    assert [t for _, t in seen(document)] == [logical(drawn[330]), logical(drawn[72])]


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_rotated_page_reads_like_the_upright_one(rotation: int) -> None:
    body = "".join(
        [
            text(72, 740, "Heading of the page", 16, "F2"),
            *column(72, 700, lines("left", 8)),
            *column(330, 700, lines("right", 8)),
        ]
    )
    turned = read([Page(body, entries=f"/Rotate {rotation}")])
    assert seen(turned) == seen(read([body]))


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_text_that_runs_sideways_is_read_in_its_own_direction(turns: int) -> None:
    x, y = [(0, 0), (300, 100), (500, 300), (300, 700)][turns]
    dx, dy = [(0, 0), (LEADING, 0), (0, LEADING), (-LEADING, 0)][turns]
    content = "".join(
        turned_text(x + i * dx, y + i * dy, line, turns) for i, line in enumerate(lines("l", 4))
    )
    assert seen(read([content])) == [("paragraph", " ".join(lines("l", 4)))]


def test_words_beside_the_main_direction_follow_the_page() -> None:
    stamp = turned_text(20, 300, "arXiv:1234.5678 stamp", 1)
    document = read([stamp + "".join(column(72, 700, lines("body", 8)))])
    assert seen(document) == [
        ("paragraph", " ".join(lines("body", 8))),
        ("paragraph", "arXiv:1234.5678 stamp"),
    ]


# --- text


def paragraph(*parts: str, x: float = 72, top: float = 700) -> str:
    return "".join(text(x, top - i * LEADING, line) for i, line in enumerate(parts))


def test_hyphens_at_line_ends_go_unless_the_document_writes_the_word_with_one() -> None:
    document = read(
        [
            paragraph(
                "this is a well-known thing, and we call the experi-",
                "ment repeatable although the co-",
                "operation of all is needed; a well-",
                "known fact. From 2010-",
                "2012 Mr Jean-",
                "Paul co-operation was here in the self-",
                "contained room of this building, or so.",
            )
        ]
    )
    assert [t for _, t in seen(document)] == [
        "this is a well-known thing, and we call the experiment repeatable although the co-operation of all "
        "is needed; a well-known fact. From 2010-2012 Mr Jean-Paul co-operation was here in the "
        "self-contained room of this building, or so."
    ]


def test_ligatures_and_symbol_bullets_become_plain_characters() -> None:
    document = read([text(72, 700, "~nal e|ort `x")], to_unicode={"~": "ﬁ", "|": "ﬀ", "`": "\uf0b7"})
    assert [t for _, t in seen(document)] == ["final effort •x"]


def test_paragraphs_begin_at_indents_gaps_and_after_short_lines() -> None:
    full = "words that fill the whole of a line up to its right edge and"
    content = "".join(
        [
            text(72, 700, full),
            text(72, 688, full),
            text(84, 676, "Indented line that fills all up to the same right edge so"),
            text(72, 664, "it ends here."),
            text(72, 652, full),
            text(72, 640, "short end."),
            text(72, 615, full),
            text(72, 603, full),
        ]
    )
    assert [t for _, t in seen(read([content]))] == [
        f"{full} {full}",
        "Indented line that fills all up to the same right edge so it ends here.",
        f"{full} short end.",
        f"{full} {full}",
    ]


def test_paragraph_goes_on_over_columns_pages_and_footers() -> None:
    left, right = lines("left", 8, end=""), lines("right", 8, end="")
    after = [*lines("next", 3, end=""), "and the end."]
    pages: list[Page | str] = [
        "".join(column(72, 700, left) + column(330, 700, right)) + text(300, 30, "- 1 -"),
        "".join(column(72, 700, after)) + text(300, 30, "- 2 -"),
        text(72, 700, "Another page.") + text(300, 30, "- 3 -"),
    ]
    document = read(pages)
    assert seen(document) == [("paragraph", " ".join(left + right + after)), ("paragraph", "Another page.")]
    assert [(i.page, i.text) for i in document.items if i.mask] == [(1, "- 1 -"), (2, "- 2 -"), (3, "- 3 -")]


def test_headings_lists_and_code_get_their_roles() -> None:
    content = "".join(
        [
            text(72, 740, "Large Title", 20, "F2"),
            paragraph("Some words of the body of this document, which is set in the", "usual size.", top=700),
            text(72, 660, "1.2 A bold heading", 10, "F2"),
            text(72, 640, "\x95 first item that is long enough to fill its line to the end of"),
            text(80, 628, "it and goes on"),
            text(72, 616, "\x95 second item"),
            text(72, 590, "1. one thing"),
            text(72, 578, "2. another thing"),
            text(72, 550, "def f(x):", 9, "F3"),
            text(72 + 4 * 5.4, 539, "return x + 1", 9, "F3"),
        ]
    )
    assert seen(read([content])) == [
        ("heading", "Large Title"),
        ("paragraph", "Some words of the body of this document, which is set in the usual size."),
        ("heading", "1.2 A bold heading"),
        ("list_item", "first item that is long enough to fill its line to the end of it and goes on"),
        ("list_item", "second item"),
        ("list_item", "1. one thing"),
        ("list_item", "2. another thing"),
        ("code", "def f(x):\n    return x + 1"),
    ]


def test_contents_keep_title_and_page_number_in_one_line() -> None:
    content = "".join(
        text(72, 700 - 12 * i, f"{i}.1 Section {'about ' * i}")
        + text(250, 700 - 12 * i, ". . . . . . . . . . . .")
        + text(500, 700 - 12 * i, f"{10 * i}")
        for i in range(1, 5)
    )
    assert [t for _, t in seen(read([content]))] == [
        f"{i}.1 Section {'about ' * i}… {10 * i}" for i in range(1, 5)
    ]


def test_ruled_cells_become_a_table() -> None:
    grid = "".join(rule(72, y, 372, y) for y in (700, 680, 660, 640)) + "".join(
        rule(x, 640, x, 700) for x in (72, 172, 372)
    )
    cells = [("Name", "What it does"), ("alpha", "begins"), ("omega", "ends with two words")]
    words = "".join(text(76, 686 - 20 * i, a) + text(176, 686 - 20 * i, b) for i, (a, b) in enumerate(cells))
    assert seen(read([grid + words])) == [
        ("table", "Name | What it does\nalpha | begins\nomega | ends with two words")
    ]


def test_table_without_outer_lines_keeps_the_lines_of_its_cells_together() -> None:
    lines_of_grid = "".join(rule(72, y, 372, y) for y in (680, 650)) + rule(172, 620, 172, 710)
    words = "".join(
        text(76, 698 - 30 * i, f"term {i}")
        + text(176, 700 - 30 * i, "two lines that")
        + text(176, 689 - 30 * i, "say it")
        for i in range(3)
    )
    assert seen(read([lines_of_grid + words])) == [
        ("table", "\n".join(f"term {i} | two lines that say it" for i in range(3)))
    ]


def test_numbers_in_columns_become_a_table_and_prose_in_columns_does_not() -> None:
    rows = [("City", "Cold", "Warm"), ("Oslo", "-4", "18"), ("Rome", "8", "31"), ("Lima", "15", "24")]
    content = "".join(
        text(x, 700 - 12 * i, cell)
        for i, row in enumerate(rows)
        for x, cell in zip((72, 200, 300), row, strict=True)
    )
    assert seen(read([content])) == [
        ("table", "City | Cold | Warm\nOslo | -4 | 18\nRome | 8 | 31\nLima | 15 | 24")
    ]


def test_accents_that_stand_as_own_glyphs_go_onto_their_letters() -> None:
    assert [t for _, t in seen(read([text(72, 700, "Poincar\xb4e na\xa8ive")]))] == ["Poincaré naïve"]


# --- what repeats


def book(num_pages: int, heading: str = "", size: float = 9) -> RawDocument:
    return read(
        [
            text(72, 760, "The Running Title", size)
            + text(500, 760, f"{i} / {num_pages}", size)
            + (text(72, 735, f"{2 * i}.1 {heading}", 10, "F2") if heading else "")
            + "".join(column(72, 700, lines(f"p{i}w", 20, 8)))
            + text(300, 40, "Copyright someone", 8)
            for i in range(1, num_pages + 1)
        ]
    )


def test_headers_footers_and_page_numbers_are_masked_and_stay() -> None:
    document = book(4)
    assert masked(document) == [
        pair
        for i in range(1, 5)
        for pair in (
            ("page_header", "The Running Title"),
            ("page_header", f"{i} / 4"),
            ("page_footer", "Copyright someone"),
        )
    ]
    assert [t for _, t in seen(document)] == [" ".join(lines(f"p{i}w", 20, 8)) for i in range(1, 5)]


def test_headings_at_the_top_of_pages_are_no_headers() -> None:
    document = book(5, "Introduction")
    assert ("heading", "4.1 Introduction") in seen(document)


def test_large_titles_that_repeat_are_no_headers() -> None:
    slides: list[Page | str] = [
        Page(text(40, 360, "Same title", 24) + text(60, 280 - 30 * i, f"point {i} of the talk", 12), 540, 405)
        for i in range(4)
    ]
    assert [t for _, t in seen(read(slides))].count("Same title") == 4


def test_pages_of_numbers_only_are_not_masked_away() -> None:
    assert [t for _, t in seen(read([text(300, 40, str(i)) for i in range(1, 6)]))] == list("12345")


def test_slides_that_the_next_one_repeats_and_extends_are_overlays() -> None:
    def slide(title: str, points: int) -> Page:
        body = "".join(text(60, 300 - 30 * k, f"\x95 {title} point {k} of these", 12) for k in range(points))
        return Page(text(40, 360, title, 24) + body, 540, 405)

    document = read([slide("One", 1), slide("One", 2), slide("One", 3), slide("Two", 1)])
    assert [(i.page, i.mask) for i in document.items if i.text in ("One", "Two")] == [
        (1, "overlay"),
        (2, "overlay"),
        (3, None),
        (4, None),
    ]
    assert [t for _, t in seen(document)] == [
        "One",
        "One point 0 of these",
        "One point 1 of these",
        "One point 2 of these",
        "Two",
        "Two point 0 of these",
    ]


# --- pictures


def test_jpeg_comes_as_the_bytes_in_the_file() -> None:
    image = Picture.jpeg(photo())
    (item,) = pictures(read([Page(picture("Im", 100, 400, 300, 200), images={"Im": image})]))
    assert (item.data, item.mime, item.page) == (image.data, "image/jpeg", 1)


def test_white_logo_comes_with_the_dark_ground_it_stands_on() -> None:
    logo = Image.new("RGBA", (60, 40), (255, 255, 255, 0))
    logo.paste((255, 255, 255, 255), (20, 10, 40, 30))
    content = "0 0 0.5 rg 80 380 340 240 re f\n" + picture("Im", 100, 400, 300, 200)
    (item,) = pictures(read([Page(content + text(72, 700, "Words."), images={"Im": Picture.raw(logo)})]))
    values = pixels(item)
    height, width, _ = values.shape
    assert values[height // 2, width // 2].min() > 240
    assert tuple(values[height // 8, width // 8]) == (0, 0, 128)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_pictures_are_upright_on_rotated_pages(rotation: int) -> None:
    upright = ["g", "g", "b", "r"]
    steps = rotation // 90
    wanted = upright[-steps:] + upright[:-steps] if steps else upright
    for image in (Picture.jpeg(photo()), Picture.raw(photo())):
        page = Page(picture("Im", 100, 400, 300, 200), images={"Im": image}, entries=f"/Rotate {rotation}")
        (item,) = pictures(read([page]))
        assert quarters(item) == wanted
        assert item.mime == ("image/jpeg" if "DCT" in image.entries else "image/png")


def test_mirrored_picture_is_shown_as_the_page_shows_it() -> None:
    content = "q -300 0 0 200 400 400 cm /Im Do Q\n"
    (item,) = pictures(read([Page(content, images={"Im": Picture.jpeg(photo())})]))
    assert quarters(item) == ["g", "g", "r", "b"]
    assert pixels(item)[20, 5].argmax() == 2


def test_soft_mask_becomes_transparency() -> None:
    image = photo().convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    (item,) = pictures(read([Page(picture("Im", 100, 400, 300, 200), images={"Im": Picture.raw(image)})]))
    assert item.data is not None
    with Image.open(io.BytesIO(item.data)) as found:
        assert found.mode == "RGBA"
        assert abs(np.asarray(found).astype(int) - np.asarray(image)).mean() < 3


def test_jpeg_under_a_mask_is_not_taken_as_it_is() -> None:
    mask = Image.new("L", (60, 40), 255)
    mask.paste(0, (0, 0, 30, 40))
    image = Picture.jpeg(photo())
    image.soft_mask = Picture.raw(mask)
    (item,) = pictures(read([Page(picture("Im", 100, 400, 300, 200), images={"Im": image})]))
    assert item.mime == "image/png"
    assert pixels(item)[30, 5].min() == 255  # the masked half is white


def test_cmyk_keeps_its_colours() -> None:
    cmyk = photo().convert("CMYK")
    inverted = "/Decode [1 0 1 0 1 0 1 0]"  # as Adobe, and Pillow, write such files
    for image in (Picture.raw(cmyk), Picture.jpeg(cmyk, inverted)):
        (item,) = pictures(read([Page(picture("Im", 100, 400, 300, 200), images={"Im": image})]))
        assert quarters(item) == ["g", "g", "b", "r"]


def test_inverted_jpeg_is_not_taken_as_it_is() -> None:
    image = Picture.jpeg(photo(), "/Decode [1 0 1 0 1 0]")
    (item,) = pictures(read([Page(picture("Im", 100, 400, 300, 200), images={"Im": image})]))
    assert item.mime == "image/png"
    assert abs(pixels(item)[30, 5] - (255 - np.array([200, 30, 30]))).max() < 12


def test_line_drawing_of_one_bit_stays_one_bit() -> None:
    image = Image.new("1", (64, 48), 1)
    image.paste(0, (0, 0, 32, 24))
    (item,) = pictures(read([Page(picture("Im", 100, 400, 320, 240), images={"Im": Picture.raw(image)})]))
    assert item.data is not None
    with Image.open(io.BytesIO(item.data)) as found:
        assert (found.mode, found.size) == ("1", (64, 48))
        assert list(found.tobytes()) == list(image.tobytes())


def test_strips_are_one_picture_and_photographs_side_by_side_are_two() -> None:
    whole = photo(60, 60)
    strips = {f"S{i}": Picture.raw(whole.crop((0, 10 * i, 60, 10 * i + 10))) for i in range(6)}
    content = "".join(picture(name, 100, 650 - 50 * i, 300, 50) for i, name in enumerate(strips))
    (item,) = pictures(read([Page(content, images=strips)]))
    assert quarters(item) == ["g", "g", "b", "r"]
    two = {"A": Picture.jpeg(photo()), "B": Picture.jpeg(photo(61))}
    content = picture("A", 100, 400, 150, 100) + picture("B", 250, 400, 150, 100)
    assert len(pictures(read([Page(content, images=two)]))) == 2


def test_cropped_picture_shows_what_the_page_shows() -> None:
    content = "q 100 400 150 200 re W n 300 0 0 200 100 400 cm /Im Do Q\n"
    (item,) = pictures(read([Page(content, images={"Im": Picture.jpeg(photo())})]))
    assert quarters(item) == ["g", "g", "r", "r"]


def test_picture_with_too_many_pixels_is_refused_by_name_and_never_decoded() -> None:
    bomb = Picture(
        "/Type /XObject /Subtype /Image /Width 60000 /Height 60000 /ColorSpace /DeviceRGB "
        "/BitsPerComponent 8 /Filter /FlateDecode ",
        b"x\x9c\x03\x00\x00\x00\x00\x01",
    )
    (item,) = pictures(read([Page(picture("Im", 0, 0, 600, 600), images={"Im": bomb})]))
    assert item.data is not None
    with pytest.raises(TooManyPixels, match="pixels"):
        images.decode(item.data, 10**8)


def test_words_under_a_picture_are_its_caption_and_follow_it() -> None:
    content = (
        picture("A", 80, 500, 200, 150)
        + picture("B", 320, 500, 200, 150)
        + text(120, 486, "(a) Left one", 9)
        + text(360, 486, "(b) Right one", 9)
        + text(255, 466, "Figure 2: Two pictures", 9)
        + "".join(column(72, 430, lines("body", 8, 10)))
    )
    document = read([Page(content, images={"A": Picture.jpeg(photo()), "B": Picture.jpeg(photo(64))})])
    assert [(r, t) for r, t in seen(document)][:-1] == [
        ("figure", None),
        ("caption", "(a) Left one"),
        ("figure", None),
        ("caption", "(b) Right one"),
        ("caption", "Figure 2: Two pictures"),
    ]


def test_drawing_becomes_a_picture_and_its_labels_alternative_text() -> None:
    curve = "1 0 0 RG 110 510 m 150 600 200 400 260 590 c S 110 520 m 260 600 l S 100 500 m 300 500 l S\n"
    content = (
        curve
        + rule(100, 500, 100, 640)
        + text(150, 486, "time in s", 8)
        + text(180, 610, "signal", 8)
        + "".join(column(72, 430, lines("body", 8, 10)))
    )
    document = read([content])
    assert [r for r, _ in seen(document)] == ["figure", "alt", "paragraph"]
    assert set((document.items[1].text or "").splitlines()) == {"signal", "time in s"}
    values = pixels(pictures(document)[0])
    assert ((values[..., 0] > 200) & (values[..., 1] < 100)).any()  # the curve is red


def test_logo_that_is_drawn_on_a_page_of_its_own_is_a_picture() -> None:
    (item,) = pictures(read([Page("1 0 0 rg 2 2 8 8 re f\n", 12, 12)]))
    assert (pixels(item)[12, 12] == (255, 0, 0)).all()


def test_rules_and_boxes_around_text_are_no_pictures() -> None:
    box = "0.9 g 60 560 500 160 re f 0 g 60 560 500 160 re S\n"
    document = read([box + "".join(column(72, 700, lines("body", 10, 10)))])
    assert [r for r, _ in seen(document)] == ["paragraph"]


def test_logo_on_every_page_is_part_of_the_header() -> None:
    logo = {"Im": Picture.jpeg(photo())}
    document = read(
        [
            Page(picture("Im", 450, 730, 60, 40) + "".join(column(72, 650, lines(f"p{i}w", 9))), images=logo)
            for i in range(3)
        ]
    )
    assert [i.mask for i in pictures(document)] == ["page_header"] * 3


def test_alternative_text_of_a_tagged_document_follows_its_picture() -> None:
    objects = [
        "<< /Type /StructTreeRoot /K 2 0 R /ParentTree 4 0 R >>",
        "<< /Type /StructElem /S /Document /P 1 0 R /K [3 0 R] >>",
        "<< /Type /StructElem /S /Figure /P 2 0 R /Alt (A red and blue flag) /K 0 /Pg 12 0 R >>",
        "<< /Nums [0 [3 0 R]] >>",
    ]
    content = "/Figure << /MCID 0 >> BDC\n" + picture("Im", 100, 400, 300, 200) + "EMC\n"
    page = Page(content, images={"Im": Picture.jpeg(photo())}, entries="/StructParents 0")
    data = made([page], catalog="/StructTreeRoot 1 0 R /MarkInfo << /Marked true >>", objects=objects)
    number = data[: data.index(b"/Type /Page /Parent")].rsplit(b" 0 obj", 1)[0].rsplit(b"\n", 1)[1]
    data = data.replace(b"/Pg 12 0 R", b"/Pg " + number + b" 0 R" + b" " * (2 - len(number)))
    assert seen(pdf.read(data, "x.pdf")) == [("figure", None), ("alt", "A red and blue flag")]


# --- scans


def scan(words: list[str]) -> Image.Image:
    image = Image.new("L", (850, 1100), 255)
    draw = ImageDraw.Draw(image)
    for i, line in enumerate(words):
        draw.text((100, 120 + 60 * i), line, fill=0, font=ImageFont.load_default(36))
    return image


def test_hidden_words_over_a_scan_are_its_text_and_the_scan_stays() -> None:
    layer = "".join(
        text(72, 690 - 43 * i, line, 24, "F3", mode=3) for i, line in enumerate(("one two", "three"))
    )
    page = Page(
        picture("Im", 0, 0, 612, 792) + layer, images={"Im": Picture.jpeg(scan(["one two", "three"]))}
    )
    document = read([page])
    assert document.items[0].kind == "image"
    assert " ".join(t or "" for r, t in seen(document)[1:]) == "one two three"


def test_hidden_words_without_a_scan_are_masked() -> None:
    document = read([text(72, 700, "What one sees.") + text(72, 600, "buy pills", mode=3)])
    assert seen(document) == [("paragraph", "What one sees.")]
    assert masked(document) == [("hidden_text", "buy pills")]


def test_text_without_known_characters_is_masked_and_the_page_is_a_picture() -> None:
    private = {c: chr(0xE000 + ord(c)) for c in string.ascii_lowercase}
    data = made(["".join(column(72, 700, ["words that nobody can read by code"] * 5))], to_unicode=private)
    document = pdf.read(data, "x.pdf", max_ocr_pages=0)
    assert seen(document) == [("figure", None)]
    assert [reason for reason, _ in masked(document)] == ["garbled_text"]


@pytest.mark.skipif(not ocr.is_available(), reason="needs the extra `ocr`")
def test_scanned_page_is_read_by_ocr_and_only_as_many_as_allowed() -> None:
    image = scan(["HELLO WORLD"]).crop((80, 80, 480, 480))
    data = made([Page(picture("Im", 0, 0, 200, 200), 200, 200, {"Im": Picture.jpeg(image)})] * 2)
    document = pdf.read(data, "x.pdf", max_ocr_pages=1)
    assert [(i.page, i.kind) for i in document.items] == [(1, "image"), (1, "text"), (2, "image")]
    assert (document.items[1].text or "").replace(" ", "") == "HELLOWORLD"


# --- files


def test_title_and_language_come_from_the_file() -> None:
    document = read([text(72, 700, "Words.")], title="A Stated Title", catalog="/Lang (de-CH)")
    assert (document.format, document.title, document.lang) == ("pdf", "A Stated Title", "de")


@pytest.mark.parametrize("stated", ["Microsoft Word - draft.doc", "untitled", "paper.dvi", ""])
def test_title_that_is_none_gives_way_to_the_largest_heading(stated: str) -> None:
    content = text(72, 740, "Real Title", 20) + text(72, 715, "Subtitle", 14) + paragraph("Body.", top=690)
    assert read([content + paragraph("More of it.", top=650)], title=stated).title == "Real Title"


def test_file_behind_a_password_is_encrypted_and_one_with_an_empty_password_opens() -> None:
    with pytest.raises(Encrypted, match="password"):
        read([text(72, 700, "Secret")], password="hunter2")
    assert seen(read([text(72, 700, "Not secret")], password="")) == [("paragraph", "Not secret")]


def test_truncated_file_gives_what_can_be_had_or_a_typed_error() -> None:
    whole = made([text(72, 700, f"Page number {i} says this.") for i in range(5)])
    for length in range(0, len(whole), 97):
        try:
            document = pdf.read(whole[:length], "x.pdf")
        except (MalformedMarkup, EmptyDocument):
            continue
        assert all((i.text or "").startswith("Page number") for i in document.items if i.mask is None)
    assert len(seen(pdf.read(whole[:-20], "x.pdf"))) == 5  # the table of contents is found again


@pytest.mark.parametrize("data", [b"", b"%PDF-1.4\n", b"\0" * 5000, b"<html>no</html>", made([])])
def test_what_is_no_pdf_or_has_no_pages_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMarkup, match="PDF"):
        pdf.read(data, "x.pdf")


def test_empty_pages_are_an_empty_document() -> None:
    with pytest.raises(EmptyDocument):
        read(["", ""])


@settings(max_examples=25)
@given(st.integers(0, 3000), st.binary(min_size=1, max_size=8))
def test_damaged_bytes_raise_nothing_but_typed_errors(place: int, junk: bytes) -> None:
    whole = made([text(72, 700, "Some words.") + rule(72, 600, 200, 600)] * 2, title="T")
    with contextlib.suppress(MalformedMarkup, EmptyDocument, Encrypted):
        pdf.read(whole[:place] + junk + whole[place + len(junk) :], "x.pdf")


def test_reading_twice_gives_the_same() -> None:
    data = made(
        [Page(picture("Im", 100, 400, 300, 200) + paragraph("Words."), images={"Im": Picture.raw(photo())})]
        * 2
    )
    assert pdf.read(data, "x.pdf") == pdf.read(data, "x.pdf")


def test_huge_page_is_drawn_within_the_pixel_limit() -> None:
    curve = "10 10 m 5000 13000 9000 200 14000 14000 c S 10 20 m 13000 200 l S 14000 10 m 100 9000 l S\n"
    (item,) = pictures(read([Page(curve, 14400, 14400)]))
    assert pixels(item).shape[0] * pixels(item).shape[1] <= 8_100_000
