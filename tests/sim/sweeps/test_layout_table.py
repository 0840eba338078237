"""The table of a search of layouts."""

from tests.sim.sweeps.test_layouts import cluster_file, tune
from tests.support.levels import long


@long
def test_the_table_names_the_fastest_and_what_was_left_out(tmp_path):
    result = tune(cluster_file(tmp_path), "--layouts", "--workers", "1", "--samples", "4")
    assert result.exit_code == 0, result.stderr
    assert "t, s: 4 samples a step" in result.stdout
    assert "The fastest: parallel: {" in result.stdout
    assert "no other one can be on this front" in result.stdout
