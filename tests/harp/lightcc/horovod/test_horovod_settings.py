"""The HOROVOD_* variables are read as Horovod reads them."""

from __future__ import annotations

import pytest

from harp.lightcc.horovod.horovod_settings import Settings


def test_each_variable_is_read_in_its_unit():
    assert Settings.from_env({
        "HOROVOD_FUSION_THRESHOLD": "33554432", "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_TIMELINE": "/there/it.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "70",
        "HOROVOD_START_TIMEOUT": "30", "HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "log.csv",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "7", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "2",
    }) == Settings(fusion_threshold_bytes=32 << 20, cycle_s=0.0035, timeline="/there/it.json",
                   mark_cycles=True, stall_s=5.0, stall_end_s=70.0, start_timeout_s=30.0,
                   autotune=True, autotune_log="log.csv", autotune_steps=7, autotune_warmup=2)


def test_unset_or_empty_variables_have_horovods_default():
    defaults = Settings.from_env({"HOROVOD_CYCLE_TIME": ""})
    assert defaults == Settings.from_env({}) == Settings()
    assert (defaults.fusion_threshold_bytes, defaults.cycle_s) == (128 << 20, 1e-3)
    assert not defaults.autotune


def test_no_stall_is_looked_for_where_the_check_is_off():
    off = Settings.from_env({"HOROVOD_STALL_CHECK_DISABLE": "1",
                             "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "70"})
    assert (off.stall_s, off.stall_end_s) == (0.0, 0.0)


@pytest.mark.parametrize("text", ["much", "-1", "inf", "nan"])
def test_a_wrong_number_is_refused_in_a_sentence(text):
    with pytest.raises(ValueError, match=f"HOROVOD_CYCLE_TIME is '{text}'; allowed is a number"):
        Settings.from_env({"HOROVOD_CYCLE_TIME": text})
