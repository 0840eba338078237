"""The LIGHT_* settings: defaults, precedence at every boundary, and what is refused."""

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp.lightcc.settings import NAMES, LightSettings
from sim.workloads.models import get_model

MIB = 1 << 20
GIB = 1 << 30
TWO_D = {"LIGHT_2D_ALLREDUCE": 1}
TOPK = {"LIGHT_TOPK_ALLREDUCE": 1}


def algorithm(nbytes, **env):
    return LightSettings.from_env({"LIGHT_SMALL_THRESHOLD": 0} | env).choose(nbytes).algorithm


def test_defaults_are_those_of_the_documentation():
    assert LightSettings.from_env({}) == LightSettings(
        two_d=False, intra_size=8, hierarchical_threshold_bytes=1073741824, topk=False,
        topk_ratio=0.01, topk_threshold_bytes=1048576, topk_fp16=False, small_bytes=16384)
    assert LightSettings.from_env({}).choose(GIB).algorithm == "ring"


@pytest.mark.parametrize(("nbytes", "two_d", "topk", "expected"), [
    (MIB, 0, 0, "ring"),
    (MIB, 1, 0, "2d"),
    (GIB, 1, 0, "2d"),              # up to the threshold, included
    (GIB + 1, 1, 0, "ring"),
    (MIB - 1, 0, 1, "ring"),
    (MIB, 0, 1, "sparse-flat"),     # from the threshold on, included
    (GIB + 1, 0, 1, "sparse-flat"),
    (MIB - 1, 1, 1, "2d"),
    (MIB, 1, 1, "sparse-2d"),
    (GIB + 1, 1, 1, "sparse-2d"),   # top-k comes before the limit of dense 2D
    (1, 0, 0, "ring"),
    (0, 1, 1, "2d"),
])
def test_precedence(nbytes, two_d, topk, expected):
    env = {"LIGHT_2D_ALLREDUCE": two_d, "LIGHT_TOPK_ALLREDUCE": topk}
    assert algorithm(nbytes, **env) == expected


def test_thresholds_of_zero():
    assert algorithm(0, **TOPK, LIGHT_TOPK_THRESHOLD=0) == "sparse-flat"
    assert algorithm((1 << 32) - 4, **TOPK) == "sparse-flat"
    assert algorithm(1 << 32, **TOPK) == "ring"  # sizes of pieces have 32 bits
    assert algorithm(1, **TWO_D, LIGHT_HIERARCHICAL_THRESHOLD=0) == "ring"


def test_between_the_thresholds_nothing_but_the_ring_is_left():
    env = {**TWO_D, **TOPK, "LIGHT_HIERARCHICAL_THRESHOLD": 100, "LIGHT_TOPK_THRESHOLD": 200}
    assert [algorithm(n, **env) for n in (100, 101, 199, 200)] == ["2d", "ring", "ring",
                                                                   "sparse-2d"]


def test_a_choice_carries_what_its_collective_needs():
    env = {**TWO_D, **TOPK, "LIGHT_INTRA_SIZE": 4, "LIGHT_TOPK_FP16": 1, "LIGHT_TOPK_RATIO": 0.1}
    settings = LightSettings.from_env(env)
    sparse = settings.choose(MIB)
    assert (sparse.intra_size, sparse.selected(1000), sparse.pair_bytes) == (4, 100, 6)
    assert sparse.sparse
    dense = settings.choose(1)
    assert (dense.algorithm, dense.intra_size, dense.fp16, dense.sparse) == ("2d", 4, False, False)
    flat = LightSettings.from_env(TOPK).choose(MIB)
    assert (flat.intra_size, flat.pair_bytes, flat.fp16) == (1, 8, False)


@given(st.integers(1, 999), st.integers(0, 10**7))
def test_selected_is_the_floor_of_the_decimal_and_at_least_one(thousandths, elements):
    ratio = Decimal(thousandths) / 1000
    settings = LightSettings.from_env({**TOPK, "LIGHT_TOPK_RATIO": str(ratio)})
    assert settings.choose(GIB).selected(elements) == max(1, math.floor(ratio * elements))


def test_a_ratio_is_the_decimal_that_was_written():
    choice = LightSettings.from_env({**TOPK, "LIGHT_TOPK_RATIO": "0.29"}).choose(GIB)
    assert choice.selected(100) == 29  # in binary floating point 0.29 * 100 is below 29


