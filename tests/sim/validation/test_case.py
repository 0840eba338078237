"""Published cases as files."""

from __future__ import annotations

import pytest

from sim.calibration.joint_fit import marked_rows
from sim.schema.input_errors import TopologyError
from sim.validation.case import case_files, load_case, load_published, published_files
from tests.sim.test_validate import case_of, write

FILES = case_files()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_case_loads_and_names_its_source(path):
    case = load_case(path)
    assert len(case.source) > 10
    assert case.topology.name == path.stem
    for key, values in case.open.items():
        for value in values:
            load_case(path, {key: value})


def test_there_are_enough_cases_from_enough_sources():
    cases = [case for path in published_files() for case in load_published(path)]
    assert sum(len(case.figures) for case in cases) >= 25
    assert len({case.source for case in cases}) >= 8
    marked = marked_rows(FILES)
    assert len(marked) >= 12
    assert len({row.source for row in marked}) >= 6


def test_a_first_prediction_that_is_no_ratio_is_refused(tmp_path):
    figure = {"scenario": "ring", "size": "1MiB", "busbw": "1GB/s", "first": [0.0, 1.0, 2.0]}
    with pytest.raises(TopologyError, match="first"):
        load_case(write(tmp_path, case_of(figures=[figure])))


@pytest.mark.parametrize(("figure", "says"), [
    ({"scenario": "ring", "size": "1MiB"}, "no quantity"),
    ({"scenario": "ring", "busbw": "1GB/s"}, "one of samples_per_s, step"),
    ({"scenario": "ring", "size": "1MiB", "step": "1s"}, "one of busbw, algbw, time"),
    ({"scenario": "rign", "size": "1MiB", "busbw": "1GB/s"}, "did you mean 'ring'"),
])
def test_a_wrong_figure_is_refused_at_its_place(tmp_path, figure, says):
    with pytest.raises(TopologyError, match=says):
        load_case(write(tmp_path, case_of(figures=[figure])))
