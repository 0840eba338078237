"""LIGHT_BITS in a topology file: what gradients in few bits take, by closed forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sim.answer.scenario import Run
from sim.workloads.models import get_model
from tests.support.cluster_files import ALPHA_S, FREE, RATE_BPS, cluster

if TYPE_CHECKING:
    from pathlib import Path

N = get_model("vgg16").parameters
B = RATE_BPS / 8
ONE = {"fusion": {"threshold": "100GB", "cycle": "100s"}}
"""All gradients in one bucket, which goes when all are there."""


def step_s(tmp_path: Path, hosts: int, light: dict[str, Any] | None, **given: Any) -> float:
    keys = {} if light is None else {"allreduce": "light", "light": light}
    built = cluster(tmp_path, hosts=hosts, scenario=ONE | keys | given.pop("scenario", {}), **given)
    (result,) = Run(built, built.topology.scenarios[0], built.gpus).go()
    return result.step_s


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("hosts", [2, 4])
def test_two_exchanges_of_encoded_parts(tmp_path, hosts, bits):
    """Scales add 4 bytes to 256 values; a ring of floats takes as many latencies as steps."""
    encoded = N * (bits / 8 + 4 / 256)
    share = (hosts - 1) / hosts
    wanted = 2 * (ALPHA_S + share * encoded / B) - 2 * ((hosts - 1) * ALPHA_S + share * 4 * N / B)
    found = (step_s(tmp_path, hosts, {"LIGHT_BITS": bits})
             - step_s(tmp_path, hosts, {"LIGHT_BITS": 32}))
    assert found == pytest.approx(wanted, rel=0.01)


def test_a_ring_takes_as_many_latencies_as_that_of_floats(tmp_path):
    """Where steps are as many, encoded parts save their bytes alone."""
    wanted = 2 * 3 / 4 * (4 * N - N * (1 + 4 / 256)) / B
    found = (step_s(tmp_path, 4, {"LIGHT_BITS": 32})
             - step_s(tmp_path, 4, {"LIGHT_BITS": 8, "LIGHT_BITS_RING": 1}))
    assert found == pytest.approx(wanted, rel=0.01)


def test_between_hosts_alone_floats_stay_within(tmp_path):
    """Over NVLink GPUs of a host add up float32 first, and give each other sums in few bits."""
    light = {"LIGHT_2D_ALLREDUCE": 1, "LIGHT_INTRA_SIZE": 4}
    spared = 4 * N - N * (1 + 4 / 256)
    wanted = 2 * spared / 2 / B + 3 / 4 * spared / 100e9
    found = (step_s(tmp_path, 2, light, gpus=4)
             - step_s(tmp_path, 2, light | {"LIGHT_BITS": 8}, gpus=4))
    assert found == pytest.approx(wanted, rel=0.01)


def test_encoding_and_adding_take_the_memorys_time(tmp_path):
    """As much as their bytes beside the 6 of a cast."""
    def at(cast: str) -> float:
        return step_s(tmp_path, 4, {"LIGHT_BITS": 8}, frameworks={
            "free": FREE | {"cast_per_element": cast}})

    each_s = 6e-12 / 6
    wanted = each_s * N * (13 + 9 + 13 / 4 + 9)  # all, what comes for a part, its sum, all sums
    assert at("6e-12s") - at("0s") == pytest.approx(wanted, rel=0.01)


def test_sixteen_bits_travel_whole(tmp_path):
    half = {"fp16": True}
    bits = step_s(tmp_path, 2, {"LIGHT_BITS": 8}, scenario=half)
    assert bits == step_s(tmp_path, 2, {}, scenario=half)
