"""Parameters in words, each with its unit."""

from __future__ import annotations

from typing import get_args

import pytest

from sim.report.quantities import quantity
from sim.schema.parameters import FrameworkSet, StackSet


@pytest.mark.parametrize(("parameter", "value", "text"), [
    ("kernel-tcp.cost_per_byte", 0.9287291e-9, "0.928729ns"),
    ("start_latency", 3.5e-5, "35us"),
    ("horovod.step_overhead", 7.5844464e-3, "7.58445ms"),
    ("gpus.effective", 2.32546772e13, "23.2547TFLOPS"),
    ("flow_rate", 24.999e9, "24.999Gbps"),
    ("headers", 114, "114B"),
    ("cores", 1.0, "1"),
    ("cost_per_packet", 0.0, "0ns"),
    ("per_tensor", 1e-6, "1us"),
])
def test_quantities_read_well(parameter: str, value: float, text: str) -> None:
    assert quantity(parameter, value) == text


UNITS = {"TimeParameter": {"ns", "us", "ms", "s"}, "SizeParameter": {"B"},
         "RateParameter": {"bps", "kbps", "Mbps", "Gbps", "Tbps"}}
"""Units of a figure by kind; all others are plain numbers."""


@pytest.mark.parametrize(("parameter", "kind"), [
    (name, get_args(field.annotation)[0].__name__)
    for model in (StackSet, FrameworkSet) for name, field in model.model_fields.items()
    if name not in ("base", "description")])
@pytest.mark.parametrize("value", [0.0, 0.565, 1.77])
def test_every_parameter_has_its_own_unit(parameter: str, kind: str, value: float) -> None:
    unit = quantity(f"a-set.{parameter}", value).lstrip("0123456789.-")
    assert unit in UNITS.get(kind, {""})
