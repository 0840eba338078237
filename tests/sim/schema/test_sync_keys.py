"""Keys of rare synchronisation."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sim.run import main
from tests.support.cluster_files import FREE, RATE_BPS, topology, write


@pytest.mark.parametrize(("sync", "says"), [
    ({"every": 0}, "sync.every"),
    ({}, "every"),
    ({"every": 5, "outer": "dilco"}, "did you mean 'diloco'?"),
    ({"every": 5, "delay": 1}, "has no effect on outer: diloco"),
    ({"every": 5, "topk": 8}, "has no effect on outer: diloco"),
    ({"every": 5, "outer": "local-sgd", "bits": 8}, "has no effect on outer: local-sgd"),
    ({"every": 5, "bits": 16}, "bits: found 16; allowed: 2, 4, 8, 32"),
    ({"every": 5, "bits": 8, "chunk": 64}, "has no effect on outer: diloco"),
    ({"every": 5, "outer": "streaming", "delay": 5}, "delay is 5; allowed is 0 to 4"),
    ({"every": 5, "outer": "sparseloco", "topk": 5000}, "topk is 5000; allowed is 1 to 4096"),
    ({"every": 5, "topK": 3}, "did you mean 'topk'?"),
])
def test_wrong_keys_are_one_sentence(tmp_path, sync, says):
    done = CliRunner().invoke(main, [str(write(tmp_path, topology(scenario={"sync": sync})))])
    assert done.exit_code == 2
    assert says in done.output
    assert done.output.count("\n") == 1


def test_every_key_of_sync_is_at_work(tmp_path):
    """The search for keys without effect names none of them."""
    sync = {"every": 4, "outer": "sparseloco", "fragments": 2, "delay": 1, "topk": 64,
            "chunk": 4096, "bits": 2}
    path = write(tmp_path, topology(scenario={"sync": sync}, rate_bps=RATE_BPS / 1e4, frameworks={
        "free": FREE | {"cast_per_element": "0.01ns"}}))
    done = CliRunner().invoke(main, [str(path), "--draws", "0", "--json", "-", "--quiet"])
    assert done.exit_code == 0
    assert not [warned for warned in json.loads(done.stdout)["warnings"]
                if "sync" in warned["key"]]
