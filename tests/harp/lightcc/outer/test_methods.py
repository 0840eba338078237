"""The methods of harp.lightcc.outer against numpy, in one job of four ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import ROOT

pytest.importorskip("torch")

PATIENCE_S = 300
CHECKS = """
    every_step_of_rate_one_is_plain_averaging_of_gradients local_sgd_is_the_mean_of_parameters
    between_rounds_islands_train_alone diloco_is_nesterovs_step_on_the_mean_difference
    diloco_of_rate_one_without_momentum_is_local_sgd few_bits_are_near_and_the_same_at_all
    few_bits_lose_nothing few_bits_over_gloo_are_those_over_lightcc
    a_checkpoint_in_32_bits_goes_on_in_few
    streaming_mixes_each_fragment_in_after_its_delay
    streaming_of_one_fragment_without_delay_is_diloco
    sparseloco_of_everything_is_diloco_without_momentum
    sparseloco_sends_the_largest_and_keeps_the_rest few_bits_leave_all_ranks_equal_and_near
    islands_of_two_under_ddp_are_two_replicas islands_of_two_divide_what_is_sent
    islands_are_the_ranks_of_a_host_in_whatever_order
    fsdp2_within_islands_is_ddp_within_islands a_checkpoint_of_four_goes_on_with_two
    a_checkpoint_while_a_fragment_travels_has_it a_checkpoint_of_another_model_is_refused
    islands_with_other_settings_are_named_at_all_ranks
    a_checkpoint_has_plain_names_whatever_wraps_the_model parameters_with_new_memory_take_part
    a_parameter_that_is_unfrozen_is_refused_and_not_left_to_each_island
"""


def check(names):
    run = subprocess.run([sys.executable, "-W", "ignore", "-m",
                          "tests.harp.lightcc.outer.outer_rank", *names], check=False, text=True,
                         capture_output=True, timeout=PATIENCE_S, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert {name: why for name, why in found.items() if why != "right"} == {}
    return set(found)


@pytest.mark.long
def test_the_methods_do_at_four_ranks_what_numpy_does():
    assert check([]) == set(CHECKS.split())
