"""Shot cuts and sampling, on made videos whose cuts are known."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from datapipe.decode import frames, sampling, shots, video
from datapipe.spec import VideoSpec
from tests import clips

LIMIT = 10**6
BLACK = np.zeros((72, 128, 3), np.uint8)
WHITE = np.full((72, 128, 3), 255, np.uint8)
Scene = tuple[float, Callable[[float], np.ndarray]]


def scanned(scenes: list[Scene]) -> tuple[bytes, video.Video, shots.Scan]:
    data = clips.shots(scenes)
    found = video.probe(data, LIMIT)
    return data, found, shots.scan(data, found)


def cuts(*scenes: Scene) -> list[float]:
    return shots.cuts(scanned(list(scenes))[2])


def mixed(a: Callable[[float], np.ndarray], b: Callable[[float], np.ndarray], seconds: float) -> Scene:
    """A scene in which `a` turns into `b`."""

    def draw(time_s: float) -> np.ndarray:
        share = time_s / seconds
        return ((1 - share) * a(time_s) + share * b(0)).round().astype(np.uint8)

    return seconds, draw


def still(picture: np.ndarray) -> Callable[[float], np.ndarray]:
    return lambda time_s: picture


def test_hard_cuts_are_found_at_the_first_frame_of_the_new_shot() -> None:
    found = cuts(*((1.5, clips.scene(seed, 0.05)) for seed in range(6)))
    assert found == pytest.approx([1.5, 3.0, 4.5, 6.0, 7.5], abs=0.1)


def test_motion_even_fast_is_no_cut() -> None:
    def waves(time_s: float) -> np.ndarray:
        return np.roll(clips.scene(3)(0), round(40 * np.sin(6 * time_s)), axis=1)

    assert cuts((3, clips.scene(1, 0.1))) == cuts((3, clips.scene(2, 0.6))) == []
    assert cuts((3, waves)) == []


def test_flashes_and_a_blink_to_black_within_a_shot_are_no_cuts() -> None:
    shot = clips.scene(4, 0.02)
    for picture in (WHITE, BLACK):
        assert cuts((2, shot), (0.1, still(picture)), (2, lambda t: shot(2 + t))) == []

    def bright(time_s: float) -> np.ndarray:
        return np.clip(shot(time_s).astype(int) + 90, 0, 255).astype(np.uint8)

    assert cuts((2, shot), (0.2, bright), (2, lambda t: shot(2.2 + t))) == []


@pytest.mark.parametrize("picture", [BLACK, WHITE])
def test_a_fade_through_one_colour_is_one_cut_in_its_middle(picture: np.ndarray) -> None:
    one, other = clips.scene(5), clips.scene(6)
    found = cuts(
        (2, one),
        mixed(one, still(picture), 0.6),
        (0.3, still(picture)),
        mixed(still(picture), other, 0.6),
        (2, other),
    )
    assert found == pytest.approx([2.75], abs=0.25)


def test_a_long_black_stretch_is_a_shot_of_its_own() -> None:
    found = cuts((2, clips.scene(7)), (2, still(BLACK)), (2, clips.scene(8)))
    assert found == pytest.approx([2.0, 4.0], abs=0.1)


def test_a_dissolve_is_one_cut_in_its_middle() -> None:
    for length_s in (0.5, 1.0, 1.5):
        one, other = clips.scene(9), clips.scene(10)
        found = cuts((2.5, one), mixed(one, other, length_s), (2.5, other))
        assert found == pytest.approx([2.5 + length_s / 2], abs=0.3)


def test_dark_pictures_have_cuts_too() -> None:
    dark = [lambda t, s=seed: clips.scene(s)(t) // 5 for seed in range(3)]
    assert cuts(*((1.5, scene) for scene in dark)) == pytest.approx([1.5, 3.0], abs=0.1)


def test_one_picture_and_one_frame_have_no_cut() -> None:
    assert cuts((3, clips.scene(1))) == cuts((1 / 12, clips.scene(1))) == []


def test_the_scan_does_not_depend_on_threads() -> None:
    data, found, once = scanned([(1.0, clips.scene(seed, 0.3)) for seed in range(3)])
    again = shots.scan(data, found, threads=2)
    assert all(
        np.array_equal(getattr(once, name), getattr(again, name)) for name in ("times_s", "change", "small")
    )


def test_of_a_very_long_video_only_keyframes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shots, "MAX_FULL_SCAN_PIXELS", 1)
    _, found, scan = scanned([(2, clips.scene(seed)) for seed in range(3)])
    assert len(scan.times_s) == len(found.keyframes) < found.num_frames
    assert not scan.is_sound
    assert scan.times_s.tolist() == [found.times_s[found.timestamps.index(k)] for k in found.keyframes]


# ---- which frames are taken


def test_a_fixed_rate_is_kept_until_the_budget_is_spent() -> None:
    assert sampling.times_at_rate(100.0, 1.0, 4) == [0.0, 25.0, 50.0, 75.0]
    assert sampling.times_at_rate(3.2, 1.0, 64) == [0.0, 1.0, 2.0, 3.0]
    assert sampling.times_at_rate(0.04, 1.0, 64) == [0.0]


def test_change_takes_one_frame_of_each_shot_and_more_where_the_picture_changes() -> None:
    data, found, scan = scanned(
        [(3, clips.scene(1)), (1, clips.scene(2)), (4, clips.scene(3, 0.25)), (0.5, clips.scene(4))]
    )
    times_s = sampling.times_by_change(scan, 2.0, 64)
    edges = [0, 3, 4, 8, 8.5]
    counts = np.histogram(times_s, edges)[0].tolist()
    assert counts[0] == counts[1] == counts[3] == 1
    assert 3 <= counts[2] <= 8
    in_shot = [t for t in times_s if 4 <= t < 8]
    assert all(b - a >= 0.5 - 1e-6 for a, b in itertools.pairwise(in_shot))
    sample = frames.sample(data, found, times_s)
    assert [f.t_s for f in sample.frames] == pytest.approx(times_s)


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libvpx"])
def test_frames_collected_while_looking_are_those_decoded_alone(codec: str) -> None:
    data = clips.clip(75, codec, "matroska", rate=25)
    found = video.probe(data, LIMIT)
    spec = VideoSpec(frames_per_second=7, max_frame_side=96)
    _, taken = sampling.scan_and_sample(data, found, spec)
    alone = frames.sample(data, found, sampling.times_at_rate(found.duration_s, 7, 64), 96)
    assert [clips.number_of(f.pixels) for f in taken.frames] == [round(f.t_s * 25) for f in taken.frames]
    assert [(f.t_s, f.pixels.tobytes()) for f in taken.frames] == [
        (f.t_s, f.pixels.tobytes()) for f in alone.frames
    ]


def test_the_budget_of_change_is_kept_and_goes_to_the_most_unlike_shots() -> None:
    scenes = [clips.scene(seed) for seed in (1, 1, 2, 2, 3)]
    bumps = [(1.2, lambda t, s=s, k=k: np.roll(s(t), 20 * k, axis=1)) for k, s in enumerate(scenes)]
    _, _, scan = scanned(bumps)
    assert len(shots.cuts(scan)) == 4
    for budget in (2, 3, 4):
        assert len(sampling.times_by_change(scan, 1.0, budget)) == budget
    assert sampling.times_by_change(scan, 1.0, 64) == sampling.times_by_change(scan, 1.0, 64)


def test_a_line_of_text_on_a_still_screen_is_new() -> None:
    def screen(lines: int) -> np.ndarray:
        picture = np.full((72, 128, 3), 40, np.uint8)
        for line in range(lines):
            picture[6 + 8 * line : 9 + 8 * line, 6:90:2] = 220
        return picture

    _, _, scan = scanned([(2, still(screen(n))) for n in range(1, 6)])
    times_s = sampling.times_by_change(scan, 1.0, 64)
    assert {int(t // 2) for t in times_s} == set(range(5))
