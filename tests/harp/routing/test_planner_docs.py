"""The examples of the manual and of the modules run and print what they say."""

import doctest

from harp.routing import planner
from tests.support import ROOT

MANUAL = ROOT / "docs" / "use" / "planned-paths.md"


def test_the_manual_of_planned_routes_holds():
    assert doctest.testfile(str(MANUAL), module_relative=False).failed == 0


def test_the_planner_s_own_example_holds():
    assert doctest.testmod(planner).failed == 0
