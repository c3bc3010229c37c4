"""Published answers of a function, read in their two ways."""

from hypothesis import given
from hypothesis import strategies as st

from libra_predictor.observations import UNKNOWN_SIZE
from libra_predictor.published import Answers, Published, Record, Stage
from libra_predictor.tables import StepTable

NONE = Record("xgboost")
volumes = st.integers(0, 5000)
tables = st.lists(st.integers(1, 100), unique=True, max_size=5).flatmap(
    lambda thresholds: st.builds(
        StepTable,
        st.just(tuple(sorted(thresholds))),
        st.tuples(*[volumes] * (len(thresholds) + 1)),
    )
)


@given(
    st.builds(Answers, tables, tables, tables, st.tuples(volumes, volumes, volumes), tables, volumes),
    st.tuples(volumes, volumes),
    st.tuples(volumes, volumes),
)
def test_answers_with_the_offset_in_them_are_the_same_answers(
    answers: Answers, offset: tuple[int, int], largest: tuple[int, int]
) -> None:
    published = Published(
        "default/f", "", 1, Stage.MODELLED, "", answers, offset, largest, 12, 0, NONE, NONE, NONE, None
    )
    without = published.answers_with_offset()
    for size in (UNKNOWN_SIZE, *range(102)):
        assert without.at(size) == published.at(size)
        assert without.cpu_time_at(size) == answers.cpu_time_at(size)
