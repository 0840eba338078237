"""The choice of a plan: settings come first, then a table, then the size."""

from __future__ import annotations

import pytest

from harp.collectives.tuning import Communicator, Row, Tuning
from harp.lightcc.policy import allreduce_path, between_path, tuning_of
from harp.lightcc.settings import LightSettings
from tests.harp.lightcc.test_settings import MIB, TOPK, TWO_D


def path_of(nbytes, ranks=8, *, sparse=True, element_bytes=4, **env):
    settings = LightSettings.from_env({"LIGHT_INTRA_SIZE": 4, "LIGHT_BITS": 8} | env)
    path = allreduce_path(settings, ranks, nbytes, sparse=sparse, element_bytes=element_bytes)
    return path.plan, dict(path.parameters)


def test_few_bits_are_for_gradients_of_float32_that_are_not_small():
    assert path_of(16385) == ("few-bits", {"bits": 8})
    assert path_of(16384)[0] == "halving-doubling"
    assert path_of(MIB, sparse=False)[0] == "ring"
    assert path_of(MIB, element_bytes=2)[0] == "ring"
    assert path_of(MIB, LIGHT_BITS=32)[0] == "ring"
    assert path_of(MIB, **TOPK)[0] == "topk"
    assert path_of(MIB - 4, **TOPK, LIGHT_BITS=2) == ("few-bits", {"bits": 2})


def test_few_bits_travel_between_groups_alone():
    assert path_of(MIB, **TWO_D) == ("2d-few-bits", {"group": 4, "bits": 8})
    assert path_of(MIB, ranks=6, **TWO_D) == ("few-bits", {"bits": 8})
    for ranks in (3, 4):
        assert path_of(MIB, ranks=ranks, **TWO_D) == ("2d", {"group": ranks})
    settings = LightSettings(two_d=True, bits=4)
    assert between_path(settings, 2, MIB, MIB // 4, sparse=True).plan == "few-bits"
    assert between_path(settings, 2, MIB, MIB // 4, sparse=False).plan == "ring"


def test_a_table_with_a_mark_at_its_front_is_a_table(tmp_path):
    path = tmp_path / "tuning.json"
    path.write_bytes(b"\xef\xbb\xbf" + Tuning(()).to_json().encode())
    assert tuning_of({"HARP_TUNER": str(path)}) == Tuning(())


def test_a_table_chooses_where_no_setting_does_and_trees_need_equal_hosts():
    tuning = Tuning((Communicator(8, 2, (Row("AllReduce", 0, 1000, "Tree", "LL"),
                                         Row("AllReduce", 1001, 1 << 30, "Ring", "LL"))),))
    settings = LightSettings.from_env({})
    for nbytes, plan, parameters in ((1000, "tree", {"group": 4}), (1001, "ring", {})):
        path = allreduce_path(settings, 8, nbytes, tuning=tuning, hosts=2)
        assert (path.plan, dict(path.parameters)) == (plan, parameters)
        assert "the table of HARP_TUNER" in path.why
    two_d = allreduce_path(LightSettings(two_d=True, intra_size=4), 8, 1000, tuning=tuning, hosts=2)
    assert two_d.plan == "2d"


def test_hosts_that_groups_do_not_divide_are_named_in_the_reason():
    path = allreduce_path(LightSettings(two_d=True, intra_size=4), 6, MIB)
    assert (path.plan, path.why) == ("ring", "groups of LIGHT_INTRA_SIZE 4 do not divide 6 ranks")


@pytest.mark.parametrize(("content", "why"), [
    (None, "No such file or directory"), (b"\xff", "it is not text"), (b"{}", ".+")])
def test_a_table_that_cannot_be_read_is_named(tmp_path, content, why):
    path = tmp_path / "tuning.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^HARP_TUNER {path}: {why}$"):
        tuning_of({"HARP_TUNER": str(path)})
    assert tuning_of({}) is None
