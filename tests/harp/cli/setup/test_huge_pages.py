"""``harp setup`` on hosts in a folder: huge pages, their number, size and node."""

from __future__ import annotations

import pytest

from tests.harp.cli.setup.fake_host import GIB, MIB, FakeHost, fails, run, small


def total_gib(host):
    return sum(large + few / 512 for large, few in map(host.pages, host.nodes))


def test_missing_large_pages_become_small_ones(tmp_path):
    host = small(tmp_path)
    host.most_pages = {GIB: 3}
    output = run(host)
    assert host.pages() == (3, 12 * 512)
    assert "it is 3 now: memory is fragmented" in output
    before = list(host.commands)
    run(host)  # the kernel is asked for large ones again, and small ones stay
    assert host.pages() == (3, 12 * 512)
    assert not any(MIB in command for command in host.commands[len(before):])


def test_a_kernel_without_large_pages(tmp_path):
    host = small(tmp_path, sizes=(MIB,))
    run(host)
    assert host.read(host.pool(0, MIB)) == f"{15 * 512}\n"
    host = small(tmp_path / "none", sizes=())
    assert "this kernel has none" in run(host)


def test_pages_that_are_there_count(tmp_path):
    host = small(tmp_path)
    host.file(host.pool(0, GIB), "9")
    host.file(host.pool(0, MIB), str(8 * 512))
    run(host)
    assert host.pages() == (9, 8 * 512)


def test_nodes_get_pages_by_their_cards(tmp_path):
    host = FakeHost(tmp_path, {0: "0-3", 1: "4-7", 2: "8-15"})
    for number, node in enumerate([0, 1, 1], 1):
        host.card(f"eth{number}", node=node)
    run(host)
    assert [large + few / 512 for large, few in map(host.pages, host.nodes)] == [10, 15, 0]


def test_a_card_without_a_node_of_its_own(tmp_path):
    host = FakeHost(tmp_path, {0: "0-3", 1: "4-7"})
    host.card("eth1", node=-1)
    host.card("eth2", node=-1)
    run(host)
    assert total_gib(host) == 20
    assert host.pages(0) == host.pages(1)


def test_too_little_memory_is_reported_and_what_is_possible_is_done(tmp_path):
    host = small(tmp_path, memory_gib=16)
    output = run(host)
    assert "1 x 5 + 10 = 15 GiB are wanted, but only 14 GiB are possible with the " \
           "existing ones; these are used" in output
    assert total_gib(host) == 14
    commands = list(host.commands)
    run(host)
    assert host.commands == commands
    host = small(tmp_path / "asked", memory_gib=16)
    assert "use --hugepages 14" in fails(host, "--hugepages", "15")
    run(host, "--hugepages", "14")
    assert total_gib(host) == 14


@pytest.mark.parametrize("gib", [0, 1, 2, 3, 40])
def test_as_many_pages_as_are_asked_for(tmp_path, gib):
    host = FakeHost(tmp_path, {0: "0-3", 1: "4-7"})
    host.card("eth1", node=0)
    host.card("eth2", node=1)
    run(host, "--hugepages", str(gib))
    assert total_gib(host) == gib
