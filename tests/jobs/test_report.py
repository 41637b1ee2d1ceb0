"""The report: self-contained, complete, deterministic, and honest about what is missing."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import samples
from jobs.errors import JobError
from jobs.plots import Series, lines
from jobs.report import write_report
from jobs.run_directory import open_run
from tests import make
from tests.jobs.make_run import (
    ADDRESS,
    CONTACT_URI,
    EMAIL,
    FIGURES_URI,
    NUM_STEPS,
    PHONE,
    VIDEO_URI,
    make_run,
    words,
)

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects what a test asks of a page: ids, links, pictures, and whether tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.open: list[str] = []
        self.unclosed: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.sources += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "xlink:href", "data", "srcset", "action")
        ]
        if tag == "img":
            self.pictures.append(found)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unclosed.append(tag)


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_run(str(tmp_path_factory.mktemp("run") / "small"))


@pytest.fixture(scope="module")
def html(run_path: str) -> str:
    return Path(write_report(run_path)).read_text(encoding="utf-8")


def section(html: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', html, re.DOTALL)
    assert found is not None
    return found.group()


def test_the_page_asks_nothing_of_the_network(html: str) -> None:
    page = Page(html)
    assert all(source.startswith(("#", "data:image/")) for source in page.sources)
    assert not re.search(r"url\((?!#)|@import|<script|<link|<iframe", html)


def test_the_page_is_well_formed_and_accessible(html: str) -> None:
    page = Page(html)
    assert page.unclosed == [] and page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert page.pictures and all(picture.get("alt") for picture in page.pictures)
    assert html.count("<svg") == html.count('role="img" aria-label="Line plot') + html.count(
        'aria-label="Histogram'
    ) + html.count('aria-label="Stacked bars')
    targets = re.findall(r'<li><a href="#([^"]+)"', html)
    assert set(targets) <= set(page.ids) and len(targets) == 8


def test_the_same_run_gives_the_same_bytes(run_path: str, html: str) -> None:
    assert Path(write_report(run_path)).read_text(encoding="utf-8") == html


def test_the_funnel_counts_what_left_and_why(html: str) -> None:
    funnel = words(section(html, "funnel"))
    assert "clean text repair, language, empty pages 24 23 1 too short" in funnel
    assert "dedupe text exact and near duplicates 23 22 1 exact duplicate" in funnel
    assert "pages/contact-copy.html" in funnel
    assert "TooLarge in ingest 1 pages/huge.html 700 MB, the limit is 512 MB" in funnel


def test_samples_show_variety(run_path: str) -> None:
    run = open_run(run_path)
    chosen = [
        samples.show(run, "mask_media", doc_id, why) for doc_id, why in samples.choose(run, "mask_media")
    ]
    assert [(sample.row["uri"], sample.why) for sample in chosen if sample] == [
        (VIDEO_URI, "a video with captions"),
        (FIGURES_URI, "several pictures in reading order"),
        (CONTACT_URI, "personal data masked in text"),
    ]


def test_pictures_and_captions_stand_in_reading_order(html: str) -> None:
    documents = section(html, "documents")
    marks = ["Working with", "part 0.", "Figure 1.", "part 1.", "Figure 2."]
    places = [documents.index(mark, documents.index("several pictures")) for mark in marks]
    assert places == sorted(places)
    assert documents[places[1] : places[2]].count('<img src="data:image/webp') == 1


def test_masked_text_is_marked_with_its_reason(html: str) -> None:
    for value, reason in ((EMAIL, "email"), (PHONE, "phone"), (ADDRESS, "ip")):
        assert re.search(rf'<mark class="no_loss" title="{reason}: no_loss [^"]*">{re.escape(value)}<', html)


def test_dropped_pictures_are_faded_and_say_why(html: str) -> None:
    faded = re.findall(r'<figure class="left">.*?</figure>', section(html, "documents"), re.DOTALL)
    assert [re.findall(r'class="why">([^<]+)', figure) for figure in faded] == [
        ["repeated image"],
        ["too small"],
        ["media error"],
        ["media error"],
        ["repeated image"],
    ]
    assert "the file could not be had" in faded[3]


def test_text_of_documents_cannot_become_markup(html: str) -> None:
    assert "&lt;b&gt;also&lt;/b&gt;" in html
    assert "<b>also</b>" not in html


def test_scores_show_auc_and_both_ends(html: str) -> None:
    scores = section(html, "scores")
    assert words(scores).count("On held-out documents") == 2
    assert "0.93" in scores and "0.71" in scores
    values = [float(value) for value in re.findall(r'class="score">([-\d.]+)', scores)]
    low, high = values[2:6], values[6:10]  # text_quality follows alignment's one document at each end
    assert low == sorted(low) and high == sorted(high, reverse=True) and low[-1] < high[-1]


def test_the_plan_counts_its_tokens_by_kind(run_path: str, html: str) -> None:
    run = open_run(run_path)
    planned = run.table("plan", "plan")
    assert planned is not None
    total = sum(
        end - start
        for start, end in zip(planned["start"].to_pylist(), planned["end"].to_pylist(), strict=True)
    )
    text = words(section(html, "plan").replace("\u202f", ""))
    counts = [
        int(re.search(rf"\b{kind} (\d+)", text.split("by kind of span")[1]).group(1))  # type: ignore[union-attr]
        for kind in ("text", "image", "video", "special")
    ]
    assert counts[1:3] == [4 * 6, 2 * 6]  # four pictures and two stretches of six tokens each
    assert sum(counts) == total


def test_training_shows_first_and_last_losses_and_what_pictures_tell(html: str) -> None:
    pretraining = words(section(html, "pretraining"))
    assert f"{NUM_STEPS} steps" in pretraining
    assert "image 18 2.625 3.79 2.875 +0.2500" in pretraining
    assert "sparse from here" in pretraining


def test_rewards_before_and_after_and_with_exchanged_pictures_stand_in_one_table(html: str) -> None:
    rl = words(section(html, "rl"))
    assert "Measure before after exchanged" in rl
    assert "colour 0.3 0.86 0.28 count 0.21 0.55 0.2" in rl


def test_rollouts_show_the_picture_and_the_right_answer_of_their_task(html: str) -> None:
    rl = section(html, "rl")
    assert rl.count('alt="picture of the task"') == 6
    for group in re.findall(r'<div class="rollout">.*?</ul></div>', rl, re.DOTALL):
        truth = re.search(r"answer: (\w+)", group)
        assert truth is not None
        for state, answer in re.findall(r'<li class="(\w+)"[^>]*>(\w+)</li>', group):
            assert (state == "right") == (answer == truth.group(1))


@pytest.mark.parametrize(
    "steps", [(), ("ingest",), ("ingest", "clean", "plan"), ("pretrain",), ("rl", "score_alignment")]
)
def test_missing_steps_are_said_and_not_failed_on(tmp_path: Path, steps: tuple[str, ...]) -> None:
    text = Path(write_report(make_run(str(tmp_path / "part"), steps))).read_text(encoding="utf-8")
    for name, step in (
        ("funnel", "ingest"),
        ("documents", "ingest"),
        ("plan", "plan"),
        ("pretraining", "pretrain"),
        ("rl", "rl"),
    ):
        assert ("has not run in this run" in section(text, name).split("Held-out evaluation")[0]) == (
            step not in steps
        )
    assert Page(text).unclosed == []


def test_a_path_without_a_run_is_one_clear_error(run_path: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"no run at .*it holds no run.json; runs nearby: .*small"):
        write_report(str(Path(run_path).parent / "smal"))
    with pytest.raises(JobError, match=r"it holds no run\.json$"):
        write_report(str(tmp_path / "none"))


@given(
    text=st.text(min_size=1, max_size=60),
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=4),
)
@settings(max_examples=50)
def test_painting_masks_keeps_every_character(text: str, ranges: list[tuple[int, int]]) -> None:
    masks = [
        {
            "start": min(pair),
            "end": min(max(pair), len(text)),
            "reason": "r",
            "action": "no_loss",
            "detector": "d",
            "box": None,
        }
        for pair in ranges
    ]
    shown = re.sub(r'<span class="reason">r</span>', "", samples.painted(text, masks))
    assert (
        samples.Markup(re.sub(r"</?mark[^>]*>", "", shown)).unescape()
        == samples.Markup.escape(text).unescape()
    )


def test_a_long_text_is_cut_around_its_mask() -> None:
    text = "a" * 5000 + EMAIL + "b" * 5000
    mask = {
        "start": 5000,
        "end": 5000 + len(EMAIL),
        "reason": "email",
        "action": "drop",
        "detector": "d",
        "box": None,
    }
    shown = samples.painted(text, [mask])
    assert f">{EMAIL}<" in shown and len(shown) < 1000
    assert shown.startswith("… a") and shown.endswith("b …")


def test_thumbnails_are_small_and_bad_bytes_have_none() -> None:
    assert samples.thumbnail(b"no picture") is None
    assert samples.thumbnail(None) is None
    found = samples.thumbnail(make.picture(2000, 1500))
    assert found is not None and len(found) < 20_000


def test_plots_leave_out_missing_values_and_scale_to_the_page() -> None:
    drawn = lines(
        [Series("text", [1, 2, 3], [2.0, None, 1.0]), Series("video", [1], [float("nan")])],
        "Loss",
        "step",
        "nats",
    )
    assert "text from 2 to 1." in drawn
    assert re.match(r'<svg class="plot" role="img" aria-label="[^"]+" viewBox="0 0 \d+ \d+">', drawn)
