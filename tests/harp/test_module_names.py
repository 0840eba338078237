"""Names of modules and parameters do not depend on the wrappers around a model."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import harp.ttf  # noqa: E402
from harp.module_names import modules_by_name, plain_name  # noqa: E402


class Around(nn.Module):
    """A wrapper as DDP and FSDP1 are, which need a group."""

    def __init__(self, name, inner):
        super().__init__()
        setattr(self, name, inner)


def net():
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1)))


WRAPPERS = [
    lambda model: torch.compile(model, backend="eager"), harp.ttf.compile,
    *(lambda model, name=name: Around(name, model) for name in (
        "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")),
    lambda model: Around("module", torch.compile(model, backend="eager"))]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapped_model_has_its_own_names(wrap):
    plain, wrapped = net(), wrap(net())
    names = [name for name, _ in plain.named_parameters()]
    assert [plain_name(wrapped, name) for name, _ in wrapped.named_parameters()] == names
    found = dict(modules_by_name(wrapped))
    assert set(found) == {name for name, _ in plain.named_modules()}
    assert isinstance(found[""], nn.Sequential)


def test_a_part_of_a_model_may_be_wrapped():
    model = net()
    model[1] = torch.compile(model[1], backend="eager")
    assert [plain_name(model, name) for name, _ in model.named_parameters()] == [
        name for name, _ in net().named_parameters()]


def test_a_module_of_the_users_own_keeps_such_a_name_where_others_stand_beside_it():
    model = net()
    model.module = nn.Linear(1, 1)
    assert plain_name(model, "module.weight") == "module.weight"
    assert plain_name(nn.ModuleDict({"module": nn.Linear(1, 1)}), "module.bias") == "module.bias"
