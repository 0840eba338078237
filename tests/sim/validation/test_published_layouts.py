"""Published rows of large models: how far predictions are that are fitted to none of them."""

from __future__ import annotations

from statistics import median

import pytest
import yaml

from sim.validation.published_layouts import FILE, Row, predict, rows
from tests.support.levels import long

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


@long
def test_megatrons_table_is_within_a_tenth() -> None:
    errors = [predict(row).error for row in MEGATRON]
    assert median(map(abs, errors)) < 0.1
    assert max(map(abs, errors)) < 0.15


def test_samples_take_the_flops_that_nvidia_publishes() -> None:
    """Its pages say what a sample of 8,192 tokens takes."""
    published = {"8 B": 4.74e14, "70 B": 3.94e15, "405 B": 2.17e16}
    some = [row for row in rows() if "dgxc" in row.source]
    assert {row.name.split(",")[0] for row in some} == set(published)
    for row in some:
        network = row.topology.workload.network
        assert network.forward_flops + network.backward_flops == pytest.approx(
            published[row.name.split(",")[0]], rel=0.01)


@pytest.mark.parametrize(("source", "tflops"), [
    ("NVIDIA/NeMo", (736, 750, 782, 842, 776, 754, 759, 697, 738)),
    ("NeMo Framework 24.12", (643, 562)),
    ("NeMo Framework 25.02", (None, 1506, 1474, 1658, 1387, 1268, 1282, None))])
def test_tokens_take_the_flops_of_nemos_table(source: str,
                                              tflops: tuple[float | None, ...]) -> None:
    """It gives each row's TFLOP/s beside tokens/s, but one's.

    Those of Mixtral 8x22B, 824, are of half of attention's products, as a causal mask leaves them.
    """
    some = [row for row in rows() if source in row.source]
    for row, each in zip(some, tflops, strict=True):
        if each is None:
            continue
        workload = row.topology.workload
        network = workload.network
        token = (network.forward_flops + network.backward_flops) / network.tokens
        assert row.published * token / 1e12 == pytest.approx(each, rel=0.03), row.name


@pytest.mark.long
@pytest.mark.parametrize("source", ["NVIDIA/NeMo", "NVIDIA/dgxc"])
def test_nvidias_own_rows_are_within_a_sixth_in_the_median(source: str) -> None:
    errors = [predict(row).error for row in rows() if source in row.source]
    assert len(errors) >= 9
    assert median(map(abs, errors)) < 1 / 6


def test_each_source_says_against_what_it_was_checked() -> None:
    for source in yaml.safe_load(FILE.read_text("utf-8")):
        assert source["checked"].strip().startswith("20"), source["source"]


@long
@pytest.mark.parametrize("source", ["2205.05198", "A100 80GB"])
def test_other_sources_are_within_a_tenth_in_the_median(source: str) -> None:
    some: list[Row] = [row for row in rows() if source in row.source]
    assert len(some) >= 6
    assert median(abs(predict(row).error) for row in some) < 0.1


def test_rows_that_a_default_was_chosen_with_do_not_count() -> None:
    assert {row.source for row in rows() if not row.counts} == {
        source for source in {row.source for row in rows()} if "H100 80GB" in source}
