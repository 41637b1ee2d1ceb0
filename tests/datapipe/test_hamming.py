"""The search of near hashes against comparing all with all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import hamming
from datapipe.hamming import near_pairs


def planted(count: int, seed: int, copies: int) -> np.ndarray:
    """Random hashes, some of them copies of earlier ones with up to 16 bits changed."""
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**64, count, dtype=np.uint64)
    for _ in range(copies):
        source, target = rng.integers(0, count, 2)
        changed = sum(1 << int(bit) for bit in rng.choice(64, rng.integers(0, 17), replace=False))
        hashes[target] = hashes[source] ^ np.uint64(changed)
    return hashes


def all_pairs(hashes: np.ndarray, max_distance: int) -> list[tuple[int, int, int]]:
    pairs = []
    for later in range(1, len(hashes)):
        distances = np.bitwise_count(hashes[:later] ^ hashes[later])
        pairs += [(int(e), later, int(distances[e])) for e in np.flatnonzero(distances <= max_distance)]
    return sorted(pairs)


def found(hashes: np.ndarray, max_distance: int, max_earlier: int = 10**6) -> list[tuple[int, int, int]]:
    earlier, later, distances, *_ = near_pairs(hashes, max_distance, max_earlier)
    return sorted(zip(earlier.tolist(), later.tolist(), distances.tolist(), strict=True))


@pytest.mark.parametrize("max_distance", [0, 3, 4, 10, 15])
@pytest.mark.parametrize("count", [1, 300, 2500])
def test_all_near_pairs_are_found_and_no_others(count: int, max_distance: int) -> None:
    hashes = planted(count, max_distance, count // 4)
    assert found(hashes, max_distance) == all_pairs(hashes, max_distance)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 12), st.integers(1, 5))
def test_a_row_is_paired_with_the_nearest_before_it(seed: int, max_distance: int, max_earlier: int) -> None:
    few = np.random.default_rng(seed).integers(0, 2**64, 4, dtype=np.uint64)
    hashes = few[np.random.default_rng(seed).integers(0, 4, 60)] ^ planted(60, seed, 0) % np.uint64(8)
    pairs, expected = all_pairs(hashes, max_distance), []
    for row in range(60):
        before = [(d, e) for e, later, d in pairs if later == row]
        expected += [(e, row, d) for d, e in sorted(before)[:max_earlier]]
    assert found(hashes, max_distance, max_earlier) == sorted(expected)


def test_many_equal_hashes_cost_no_more_memory_than_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_FEW", 100), ("_MAX_COMPARED", 5_000), ("_MAX_HELD", 10_000)):
        monkeypatch.setattr(hamming, name, value)
    hashes = np.concatenate([np.full(300, 7, np.uint64), planted(100, 1, 0)])
    earlier, later, distances, *_ = near_pairs(hashes, 4, 3)
    assert len(earlier) == 3 * 300 - 6 and not distances.any()
    assert earlier[later == 200].tolist() == [0, 1, 2]


def crowd(count: int, seed: int = 0) -> np.ndarray:
    """Hashes that differ from one in three bits at most."""
    flips = np.random.default_rng(seed).integers(0, 64, (3, count)).astype(np.uint64)
    return np.bitwise_xor.reduce(np.uint64(1) << flips, axis=0)


@pytest.mark.parametrize("is_compatible", [None, lambda one, two: two > one + 3])
def test_equal_hashes_are_compared_in_proportion_to_their_number(is_compatible: object) -> None:
    compared = []
    for count in (5_000, 20_000):
        found = near_pairs(np.full(count, 7, np.uint64), 10, 16, is_compatible)  # type: ignore[arg-type]
        assert len(found.earlier) > 15.9 * count and not found.distance.any() and found.num_cut == 0
        compared.append(found.num_compared / count)
    assert max(compared) < 50 and compared[1] < 1.1 * compared[0]


def test_equal_hashes_that_must_not_meet_are_given_up_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hamming, "MAX_ALIKE", 64)
    found = near_pairs(np.full(10_000, 7, np.uint64), 10, 16, lambda one, two: one < 0)
    assert len(found.earlier) == 0
    assert found.num_compared <= 64 * 10_000 and found.num_cut == 10_000 - 64 - 1


def test_near_hashes_are_compared_in_proportion_to_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hamming, "MAX_MET", 256)
    compared = []
    for count in (3_000, 12_000):
        others = planted(2_500, 3, 600)
        found = near_pairs(np.concatenate([crowd(count), others]), 10, 16)
        assert 0 < found.num_cut <= count
        compared.append(found.num_compared / count)
        # Who stands in no crowd has all of its pairs.
        apart = found.earlier >= count
        alone = near_pairs(others, 10, 16)
        assert (found.earlier[apart] - count).tolist() == alone.earlier.tolist()
        assert (found.later[apart] - count).tolist() == alone.later.tolist()
    assert max(compared) < 4 * 256 * 8 and compared[1] < 1.3 * compared[0]


def test_groups_of_equal_hashes_that_are_near_are_paired_as_single_rows_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hamming, "_FEW", 100)
    monkeypatch.setattr(hamming, "_MAX_COMPARED", 1_000)
    monkeypatch.setattr(hamming, "_MAX_HELD", 500)
    hashes = np.random.default_rng(5).choice(crowd(12), 400)
    kind = np.random.default_rng(6).integers(0, 3, 400)
    found = near_pairs(hashes, 6, 5, lambda one, two: kind[one] == kind[two])
    expected = []
    for row in range(400):
        before = [
            (int(np.bitwise_count(hashes[e] ^ hashes[row])), e) for e in range(row) if kind[e] == kind[row]
        ]
        expected += [(e, row, d) for d, e in sorted(pair for pair in before if pair[0] <= 6)[:5]]
    assert list(zip(*(side.tolist() for side in found[:3]), strict=True)) == expected
    assert found.num_cut == 0


def test_only_compatible_rows_are_paired() -> None:
    hashes, kind = np.zeros(10, np.uint64), np.arange(10) % 2
    earlier, later, *_ = near_pairs(hashes, 0, 2, lambda one, two: kind[one] == kind[two])
    assert (kind[earlier] == kind[later]).all()
    assert earlier[later == 9].tolist() == [1, 3]
