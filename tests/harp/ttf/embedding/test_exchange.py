"""Tables over ranks train as one table does, and N ranks go on where M have saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from harp.ttf.embedding import exchange
from harp.ttf.embedding.checkpoint import load
from harp.ttf.embedding.exchange import Exchange
from tests.harp.ttf.embedding.exchange_rank import STEPS, Clicks, made, train, train_all
from tests.harp.ttf.embedding.test_checkpoint import contents
from tests.support.levels import long_except
from tests.support.torch_ranks import start

RANK = Path(__file__).with_name("exchange_rank.py")


def run_ranks(backend, folder, ranks, do):
    started = start(RANK, [backend, str(folder), do], ranks)
    said = [rank.communicate()[1] for rank in started]
    assert [rank.returncode for rank in started] == [0] * ranks, "\n".join(said)


def rows_of(model):
    return {(name, int(head["key"])): values for name, module in model.bags.items()
            for heads, parts in module.table.read()
            for head, values in zip(heads, parts, strict=True)}


def same_rows(found, expected):
    ours, theirs = rows_of(found), rows_of(expected)
    assert ours.keys() == theirs.keys()
    for key, values in ours.items():
        np.testing.assert_allclose(values, theirs[key], atol=2e-6)


@pytest.mark.parametrize(("backend", "saving", "loading"), long_except(
    [("lightcc", 1, 4), ("lightcc", 2, 4), ("lightcc", 3, 2), ("lightcc", 4, 1), ("lightcc", 4, 4),
     ("lightcc", 1, 3), ("gloo", 2, 1), ("gloo", 4, 2)], ("lightcc", 2, 4)))
def test_ranks_train_as_one_table_and_others_go_on(tmp_path, backend, saving, loading):
    expected, found = made(), made()
    train(expected, range(STEPS // 2))
    run_ranks(backend, tmp_path, saving, "save")
    load(found, tmp_path / "saved")
    same_rows(found, expected)
    train(found, range(STEPS // 2, STEPS))
    saved, copied = made(), made()
    load(saved, tmp_path / "saved")
    run_ranks(backend, tmp_path, loading, "go on")
    load(copied, tmp_path / "copied")
    assert contents(copied) == contents(saved)
    again = made()
    load(again, tmp_path / "saved")
    same_rows(again, found)


@pytest.mark.parametrize("backend", long_except(["gloo", "lightcc"], "lightcc"))
def test_tables_under_ddp_train_as_in_one_process(tmp_path, backend):
    expected, found = Clicks(), Clicks()
    train_all(expected)
    run_ranks(backend, tmp_path, 2, "ddp")
    load(found, tmp_path / "saved")
    same_rows(found.tables, expected.tables)
    for rank in range(2):
        for name, value in torch.load(tmp_path / f"top-{rank}").items():
            torch.testing.assert_close(value, expected.top.state_dict()[name], rtol=0, atol=2e-6)


@pytest.mark.parametrize("backend", long_except(["gloo", "lightcc"], "lightcc"))
def test_ranks_read_rows_on_disk_ahead(tmp_path, backend):
    run_ranks(backend, tmp_path, 2, "read ahead")


@pytest.mark.parametrize("backend", long_except(["gloo", "lightcc"], "lightcc"))
def test_a_rank_that_cannot_load_is_named_by_all_and_none_does(tmp_path, backend):
    run_ranks(backend, tmp_path, 1, "save")
    run_ranks(backend, tmp_path, 3, "refuse")


def test_without_a_group_it_says_what_to_call():
    assert not torch.distributed.is_initialized()
    with pytest.raises(RuntimeError, match=r"call torch.distributed.init_process_group\(\) first"):
        Exchange()


class Network:
    """What a rank of three asks torch.distributed for, in order; nothing is sent."""

    def __init__(self):
        self.calls = []

    def is_initialized(self):
        return True

    def get_rank(self, _):
        return 1

    def get_world_size(self, _):
        return 3

    def get_backend(self, _):
        return "gloo"

    def irecv(self, part, *, group, group_src):
        del group
        self.calls.append(("asks", group_src))
        part.fill_(group_src)
        return self

    def isend(self, part, *, group, group_dst):
        del group
        self.calls.append(("sends", group_dst, part.tolist()))
        return self

    def wait(self):
        pass


def test_a_rank_asks_all_for_their_parts_before_it_sends(monkeypatch):
    """Behind its own part on a connection, its peer would wait for the permission to send."""
    network = Network()
    monkeypatch.setattr(exchange, "dist", network)
    got = Exchange()._send(torch.tensor([4.0, 5.0, 6.0, 7.0]), np.array([1, 3, 0]),
                           np.array([2, 3, 1]))
    assert got.tolist() == [0, 0, 5, 6, 7, 2]
    assert network.calls == [("asks", 2), ("asks", 0), ("sends", 0, [4.0])]
