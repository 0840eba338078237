"""Tencent's table: nine cells, what was fitted to them, and what the table never compared."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from sim.answer.answer import answer
from sim.answer.scenario import run_scenario
from sim.cluster.cluster import Cluster
from sim.run import main
from sim.schema import load
from tests.support import ROOT

TACO = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
TABLE = {("Horovod+TCP", 1): 251, ("Horovod+TCP", 8): 1977, ("Horovod+TCP", 16): 847,
         ("Horovod+HARP", 1): 251, ("Horovod+HARP", 8): 1977, ("Horovod+HARP", 16): 1644,
         ("LightCC+HARP", 1): 251, ("LightCC+HARP", 8): 1977, ("LightCC+HARP", 16): 3562}
"""Images/s as Tencent's TACO Train documentation prints them."""
PREDICTED = ("LightCC+HARP", 16)


@pytest.fixture(scope="module")
def topology():
    return load(TACO)


@pytest.fixture(scope="module")
def rows(topology):
    report = answer(Cluster(topology), topology.scenarios, draws=8)
    return {(row.name, row.gpus): row for row in report.scenarios}


@pytest.mark.parametrize("cell", TABLE)
def test_the_nine_cells(rows, cell):
    row, within = rows[cell], 0.08 if cell == PREDICTED else 0.02
    assert row.images_per_s == pytest.approx(TABLE[cell], rel=within)
    assert row.expect.images_per_s == TABLE[cell]
    assert row.expect.within == within
    assert row.expect.kind == ("predicted" if cell == PREDICTED else "fitted")


def test_one_free_parameter_per_stack_and_none_for_the_prediction(topology):
    fitted = [expect.fits for expect in topology.expect if expect.fits]
    assert fitted == ["gpus.effective", "horovod.step_overhead", "taco-tcp.cost_per_byte",
                      "taco-harp.cost_per_byte", "taco-tcp-process.cost_per_byte",
                      "taco-harp-process.cost_per_byte"]
    assert all(expect.kind == "fitted" for expect in topology.expect if expect.fits)


def test_exposed_time_is_what_the_table_implies(rows):
    """1,900, 728 and 57 ms follow from the table: its 16-GPU steps less its 8-GPU step."""
    eight_s = 8 * 128 / 1977
    for name in ("Horovod+TCP", "Horovod+HARP"):
        implied_s = 16 * 128 / TABLE[name, 16] - eight_s
        # A collective that lasts as long as the backward pass slows all of it down.
        slowed_s = rows[name, 16].breakdown.compute_s - rows[name, 8].breakdown.compute_s
        assert 0 < slowed_s < 0.05 * 0.5
        assert rows[name, 16].breakdown.exposed_s + slowed_s == pytest.approx(implied_s, rel=0.02)


def test_open_choices_are_printed_beside_the_prediction(rows):
    row = rows[PREDICTED]
    assert row.interval.refitted
    assert row.interval.low_images_per_s < row.images_per_s < row.interval.high_images_per_s


@pytest.mark.parametrize("stack", ["TCP", "HARP"])
@pytest.mark.parametrize("name", ["dense 2D", "2D fp16", "flat top-k"])
def test_rows_that_tencent_never_compared(rows, stack, name):
    row = rows[f"{name}+{stack}", 16]
    assert row.expect is None
    assert row.interval is not None
    assert rows[f"Horovod+{stack}", 16].images_per_s < row.images_per_s < 16 * 251


@pytest.mark.parametrize("stack", ["TCP", "HARP"])
def test_both_readings_of_the_table_fit_it_and_part_beyond_it(rows, stack):
    """A ring leaves a host from one process: a ceiling of host or process fits the table."""
    ring, other = rows[f"Horovod+{stack}", 16], rows[f"Horovod+{stack} x8", 16]
    assert other.images_per_s == pytest.approx(ring.images_per_s, rel=1e-3)
    assert rows[f"2D+{stack} x8", 16].images_per_s > 1.2 * rows[
        f"dense 2D+{stack}", 16].images_per_s


def test_a_faster_nic_moves_the_cells_that_nothing_else_binds():
    """At 100 instead of 25 Gb/s kernel TCP as measured elsewhere is faster; Tencent's is not."""
    def step_s(name, rate):
        made = Cluster(load(TACO, [f"hosts[0].nics[0].rate={rate}"]))
        scenario = next(s for s in made.topology.scenarios if s.name == name)
        return run_scenario(made, scenario, 16)[0].step_s

    for name, moves in (("2D+kernel TCP", True), ("2D+HARP x8", True),
                        ("Horovod+TCP", False)):
        slow_s, fast_s = step_s(name, "25Gbps"), step_s(name, "100Gbps")
        assert (fast_s < 0.999 * slow_s) == moves, name


def test_every_breakdown_adds_up(rows):
    for (name, gpus), row in rows.items():
        parts = row.breakdown
        assert parts.step_s == pytest.approx(row.step_s), name
        assert row.images_per_s == pytest.approx(gpus * 128 / row.step_s)
        assert (parts.selection_s > 0) == (gpus == 16 and any(
            word in name for word in ("top-k", "LightCC", "fp16", "SparseLoCo"))), name


def test_the_command_prints_it_all():
    result = CliRunner().invoke(main, [str(TACO), "--explain", "--strict", "--draws", "0"])
    assert result.exit_code == 0
    for (name, gpus), wanted in TABLE.items():
        line = rf"{re.escape(name)} +{gpus} +\d+ +\d+ % +{wanted} "
        assert re.search(line, result.stdout), name
    explained = [line for line in result.stdout.splitlines() if "█" in line and "+" in line]
    assert len(explained) == 24
    for line in explained:
        step, *parts = [float(number) for number in re.findall(r"\d+\.\d", line)]
        assert sum(parts) == pytest.approx(step, abs=0.05), line


def test_rare_synchronisation_over_tcp_is_as_fast_as_top_k_over_harp(rows):
    """DiLoCo: an average in fp32 each 30 steps, at the ceiling of 2D over the same stack."""
    dense, compute = rows["dense 2D+TCP", 16].step_s, rows["Horovod+TCP", 8].step_s
    rare = rows["DiLoCo+TCP", 16].step_s
    assert rare == pytest.approx(compute + (dense - compute) / 30, rel=0.03)
    assert rare <= 1.1 * rows["LightCC+HARP", 16].step_s
    assert rows["SparseLoCo+TCP", 16].step_s <= 1.01 * compute
