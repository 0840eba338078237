"""Rows of the subject `routing`; its timings are not judged here."""

from __future__ import annotations

import numpy as np
import pytest

from bench.routing.cases import Case, alone, around, flows_of, make_ring, together
from bench.routing.packet_time import bound_ms, completion_ms
from bench.routing.routing_rows import (
    Result,
    flow_outcome,
    line,
    outcomes,
    records,
    replanned,
)
from harp.routing.templates import Endpoints, leaf_spine
from tests.support.levels import long

NBYTES = 4 << 20


@pytest.fixture(scope="module")
def case():
    """Two jobs whose ranks lie scattered, on a non-blocking leaf-spine."""
    fabric = leaf_spine(Endpoints.uniform(16, bps=100e9), leaves=4, spines=4)
    hosts = np.random.default_rng(3).permutation(16)
    return Case("two", fabric, [make_ring(fabric, some) for some in np.split(hosts, 2)])


def test_jobs_planned_together_meet_nowhere_and_alone_they_do(case):
    loads = {make: flow_outcome(case.fabric, flows_of(case, make(case))).load
             for make in (alone, around, together)}
    assert loads[together] == 1.0
    assert loads[alone] > 1.0
    assert loads[together] <= loads[around] <= loads[alone]


def test_packets_of_a_plan_take_the_time_of_one_flow_alone(case):
    (src, *_), (dst, *_) = case.ends
    one = completion_ms(case.fabric, case.fabric.flows(src, dst), NBYTES)
    assert bound_ms(100e9, NBYTES) < one
    planned = completion_ms(case.fabric, flows_of(case, together(case)), NBYTES)
    assert planned == pytest.approx(one, rel=0.1)
    assert completion_ms(case.fabric, flows_of(case, alone(case)), NBYTES) > 1.3 * planned
    assert completion_ms(case.fabric, case.fabric.flows(*case.ends), NBYTES, spray=True) < (
        1.3 * planned)


@long
def test_a_case_is_printed_in_rows(case):
    plans = {"alone": alone(case), "plan": together(case)}
    again = replanned(case, plans["plan"], np.random.default_rng(1))
    found = outcomes(case, plans, "flow")
    result = Result("flow-two", found, found["plan"], again).to_json()
    rows = {row["id"]: row for row in records(result)}
    assert rows["flow-two-plan-load"]["value"] == 1.0
    assert rows["flow-two-plan-completion"]["value"] <= rows["flow-two-plan-completion"]["target"]
    assert rows["flow-two-replan-worst"]["value"] >= rows["flow-two-replan-median"]["value"] > 0
    assert line(result).startswith("flow-two ")
