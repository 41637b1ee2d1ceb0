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
    earlier, later, distances = near_pairs(hashes, max_distance, max_earlier)
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
    earlier, later, distances = near_pairs(hashes, 4, 3)
    assert len(earlier) == 3 * 300 - 6 and not distances.any()
    assert earlier[later == 200].tolist() == [0, 1, 2]


def test_only_compatible_rows_are_paired() -> None:
    hashes, kind = np.zeros(10, np.uint64), np.arange(10) % 2
    earlier, later, _ = near_pairs(hashes, 0, 2, lambda one, two: kind[one] == kind[two])
    assert (kind[earlier] == kind[later]).all()
    assert earlier[later == 9].tolist() == [1, 3]