def test_the_published_run_compresses_eleven_tensors_of_vgg16():
    settings = LightSettings.from_env({
        "LIGHT_2D_ALLREDUCE": "1", "LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "2097152",
        "LIGHT_INTRA_SIZE": "8", "NCCL_ALGO": "RING", "HOME": "/root"})
    choices = [(settings.choose(4 * tensor.elements), tensor.elements)
               for tensor in get_model("vgg16").tensors]
    sparse = sum(8 * choice.selected(elements // 8) * choice.pair_bytes
                 for choice, elements in choices if choice.algorithm == "sparse-2d")
    dense = sum(4 * elements for choice, elements in choices if choice.algorithm == "2d")
    assert sum(choice.sparse for choice, _ in choices) == 11
    assert (sparse + dense) / 1e6 == pytest.approx(13.3, abs=0.05)  # MB out of each of two hosts


@pytest.mark.parametrize("one", [1, "1", 1.0, "1.0", " 1 ", True])
def test_a_flag_may_be_a_number_or_text(one):
    assert LightSettings.from_env({"LIGHT_2D_ALLREDUCE": one}).two_d is True


@pytest.mark.parametrize(("env", "says"), [
    ({"LIGHT_2D_ALREDUCE": 1}, "did you mean LIGHT_2D_ALLREDUCE"),
    ({"LIGHT_TOPK_THRESOLD": 1}, "did you mean LIGHT_TOPK_THRESHOLD"),
    ({"LIGHT_2D_ALLREDUCE": "yes"}, "LIGHT_2D_ALLREDUCE is 'yes'; allowed is 0 or 1"),
    ({"LIGHT_TOPK_FP16": 2}, "LIGHT_TOPK_FP16 is '2'; allowed is 0 or 1"),
    ({"LIGHT_BITS": 3}, "LIGHT_BITS is '3'; allowed is 8, 4 or 2, or 32 for float32"),
    ({"LIGHT_BITS_RING": 1, "LIGHT_2D_ALLREDUCE": 1},
     "LIGHT_BITS_RING and LIGHT_2D_ALLREDUCE are both 1"),
    ({"LIGHT_BITS": "int8"}, "LIGHT_BITS is 'int8'; allowed is 8, 4 or 2"),
    ({"LIGHT_INTRA_SIZE": 0}, "1 or more"),
    ({"LIGHT_INTRA_SIZE": 2.5}, "a whole number of ranks"),
    ({"LIGHT_TOPK_THRESHOLD": -1}, "a whole number of bytes"),
    ({"LIGHT_TOPK_THRESHOLD": "2MiB"}, "a whole number of bytes"),
    ({"LIGHT_HIERARCHICAL_THRESHOLD": "inf"}, "a whole number of bytes"),
    ({"LIGHT_TOPK_RATIO": 0}, "a share above 0"),
    ({"LIGHT_TOPK_RATIO": 1.01}, "up to 1"),
    ({"LIGHT_TOPK_RATIO": "nan"}, "a share above 0"),
    ({"LIGHT_TOPK_RATIO": ""}, "a share above 0"),
])
def test_a_contradiction_is_refused_in_one_sentence(env, says):
    with pytest.raises(ValueError, match=says) as caught:
        LightSettings.from_env(env)
    assert "\n" not in str(caught.value)


def test_settings_made_in_code_are_checked_too():
    with pytest.raises(ValueError, match=r"LIGHT_TOPK_RATIO is '2\.0'"):
        LightSettings(topk_ratio=2.0)
    with pytest.raises(ValueError, match="0 or more"):
        LightSettings().choose(-1)


def test_small_tensors_take_few_steps_where_no_other_setting_holds():
    assert [algorithm(n, LIGHT_SMALL_THRESHOLD=100) for n in (0, 100, 101)] == [
        "recursive-doubling", "recursive-doubling", "ring"]
    assert [LightSettings().choose(n).algorithm for n in (4096, 4097, 16384, 16385)] == [
        "recursive-doubling", "halving-doubling", "halving-doubling", "ring"]
    assert algorithm(50, **TWO_D, LIGHT_SMALL_THRESHOLD=100) == "2d"


def test_the_names_are_seven_and_three_of_ours():
    assert len(NAMES) == 10
    assert all(name.startswith("LIGHT_") for name in NAMES)
