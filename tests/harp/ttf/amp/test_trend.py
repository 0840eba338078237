"""The robust trend, against the medians of numpy over the last losses."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harp.ttf.amp.trend import LEAST, LEAST_DEVIATION, Trend

losses = st.lists(st.floats(-100, 100).map(lambda value: round(value, 3)), min_size=1, max_size=60)


@given(losses, st.floats(-1000, 1000), st.integers(0, 3))
def test_a_loss_leaves_where_medians_of_the_window_say_so(values, loss, alarms):
    trend = Trend(window=20, deviations=8.0)
    for _ in range(alarms):
        trend.widen()
    for value in values:
        trend.add(value)
    last = np.array(values[-20:])
    if len(last) < LEAST:
        assert trend.limit() == np.inf
    else:
        middle = np.median(last)
        deviation = max(1.4826 * np.median(abs(last - middle)), LEAST_DEVIATION * abs(middle))
        np.testing.assert_allclose(trend.limit(), middle + 1.5**alarms * 8.0 * deviation,
                                   rtol=1e-12)
    assert trend.leaves(loss) == (loss > trend.limit())


@given(losses, losses)
def test_a_trend_goes_on_from_its_state(values, more):
    one, other = (Trend(window=20, deviations=8.0) for _ in range(2))
    for value in values:
        one.add(value)
    other.load_state_dict(one.state_dict())
    for value in more:
        one.add(value)
        other.add(value)
    assert one.limit() == other.limit()
