"""``harp setup`` and the kernel: a veth pair in namespaces that nobody else sees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from harp.cli.setup.host_access import Host, Refused
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.support import PATIENCE_S

LACKS = why_unusable() or ("" if shutil.which("ethtool") else "ethtool is not installed")
pytestmark = pytest.mark.skipif(bool(LACKS), reason=LACKS)
HARP = [sys.executable, "-m", "harp.cli.main"]


class Machine:
    """A network namespace with file systems of its own, which stay when a command ends."""

    def __init__(self, end, folder):
        self.end, self.folder = end, folder
        (folder / "var").mkdir()

    def run(self, *arguments, status=0):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("HARP_")}
        environment["HARP_CONF_FILE"] = str(self.folder / "etc" / "harp.conf")
        mounts = f'mount -t sysfs none /sys && mount --bind {self.folder}/var /var/lib && exec "$@"'
        done = subprocess.run(self.end.space.command("unshare", "--mount", "sh", "-c", mounts, "sh",
                                                     *HARP, "setup", *arguments),
                              env=environment, capture_output=True, text=True, check=False,
                              timeout=PATIENCE_S)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def link(self):
        """MTU and queues, as iproute2 and ethtool report them."""
        link, = json.loads(self.end.space.run("ip", "-j", "link", "show", self.end.device))
        return link["mtu"], self.end.space.run("ethtool", "-l", self.end.device)


@pytest.fixture
def machine(tmp_path):
    with veth_pair(queues=4) as (end, _):
        end.space.run("ethtool", "-L", end.device, "rx", "2", "tx", "1")
        yield Machine(end, tmp_path)


def current(said):
    """Queues that there are: the lower half of what ethtool -l prints."""
    lines = said.partition("Current hardware settings:")[2].split("\n")
    return {kind: int(count) for kind, _, count in (line.partition(":") for line in lines)
            if count.strip().isdigit()}


def test_a_link_is_set_up_and_put_back(machine):
    name = machine.end.device
    wish = ["--nics", name, "--mtu", "9000", "--queues", "4", "--hugepages", "0"]
    before = machine.link()
    dry = machine.run(*wish, "--dry-run")
    assert machine.link() == before
    assert not list(machine.folder.glob("**/*.*"))
    said = machine.run(*wish)
    for command in (f"ip link set dev {name} mtu 9000", f"ethtool -L {name} rx 4 tx 4"):
        assert f"\n{command}\n" in dry
        assert f"\n{command}\n" in said
    mtu, queues = machine.link()
    assert (mtu, current(queues)) == (9000, {"RX": 4, "TX": 4})
    conf = machine.folder / "etc" / "harp.conf"
    assert f"HARP_IFNAME=={name}\n" in conf.read_text()
    assert machine.run(*wish).endswith("# nothing to change\n")
    machine.run("--undo")
    assert machine.link() == before
    assert not conf.exists()
    assert "nothing to undo" in machine.run("--undo")


def test_what_a_tool_or_the_kernel_refuses_is_what_it_says(machine, tmp_path):
    host = Host()
    with machine.end.space.entered():
        with pytest.raises(Refused, match="Cannot find device"):
            host.run(["ip", "link", "set", "dev", "nosuch0", "mtu", "9000"])
        with pytest.raises(Refused, match="No such device"):
            host.run(["ethtool", "-L", "nosuch0", "rx", "1"])
    with pytest.raises(Refused, match="No such file or directory"):
        host.write(f"{tmp_path}/none/none", "1")


def test_an_mtu_alone_asks_for_no_queues(machine):
    name = machine.end.device
    wish = ["--nics", name, "--queues", "1", "--hugepages", "0"]
    machine.run(*wish)
    said = machine.run(*wish, "--mtu", "4000")
    assert f"ip link set dev {name} mtu 4000" in said
    assert "ethtool" not in said


def test_the_default_route_is_found(machine):
    end = machine.end
    end.space.run("ip", "route", "add", "default", "via", end.ipv4.rpartition(".")[0] + ".2")
    end.space.run("ip", "-6", "route", "add", "default", "dev", "lo")
    said = machine.run("--dry-run")
    assert said == "# name the NICs by --nics; none is chosen by default: there is no card\n"


def test_anybody_may_see_what_would_be_done(machine):
    name = machine.end.device
    code = f"""
import os
import harp.cli.setup, harp.net.nics  # loaded as root, whose files they may be
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
harp.cli.setup.setup.main(["--dry-run", "--nics", "{name}", "--queues", "4"],
                            standalone_mode=False)
"""
    said = machine.end.space.run(sys.executable, "-c", code)
    assert f"\nethtool -L {name} rx 4 tx 4\n" in said
    assert said.endswith("# nothing was changed: --dry-run\n")
