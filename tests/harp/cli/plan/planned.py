"""Jobs and plans for the tests of ``harp plan``."""

from __future__ import annotations

from click.testing import CliRunner

from harp.cli.main import harp

FABRIC = {"template": "leaf-spine", "leaves": 2, "spines": 4, "hash": {"function": "linux"}}
ACROSS = [{"from": rank, "to": rank + 4} for rank in range(4)]


def run(*arguments, **environment):
    return CliRunner().invoke(harp, [str(word) for word in arguments],
                              env={"HARP_CONF_FILE": "/dev/null", **environment})
