import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_predictor.observations import MAX_SIZE
from libra_predictor.tables import StepTable, feature, merged, snapped, thresholds_of


def test_the_index_is_the_number_of_thresholds_reached() -> None:
    table = StepTable((10, 20), (1, 2, 3))
    assert [table.at(size) for size in (0, 9, 10, 19, 20, 10**15)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("thresholds", "values"), [((1,), (1,)), ((), ()), ((2, 1), (1, 2, 3)), ((1, 1), (1, 2, 3))]
)
def test_no_table(thresholds: tuple[int, ...], values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="threshold"):
        StepTable(thresholds, values)


def test_steps_that_change_nothing_are_left_out() -> None:
    assert merged([1, 2, 3], [5, 5, 6, 6]) == StepTable((2,), (5, 6))


@given(
    splits=st.lists(st.floats(0, 36, width=32), max_size=20),
    smallest=st.integers(0, MAX_SIZE - 1),
    width=st.integers(0, 1 << 40),
)
def test_a_threshold_is_the_smallest_size_that_reaches_its_split(
    splits: list[float], smallest: int, width: int
) -> None:
    largest = min(MAX_SIZE, smallest + width)
    thresholds = thresholds_of(np.array(splits, dtype=np.float32), smallest, largest)
    reachable = set()
    for split in splits:
        reached = [t for t in thresholds if feature(np.array([t]))[0] >= split]
        if not feature(np.array([smallest]))[0] < split <= feature(np.array([largest]))[0]:
            continue
        assert feature(np.array([reached[0] - 1]))[0] < split
        reachable.add(reached[0])
    assert thresholds == sorted(reachable)


def test_a_feature_tells_small_sizes_apart_and_not_large_ones() -> None:
    assert len(set(feature(np.arange(1000)).tolist())) == 1000
    large = feature(np.array([1 << 40, (1 << 40) + 1]))
    assert large[0] == large[1]
    assert math.isclose(large[0], 40 * math.log(2), rel_tol=1e-6)


@pytest.mark.parametrize(
    ("table", "samples", "expected"),
    [
        pytest.param(
            StepTable((50,), (1, 2)),
            [(10, 1), (20, 1), (50, 2), (60, 2)],
            StepTable((21,), (1, 2)),
            id="an upward step moves down to the last sample of the lower class",
        ),
        pytest.param(
            StepTable((50,), (2, 1)),
            [(10, 2), (20, 2), (50, 1), (60, 1)],
            StepTable((50,), (2, 1)),
            id="a downward step stays",
        ),
        pytest.param(
            StepTable((50,), (2, 3)),
            [(10, 1), (20, 3), (50, 3)],
            StepTable((11,), (2, 3)),
            id="a sample of a lower class still holds the step",
        ),
        pytest.param(
            StepTable((30, 50), (1, 2, 3)),
            [(10, 1), (20, 1), (60, 3)],
            StepTable((21,), (1, 3)),
            id="an interval without a sample goes to the larger answer",
        ),
        pytest.param(
            StepTable((50,), (1, 2)), [(60, 2)], StepTable((), (2,)), id="so does the first interval"
        ),
        pytest.param(
            StepTable((30, 50), (3, 1, 2)),
            [(10, 3), (35, 2), (60, 2)],
            StepTable((30,), (3, 2)),
            id="a dip without a sample is filled",
        ),
    ],
)
def test_snapping(table: StepTable, samples: list[tuple[int, int]], expected: StepTable) -> None:
    assert snapped(table, [s for s, _ in samples], [label for _, label in samples]) == expected


@given(data=st.data())
def test_snapping_never_answers_less(data: st.DataObject) -> None:
    sizes = st.integers(0, 200)
    thresholds = sorted(data.draw(st.sets(st.integers(1, 200), max_size=8)))
    labels = st.integers(1, 4)
    values = data.draw(st.lists(labels, min_size=len(thresholds) + 1, max_size=len(thresholds) + 1))
    table = StepTable(tuple(thresholds), tuple(values))
    samples = data.draw(st.lists(st.tuples(sizes, labels), max_size=20))
    after = snapped(table, [s for s, _ in samples], [label for _, label in samples])
    for size in range(202):
        assert after.at(size) >= table.at(size)
    for size, label in samples:
        if label <= table.at(size):
            assert after.at(size) == table.at(size), "a sample that the table had right is still right"
