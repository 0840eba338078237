"""XML files for NCCL: speeds of nets, and rings."""

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.nccl_files import NcclFileError, Net, ring_graph, with_nets

DUMP = ('<system version="1"><cpu numaid="0"><gpu dev="0" rank="3"/><nic>'
        '<net name="eth0" speed="10000" latency="0"/><net name="eth1" speed="10000"/></nic></cpu>'
        "</system>")


def test_nets_get_their_speed_and_ranks_are_left_out():
    nets = {"eth0": Net(100_000, 12.5), "eth1": Net(25_000)}
    made = ElementTree.fromstring(with_nets(DUMP, nets))
    assert [net.attrib for net in made.iter("net")] == [
        {"name": "eth0", "speed": "100000", "latency": "12.5"}, {"name": "eth1", "speed": "25000"}]
    assert [gpu.attrib for gpu in made.iter("gpu")] == [{"dev": "0"}]


def test_a_file_that_was_changed_once_stays_as_it_is():
    nets = {"eth0": Net(100_000)}
    once = with_nets(DUMP, nets)
    assert with_nets(once, nets) == once
    assert all(line == line.rstrip() for line in once.splitlines())


@pytest.mark.parametrize(("text", "sentence"), [
    ("<a>", "it is no XML"),
    ('<system version="2"/>', "it begins with <system> and not with NCCL's <system version="),
    ('<system version="1"/>', "it has no net 'eth0', only none"),
    (DUMP.replace('name="eth0"', 'name="eth0" ' + " ".join(f'a{n}="1"' for n in range(15))),
     "<net> has 18 attributes, and NCCL reads 16"),
    (DUMP.replace('numaid="0"', f'numaid="{"0" * 254}"'), "<cpu> has a value that NCCL cannot"),
    (DUMP.replace("eth1", "a&lt;b"), "<net> has a value that NCCL cannot read: 'a<b'")])
def test_a_file_that_nccl_does_not_write_or_read_is_one_sentence(text, sentence):
    with pytest.raises(NcclFileError, match=sentence):
        with_nets(text, {"eth0": Net(1)})


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 20), st.permutations(range(12))), min_size=1, max_size=4))
def test_a_ring_leaves_a_host_by_the_nic_that_it_enters_by(rings):
    (graph,) = ElementTree.fromstring(ring_graph(rings, gigabytes_per_s=12.5, nvlink=True))
    assert (graph.get("nchannels"), graph.get("speedinter")) == (str(len(rings)), "12.5")
    same = len({tuple(gpus) for _, gpus in rings}) == 1
    assert (graph.get("samechannels"), graph.get("typeintra")) == (str(int(same)), "NVL")
    for channel, (nic, gpus) in zip(graph, rings, strict=True):
        kinds = [(node.tag, int(node.get("dev"), 16)) for node in channel]
        assert kinds == [("net", nic), *(("gpu", gpu) for gpu in gpus), ("net", nic)]
