import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import MalformedMarkup
from datapipe.sources import video
from datapipe.sources.items import Item
from datapipe.sources.video import Caption

CLIP = Item("video", "figure", href="v.webm")


def stretches(items: list[Item]) -> list[tuple[str, float | None, float | None]]:
    return [(i.text or "video", i.t_start_s, i.t_end_s) for i in items]


def test_vtt_and_srt_give_times_and_plain_words() -> None:
    vtt = b"""WEBVTT - x

NOTE 00:00:09.000 --> 00:00:10.000
no

1
00:01.500 --> 00:03.000 align:start
<v Ann>Tom &amp; <i>Jerry</i>
second line

01:00:00.000 --> 01:00:01.250
Late"""
    assert video.read_captions(vtt, "a.vtt") == [
        Caption(1.5, 3.0, "Tom & Jerry second line"),
        Caption(3600.0, 3601.25, "Late"),
    ]
    srt = "1\r\n00:00:01,500 --> 00:00:03,000\r\n{\\an8}Grüße\r\n\r\n".encode("cp1252")
    assert video.read_captions(srt, "a.srt") == [Caption(1.5, 3.0, "Grüße")]


def test_ttml_times_add_up_over_ancestors_and_know_every_unit() -> None:
    ttml = b"""<?xml version="1.0"?><tt xmlns="http://www.w3.org/ns/ttml" xmlns:ttp="http://www.w3.org/ns/ttml#parameter"
      ttp:frameRate="25"><body begin="10s"><div>
      <p begin="1s" end="2.5s">a<br/> b</p><p begin="00:00:03:05" dur="500ms">c</p>
      <p>untimed</p></div></body></tt>"""
    assert video.read_captions(ttml, "a.ttml") == [Caption(11.0, 12.5, "a b"), Caption(13.2, 13.7, "c")]


def test_rolling_captions_say_each_line_once() -> None:
    vtt = (
        b"WEBVTT\n\n00:00.000 --> 00:02.000\nhello there\n\n"
        b"00:02.000 --> 00:04.000\nhello there\nsecond line\n\n"
        b"00:04.000 --> 00:05.000\nsecond line\n"
    )
    assert video.read_captions(vtt, "a.vtt") == [
        Caption(0.0, 2.0, "hello there"),
        Caption(2.0, 5.0, "second line"),
    ]


@pytest.mark.parametrize("data", [b"WEBVTT\n\nno times here\n", b"<?xml version='1.0'?><tt><p>x", b""])
def test_caption_files_without_captions_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMarkup):
        video.read_captions(data, "a.vtt")


def test_a_captioned_video_is_cut_into_stretches_beside_their_words() -> None:
    items = video.captioned(
        CLIP, [Caption(1, 3, "a"), Caption(3.2, 5, "b"), Caption(4, 5, "c"), Caption(8, 9, "d")]
    )
    assert stretches(items) == [
        ("video", 0.0, 1),
        ("video", 1, 3),
        ("a", 1, 3),
        ("video", 3, 5),
        ("b", 3.2, 5),
        ("c", 4, 5),
        ("video", 5, 8),
        ("video", 8, 9),
        ("d", 8, 9),
        ("video", 9, None),
    ]


_captions = st.lists(
    st.tuples(st.floats(0, 50), st.floats(0.1, 9)).map(lambda p: Caption(p[0], p[0] + p[1], "x")), max_size=8
)


@settings(max_examples=50)
@given(_captions)
def test_stretches_tile_the_video_without_gap_or_overlap(captions: list[Caption]) -> None:
    items = video.captioned(CLIP, sorted(captions, key=lambda c: c.t_start_s))
    edges = [(i.t_start_s, i.t_end_s) for i in items if i.kind == "video"]
    assert edges[0][0] == 0.0 and edges[-1][1] is None
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(edges))
    assert sum(i.kind == "text" for i in items) == len(captions)


def test_captions_beside_a_video_are_looked_for_in_the_language_of_the_page_first() -> None:
    names = video.caption_names("a/v.mp4", "de")
    assert names[0] == "a/v.de.vtt" and names.index("a/v.srt") < names.index("a/v.en.vtt")
    assert video.caption_names("a/v.mp4", None)[0] == "a/v.vtt"
    assert len(video.caption_names("v.webm", "en")) == 8


def test_captions_in_utf_16_and_with_styles_are_read() -> None:
    srt = "1\n00:00:01,000 --> 00:00:02,000\n<font color=red>Привет</font> {\\b1}мир\n".encode("utf-16")
    assert video.read_captions(srt, "a.srt") == [Caption(1.0, 2.0, "Привет мир")]
