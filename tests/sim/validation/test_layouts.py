"""Published rows of large models: how far predictions are that are fitted to none of them."""

from __future__ import annotations

from statistics import median

import pytest

from sim.validation.layouts import Row, predict, rows

MEGATRON = [row for row in rows() if "2104.04473" in row.source]


def test_shapes_have_the_published_parameters() -> None:
    """Megatron-LM's table names its rows by them."""
    for row in MEGATRON:
        billions = row.topology.workload.network.parameters / 1e9
        assert billions == pytest.approx(float(row.name.split()[0]), rel=0.03)


def test_steps_have_the_published_batches() -> None:
    for row, samples in zip(MEGATRON, (512, 512, 512, 1024, 1536, 1792, 2304, 2160, 2520, 3072),
                            strict=True):
        workload, layout = row.topology.workload, row.topology.scenarios[0].layout
        assert row.gpus // layout.split * workload.batch * workload.accumulation == samples


def test_megatrons_table_is_within_a_tenth() -> None:
    errors = [predict(row).error for row in MEGATRON]
    assert median(map(abs, errors)) < 0.1
    assert max(map(abs, errors)) < 0.15


@pytest.mark.parametrize("source", ["2205.05198", "A100 80GB"])
def test_other_sources_are_within_a_tenth_in_the_median(source: str) -> None:
    some: list[Row] = [row for row in rows() if source in row.source]
    assert len(some) >= 6
    assert median(abs(predict(row).error) for row in some) < 0.1


def test_rows_that_a_default_was_chosen_with_do_not_count() -> None:
    assert {row.source for row in rows() if not row.counts} == {
        source for source in {row.source for row in rows()} if "H100 80GB" in source}
