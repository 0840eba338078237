"""The states of parameters as bytes: what is read, written and taken over."""

from __future__ import annotations

import pytest
import torch

from tests.harp.angelptm.models import (
    batches,
    config,
    engine_of,
    parameters_of,
    seeded,
    train,
)


@pytest.mark.parametrize("caps", [{}, {"device": 14, "host": 160}], ids=["all", "little"])
def test_what_a_script_writes_between_steps_is_what_trains_on(tmp_path, caps):
    """In 16 bits, too, where the next update is of masters; what is not written keeps these."""
    other, data = seeded(seed=5).bfloat16().state_dict(), batches(6)
    with engine_of(seeded(seed=5).bfloat16(), config(bf16={"enabled": True})) as engine:
        expected = train(engine, data[:3]), parameters_of(engine)
    far = seeded()
    for one in far.parameters():
        torch.nn.init.constant_(one, 7.0)
    with engine_of(far, config(bf16={"enabled": True}, **caps)) as engine:
        engine.module.load_state_dict(other)
        assert train(engine, data[:3]) == expected[0]
        assert all(map(torch.equal, parameters_of(engine), expected[1]))
        engine.save_checkpoint(tmp_path)
        train(engine, data[3:])
        expected = parameters_of(engine)
    with engine_of(seeded(), config(bf16={"enabled": True}, **caps)) as engine:
        engine.load_checkpoint(tmp_path)
        for tokens in data[3:]:
            train(engine, [tokens])
            with torch.no_grad():
                for one in engine.module.parameters():
                    one.clamp_(-10, 10)
        assert all(map(torch.equal, parameters_of(engine), expected))
