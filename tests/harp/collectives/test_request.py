"""Parameters of plans: the refusal of those that no plan can mean."""

from __future__ import annotations

import pytest

from harp.collectives.registry import make_plan
from tests.support.collectives_cases import divisors


def test_order_places_the_pattern():
    order = [3, 1, 0, 2]
    (phase,) = make_plan("ring", ranks=4, nbytes=64, order=order).phases()
    assert phase.src.tolist() == order
    assert phase.dst.tolist() == [1, 0, 2, 3]
    intra = next(make_plan("2d", ranks=4, nbytes=64, group=2, order=order).phases())
    assert set(zip(intra.src.tolist(), intra.dst.tolist(), strict=True)) == {
        (3, 1), (1, 3), (0, 2), (2, 0)}


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"name": "rign"}, "there is no plan 'rign'; did you mean 'ring'"),
    ({"name": "2D"}, "there is no plan '2D'.*allowed: ring, tree, recursive-doubling, "),
    ({"grup": 2}, "plans have no parameter 'grup'; did you mean 'group'"),
    ({"ranks": 0}, "ranks is 0, but must be at least 1"),
    ({"nbytes": -4}, "nbytes is -4, but must be at least 0"),
    ({"nbytes": 6}, "nbytes 6 is not a whole number of elements of 4 bytes"),
    ({"unit_bytes": 0}, "unit_bytes is 0, but must be at least 1"),
    ({"chunk_bytes": 0}, "chunk_bytes is 0, but must be at least 1"),
    ({"root": 12}, "root 12 is not one of the ranks 0 to 11"),
    ({"ratio": 0.0}, "ratio is 0.0, but must be above 0 and at most 1"),
    ({"value_bytes": 0}, "value_bytes is 0, but must be at least 1"),
    ({"order": [0] * 12}, "order must name each of the ranks 0 to 11 once"),
    ({"order": [0, 1]}, "order must name each of the ranks 0 to 11 once"),
    ({"name": "2d"}, "plan '2d' needs group, the number of ranks of a host"),
    ({"name": "2d", "group": 5},
     "group size 5 does not divide the 12 ranks; the nearest that does is 4"),
    ({"name": "2d-topk", "group": 0}, "group size 0 does not divide the 12 ranks"),
    ({"name": "hierarchical-alltoall", "group": 24}, "group size 24 does not divide the 12 ranks"),
])
def test_wrong_parameters_are_one_sentence(changes, sentence):
    parameters = {"name": "ring", "ranks": 12, "nbytes": 96} | changes
    with pytest.raises(ValueError, match=sentence) as error:
        make_plan(**parameters)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ranks", [1, 12, 17])
def test_every_divisor_is_a_group_size(ranks):
    for group in range(1, ranks + 1):
        if group in divisors(ranks):
            assert make_plan("2d", ranks=ranks, nbytes=400, group=group).ranks == ranks
        else:
            with pytest.raises(ValueError, match="does not divide"):
                make_plan("2d", ranks=ranks, nbytes=400, group=group)
