"""Offloads that cannot be."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sim.run import main
from tests.sim.step.test_paging import SMALL, file


@pytest.mark.parametrize(("offload", "more", "sentence"), [
    (SMALL, {"parallel": "hsdp"}, "has no meaning beside a model that is split, or sharded within"),
    (SMALL, {"sync": {"every": 4}}, "has no meaning beside sync"),
    (SMALL, {"hosts": {"ram": None}}, "have no ram, to which"),
    (SMALL, {"hosts": {"disk": None}}, "have no disk, to which"),
    ({"to": "disc"}, {}, "did you mean 'disk'"),
    (SMALL | {"page": "10000B"}, {}, "8192"),
    (SMALL, {"hosts": {"ram": "512KiB", "disk": {"capacity": "200kB",
                                                "read": "1GB/s"}}},
     "pages do not fit into 16 of the device"),
])
def test_an_impossible_request_is_one_sentence(tmp_path, offload, more, sentence):
    done = CliRunner().invoke(main, [str(file(tmp_path, offload, **more)), "--quiet"])
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
