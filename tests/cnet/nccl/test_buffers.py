"""NCCL's buffers as the plugin knows them by their sizes."""

from lab.c_programs import build, run


def test_which_memory_is_watched(tmp_path):
    run(build(tmp_path / "buffers", ["tests/cnet/nccl/test_buffers.c", "cnet/nccl/buffers.c"]))
