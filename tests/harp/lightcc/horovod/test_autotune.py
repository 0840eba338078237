"""Autotune: the fastest settings are kept, and what is learned stays unless allowed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harp.lightcc.horovod.autotune import Tuner, apply, choices
from harp.lightcc.horovod.horovod_settings import Settings
from harp.lightcc.horovod.negotiation import Request, Response
from harp.lightcc.settings import LightSettings
from tests.harp.lightcc.horovod.test_runtime import PROMPT, reduce_all, runtimes_of


def answer_of(nbytes):
    return Response((Request("allreduce", "a", "float32", (nbytes // 4,), nbytes),))


def test_autotune_keeps_what_was_fastest_and_tries_compression_only_where_allowed(tmp_path):
    settings = Settings(autotune_steps=2, autotune_warmup=1, autotune_log=str(tmp_path / "log"))
    light = LightSettings(topk=True, topk_threshold_bytes=1 << 20, topk_fp16=True)
    tuner = Tuner(settings, light)
    now, tuned = 0.0, {"threshold_bytes": 128 << 20, "cycle_s": 1e-3, "two_d": False,
                       "topk_threshold_bytes": 1 << 20, "topk_fp16": True}
    tried = set()
    while not tuner.is_over:
        # A network that likes 32 MiB, no cycle, compression from 256 KiB on, and float32.
        slow = (1 + (tuned["threshold_bytes"] != 32 << 20) + (tuned["cycle_s"] != 0)
                + (tuned["topk_threshold_bytes"] != 256 << 10) + tuned["topk_fp16"])
        tried.add(tuned["topk_threshold_bytes"])
        now += slow * 1e-3
        tuned = tuner.look([answer_of(4 << 20)], now) or tuned
    assert tuned == tuner.best == {"threshold_bytes": 32 << 20, "cycle_s": 0.0, "two_d": False,
                                   "topk_threshold_bytes": 256 << 10, "topk_fp16": False}
    assert apply(tuned, light) == (0.0, 32 << 20, replace(
        light, topk_threshold_bytes=256 << 10, topk_fp16=False))
    assert len(tried) == 4
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0].startswith("threshold_bytes,cycle_s")
    assert len(lines) == 1 + 1 + 3 + 4 + 3 + 1


@pytest.mark.parametrize("light", [LightSettings(), LightSettings(topk_fp16=True),
                                   LightSettings(topk=True), LightSettings(two_d=True)])
def test_autotune_changes_nothing_that_changes_what_is_learned_unless_allowed(light):
    tried = choices(Settings(), light)
    assert len(tried["topk_threshold_bytes"]) == (4 if light.topk else 1)
    assert tried["topk_fp16"] == [light.topk_fp16]
    assert len(tried["two_d"]) == (2 if light.two_d else 1)


def looks_until_a_trial_is_over(warmup):
    tuner = Tuner(Settings(autotune_steps=1, autotune_warmup=warmup), LightSettings())
    return next(n for n in range(1, 1000) if tuner.look([answer_of(4)], float(n)))


def test_as_many_samples_as_are_said_are_left_out_to_warm_up_even_none():
    none, one, two = map(looks_until_a_trial_is_over, range(3))
    assert none < one
    assert one - none == two - one


def test_a_log_that_cannot_be_written_is_named_at_first_and_later_ends_no_job(tmp_path, caplog):
    lost = tmp_path / "gone" / "log.csv"
    settings = Settings(autotune_steps=1, autotune_warmup=0, autotune_log=str(lost))
    with pytest.raises(ValueError, match=f"^HOROVOD_AUTOTUNE_LOG {lost} cannot be written: No "
                                         "such file or directory$"):
        Tuner(settings, LightSettings())
    lost.parent.mkdir()
    tuner = Tuner(settings, LightSettings())
    lost.unlink()
    lost.parent.rmdir()  # as a disk that is full, or a share that is away
    for now in range(1000):
        tuner.look([answer_of(4)], float(now))
    assert tuner.is_over
    assert [one.getMessage() for one in caplog.records] == [
        "the log of autotune ends here, since it cannot be written: No such file or directory"]


def test_ranks_follow_the_tuner_and_sums_stay_right():
    settings = replace(PROMPT, autotune=True, autotune_steps=1, autotune_warmup=1)
    tuner = Tuner(settings, LightSettings())
    with runtimes_of(2, settings, tuner=tuner) as (runtimes, _):
        for _ in range(200):
            tensors = [[np.full(10, rank + 1, "f4"), np.ones(3, "f4")] for rank in range(2)]
            reduce_all(runtimes, tensors)
            assert (tensors[0][0] == 3).all()
            assert (tensors[1][1] == 2).all()
            if tuner.is_over:
                break
        assert tuner.is_over
        best = tuner.best
        assert [runtime._cycle_s for runtime in runtimes] == [best["cycle_s"]] * 2
