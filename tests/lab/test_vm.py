"""The emulated machine where QEMU itself fails; tests/vm boots a real one."""

import pytest

from lab import vm

ABORTS = """\
#!/bin/sh
echo >>{folder}/starts
[ $(wc -l <{folder}/starts) -gt {aborts} ] || {{ {before} kill -ABRT $$; }}
echo "machine: exit code 7"
"""


@pytest.fixture
def emulated(tmp_path, monkeypatch):
    """Have a script in QEMU's place abort so many times, perhaps after a line of output."""
    def make(aborts: int, before: str = ""):
        program = tmp_path / "qemu"
        program.write_text(ABORTS.format(folder=tmp_path, aborts=aborts, before=before))
        program.chmod(0o755)
        monkeypatch.setattr(vm, "emulator", lambda: [str(program)])
        monkeypatch.setattr(vm, "kernel_folder", lambda suite: tmp_path)
        monkeypatch.setattr(vm, "_tree", lambda *_: iter(()))
        return tmp_path / "starts"
    return make


def test_a_machine_is_started_once_more_where_qemu_aborts_while_it_boots(emulated):
    starts = emulated(1)
    assert vm.run("").code == 7
    assert starts.read_text() == "\n\n"


@pytest.mark.parametrize(("aborts", "before", "times"), [(2, "", 2), (1, "echo begun;", 1)],
                         ids=["twice", "after output"])
def test_another_abort_is_an_error(emulated, aborts, before, times):
    starts = emulated(aborts, before)
    with pytest.raises(vm.MachineError, match="QEMU's exit code -6"):
        vm.run("")
    assert starts.read_text() == "\n" * times
