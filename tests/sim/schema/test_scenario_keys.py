"""Keys of the runs."""

import pytest

from harp.lightcc.settings import LightSettings
from sim.schema import load
from sim.schema.scenario_keys import link_ends
from tests.sim.schema.test_load import DATA


def test_light_settings_are_those_that_lightcc_reads():
    scenario = load(DATA / "good" / "everything.yaml").scenarios[0]
    settings = LightSettings.from_env(scenario.light_settings)
    assert settings.intra_size == 4
    assert settings.topk_threshold_bytes == 2097152
    assert not settings.topk_fp16


@pytest.mark.parametrize(("link", "ends"), [
    ("leaf0-spine0", ("leaf0", "spine0", False)),
    ("leaf0->spine0", ("leaf0", "spine0", True)),
    ("a-0/eth0-leaf0", ("a-0/eth0", "leaf0", False)),
    ("leaf-0-a-0/eth0", ("leaf-0", "a-0/eth0", False)),
])
def test_ends_of_a_link_are_found_though_names_hold_hyphens(link, ends):
    assert link_ends(link, {"leaf0", "spine0", "a-0/eth0", "leaf-0"}) == ends
