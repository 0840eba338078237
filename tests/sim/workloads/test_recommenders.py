"""Recommenders, against the counts of their authors."""

from itertools import pairwise

import pytest

from sim.workloads.models import get_model
from sim.workloads.recommenders import mixture_layers


def mlp(*widths):
    """Parameters of linear layers from each width to the next."""
    return sum(inputs * outputs + outputs for inputs, outputs in pairwise(widths))


@pytest.mark.parametrize(("name", "network", "rows", "width"), [
    ("wide-and-deep", mlp(845, 1024, 512, 256, 1), 33_762_577, 33),
    ("deepfm", mlp(390, 400, 400, 400, 1) + 13 * 11, 33_762_577, 11),
    ("dlrm", mlp(13, 512, 256, 64, 16) + mlp(16 + 27 * 13, 512, 256, 1), 33_762_577, 16),
    ("dlrm-terabyte", mlp(13, 512, 256, 128) + mlp(128 + 27 * 13, 1024, 1024, 512, 256, 1),
     187_767_399, 128),
    ("mmoe", 8 * mlp(845, 16) + 2 * 845 * 8 + 2 * mlp(16, 8, 1), 33_762_577, 32)])
def test_recommenders_are_their_tables_and_a_network(name, network, rows, width):
    """Criteo's public logs have 33,762,577 values (Naumov et al. 2019); the tables are spread."""
    model = get_model(name)
    assert sum(tensor.elements for tensor in model.tensors) == network
    assert model.parameters == network + rows * width
    tables, = (layer for layer in model.layers if layer.lookups)
    assert (tables.lookups, tables.alltoall_elements) == (26, 26 * width)


@pytest.mark.parametrize(("name", "published"), [("dlrm", 540e6), ("dlrm-terabyte", 24e9)])
def test_dlrm_has_the_parameters_that_its_authors_count(name, published):
    """Naumov et al. 2019, section 5.1: some 540 million; MLPerf's: 24 billion."""
    assert get_model(name).parameters == pytest.approx(published, rel=0.005)


def test_mmoe_is_as_large_as_the_shared_layer_that_its_authors_compare_it_with():
    """Ma et al. 2018: of 100 inputs; experts and towers as one layer of 113 and its towers."""
    layers = [layer for layer in mixture_layers(100) if not layer.name.startswith("gate")]
    shared = mlp(100, 113) + 2 * mlp(113, 8, 1)
    assert sum(layer.parameters for layer in layers) == pytest.approx(shared, rel=0.01)
