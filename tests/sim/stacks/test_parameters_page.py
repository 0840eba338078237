"""The page of all shipped parameters."""

from sim.schema.parameters import FrameworkCosts, HostStack
from sim.stacks import parameters_page
from tests.support import ROOT

PAGE = ROOT / "docs" / "use" / "parameters.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == parameters_page.page(), \
        "run: python -m sim.stacks.parameters_page > docs/use/parameters.md"


def test_the_page_explains_every_parameter():
    for kind, model in (("stacks", HostStack), ("frameworks", FrameworkCosts)):
        explained = set(parameters_page.MEANINGS[kind])
        assert explained == set(model.model_fields) - {"name", "description"}
