import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.sources.reading_order import Box, order

PAGE = (100.0, 100.0)


def medium(x0: float, y0: float, x1: float, y1: float) -> Box:
    return Box(x0, y0, x1, y1, is_medium=True)


PAGES = {
    "bands, then columns": [Box(0, 0, 99, 10), Box(0, 20, 45, 60), Box(50, 20, 99, 60), Box(0, 70, 99, 90)],
    "a tall column beside two boxes": [Box(0, 0, 45, 99), Box(50, 0, 99, 45), Box(50, 50, 99, 99)],
    "two boxes beside a tall column": [Box(0, 0, 45, 45), Box(0, 50, 45, 99), Box(50, 0, 99, 99)],
    "four equal cells are read in rows": [
        Box(0, 0, 45, 45),
        Box(50, 0, 95, 45),
        Box(0, 48, 45, 93),
        Box(50, 48, 95, 93),
    ],
    "a label over its text stays with it": [
        Box(0, 10, 45, 20),
        Box(0, 20, 45, 80),
        Box(50, 10, 95, 20),
        Box(50, 20, 95, 80),
    ],
    "a caption stays below its picture": [
        medium(0, 0, 30, 30),
        Box(0, 32, 30, 38),
        medium(40, 0, 70, 30),
        Box(40, 32, 70, 38),
        medium(0, 50, 30, 80),
        Box(0, 82, 30, 88),
        medium(40, 50, 70, 80),
        Box(40, 82, 70, 88),
    ],
    "label, picture and text in three columns": [
        box
        for x in (0, 35, 70)
        for box in (Box(x, 0, x + 25, 8), medium(x, 10, x + 25, 40), Box(x, 42, x + 25, 90))
    ],
    "boxes that overlap a little are still columns": [Box(0, 0, 52, 90), Box(50, 0, 99, 90)],
    "a background comes before what lies on it": [
        medium(0, 0, 100, 100),
        Box(5, 5, 50, 20),
        Box(5, 60, 50, 70),
    ],
    "one that begins below and overlaps all comes last": [
        Box(0, 0, 50, 30),
        Box(30, 20, 80, 45),
        Box(0, 25, 99, 99),
    ],
}


@pytest.mark.parametrize("boxes", PAGES.values(), ids=PAGES.keys())
def test_boxes_are_read_as_a_reader_would_however_they_are_stored(boxes: list[Box]) -> None:
    for seed in range(10):
        shuffled = random.Random(seed).sample(range(len(boxes)), len(boxes))
        found = order([boxes[n] for n in shuffled], *PAGE)
        assert [shuffled[n] for n in found] == list(range(len(boxes)))


def test_columns_are_read_from_the_right_where_the_script_is() -> None:
    assert order([Box(0, 0, 45, 99), Box(50, 0, 99, 99)], *PAGE, right_to_left=True) == [1, 0]


def test_boxes_at_the_same_place_keep_their_order() -> None:
    assert order([Box(1, 1, 5, 5)] * 7 + [Box(0, 0, 0, 0)] * 3, *PAGE) == [7, 8, 9, *range(7)]


corner = st.floats(0, 100, width=16)


@given(st.lists(st.tuples(corner, corner, corner, corner, st.booleans()), max_size=30))
def test_every_box_is_read_once(corners: list[tuple[float, float, float, float, bool]]) -> None:
    boxes = [Box(min(a, c), min(b, d), max(a, c), max(b, d), m) for a, b, c, d, m in corners]
    assert sorted(order(boxes, *PAGE)) == list(range(len(boxes)))


def test_many_boxes_without_a_cut_take_no_long_time() -> None:
    boxes = [Box(n / 100, n / 100, n / 100 + 50, n / 100 + 50) for n in range(3000)]
    assert order(boxes[::-1], *PAGE)[0] == 2999
