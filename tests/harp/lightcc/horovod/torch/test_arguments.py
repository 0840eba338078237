"""Arguments of Horovod's calls: each of a wrong type is one sentence."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import harp.lightcc.horovod.torch as hvd
from tests.harp.lightcc.horovod.test_torch_surface import CALLS

WRONG = {"tensor": ([1.0], np.ones(2), None, "x"), "tensors": (None, torch.ones(2), "x", 3),
         "prescale_factor": ("x", None, torch.ones(2)), "postscale_factor": ("2", [1]),
         "gradient_predivide_factor": ("x",), "splits": ("x", 3, [0.5, 0.5], [[1]]),
         "process_set": (None, [0]), "compression": ("fp16", None), "handle": ([0], None, "x"),
         "optimizer": (None, [torch.ones(1)])}
"""Values of a wrong type for the arguments of a name, which mean the same in all calls."""

RIGHT = {"tensor": torch.ones(1), "tensors": [torch.ones(1)], "name": "x", "op": hvd.Sum,
         "root_rank": 0, "handle": 0, "params": {},
         "optimizer": torch.optim.SGD([torch.ones(1, requires_grad=True)])}

WITH_TYPES = [(call, name) for call, given in CALLS.items() for name in WRONG
              if name in given.replace("=", ", ").split(", ") and not call.endswith("process_set")]


@pytest.mark.parametrize(("call", "name"), WITH_TYPES)
def test_an_argument_of_a_wrong_type_is_one_sentence_that_names_it(call, name, alone):
    function = getattr(hvd, call)
    parameters = inspect.signature(function).parameters
    sentence = rf"^hvd\.{call}: {name} is [^\n]+; allowed is \w[^\n]*$"
    for wrong in WRONG[name]:
        given = {one: RIGHT[one] for one, each in parameters.items() if each.default is each.empty
                 and one in RIGHT} | {name: wrong}
        with pytest.raises(TypeError, match=sentence):
            function(**given)
        if next(iter(parameters)) == name:
            del given[name]
            with pytest.raises(TypeError, match=sentence):
                function(wrong, **given)


def test_the_one_argument_of_many_that_is_no_tensor_is_named(alone):
    with pytest.raises(TypeError, match=r"grouped_allreduce: tensors\[1\] is a numpy.ndarray; all"):
        hvd.grouped_allreduce([torch.ones(1), np.ones(1)])
