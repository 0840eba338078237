"""Lines of the plugin in NCCL's log."""

from __future__ import annotations

from tests.cnet.nccl.asked_plugin import ask


def test_lines_about_a_port_begin_as_nccl_names_the_device_of_a_channel():
    """NCCL 2.30 writes "via NET/%s/%d": the plugin's name and the number of the device."""
    found = ask("listen", HARP_PORT="udp", HARP_IFNAME="=lo")
    of_device = [line for line in found["lines"] if line.startswith(f"NET/{found['name']}/0 : ")]
    assert of_device[0] == "NET/HARP/0 : data over udp, 1 path, lo (HARP_PORT)"
    assert of_device[1:] == [line for line in found["lines"] if " : lo: " in line
                             or " : lo, engine" in line]
