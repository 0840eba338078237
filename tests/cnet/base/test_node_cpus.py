"""CPUs of a NUMA node, and an engine's thread on them."""

from lab.c_programs import build, library, run


def test_an_engines_thread_runs_on_its_cards_node(tmp_path):
    run(build(tmp_path / "node_cpus", ["tests/cnet/base/test_node_cpus.c", str(library())]))
