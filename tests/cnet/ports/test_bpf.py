"""Calls of bpf(2), as the kernel's documents have them."""

import pytest

from lab.c_programs import build, library
from lab.namespace import why_unusable
from lab.veth import veth_pair


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_maps_programs_and_links(tmp_path):
    program = build(tmp_path / "bpf", ["tests/cnet/ports/test_bpf.c", str(library())])
    with veth_pair() as (end, _):
        end.space.run(program, end.device)
