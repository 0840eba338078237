"""State that all files of the plugin share."""

from lab.c_programs import build, run


def test_comms_live_in_the_life_that_they_were_made_in(tmp_path):
    run(build(tmp_path / "state", ["tests/cnet/nccl/test_state.c", "cnet/nccl/state.c"]))
