"""Training that goes back to its last commit when the group is lost."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import harp.lightcc.horovod.torch as hvd
from harp.lightcc.horovod import rejoin
from harp.lightcc.horovod.horovod_errors import HorovodInternalError, HostsUpdatedInterrupt


@pytest.fixture
def state():
    model = nn.Linear(3, 1)
    return hvd.elastic.TorchState(
        model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        sampler=hvd.elastic.ElasticSampler(range(10)), epoch=0, log=[])


def train(state):
    state.optimizer.zero_grad()
    state.model(torch.ones(1, 3)).sum().backward()
    state.optimizer.step()
    state.epoch += 1
    state.log.append(state.epoch)
    state.sampler.record_batch(state.epoch - 1, 2)


def test_what_comes_after_a_commit_is_taken_back_and_nothing_else(state):
    train(state)
    state.commit()
    weights = [one.detach().clone() for one in state.model.parameters()]
    momentum = state.optimizer.state[state.model.weight]["momentum_buffer"].clone()
    train(state)
    assert not torch.equal(weights[0], state.model.weight)
    for _ in range(2):  # what is kept is not what is trained on
        state.restore()
        assert (state.epoch, state.log) == (1, [1])
        assert len(state.sampler.processed_indices) == 2
        assert all(map(torch.equal, state.model.parameters(), weights))
        assert torch.equal(state.optimizer.state[state.model.weight]["momentum_buffer"], momentum)
        train(state)


@pytest.mark.parametrize(("error", "restored"), [
    (HorovodInternalError("rank 1 is gone"), True), (HostsUpdatedInterrupt(), False)],
    ids=["a lost rank", "more hosts"])
def test_a_function_is_called_again_with_what_is_left_of_its_state(state, alone, monkeypatch,
                                                                   error, restored):
    met, resets = [], []
    monkeypatch.setattr(rejoin, "meet_again", lambda: met.append(1))
    state.register_reset_callbacks([lambda: resets.append(state.epoch)])

    @hvd.elastic.run
    def go(state, steps):
        while state.epoch < steps:
            train(state)
            if state.epoch == 2:
                state.commit()
            if state.epoch == 3 and not met:
                raise error
        return state.log

    assert go(state, 5) == [1, 2, 3, 4, 5]
    assert (met, resets) == ([1], [2 if restored else 3])


def test_an_error_of_the_function_itself_is_raised(state, alone):
    @hvd.elastic.run
    def go(state):
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        go(state)
