"""Code that touches parameters outside of the engine's calls: the right value, or a sentence."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import PATIENCE_S, ROOT

READS = {
    "a norm": "p.norm()", "a sum": "p.sum().item()", "a list": "p.tolist()",
    "an array": "p.detach().numpy().sum()", "asarray": "numpy.asarray(p).sum()",
    "arithmetic": "(p + 1).sum()", "an index": "p[1].sum()", "a view": "p.view(-1)[3:].sum()",
    "transposed": "p.T.sum()", "another type": "p.to(torch.float64).sum()", "text": "repr(p)[:300]",
    "cat": "torch.cat([one.view(-1) for one in model.parameters()]).sum()",
    "vector": "torch.nn.utils.parameters_to_vector(model.parameters()).sum()",
    "foreach": "torch._foreach_norm(list(model.parameters()))[0]",
    "equal": "torch.equal(p, p)", "state_dict": "sum(s.sum() for s in model.state_dict().values())",
    "the model": "model(tokens).sum()", "a layer": "model.layers[0](torch.ones(2, 64)).sum()",
    "facts": "(p.shape, p.dtype, p.numel(), len(p), p.requires_grad, p.is_leaf, p.stride())",
    "a scalar": "float(model.scale)", "iteration": "sum(float(row.sum()) for row in p)",
}
WRITES = {
    "zero": "p.zero_()", "an index": "p[0] = 7.0", "in place": "p.mul_(2)",
    "init": "torch.nn.init.constant_(p, 3.0)", "copy": "p.copy_(torch.ones(100, 64))",
    "out": "torch.add(torch.ones(100, 64), 2, out=p)", "foreach": "torch._foreach_mul_([p], 2.0)",
}
REFUSED = {
    "data": "p.data", "its pointer": "p.data_ptr()", "storage": "p.untyped_storage()",
    "new data": "setattr(p, 'data', torch.zeros(3))", "a deep copy": "copy.deepcopy(model)",
    "a pickle": "pickle.dumps(p)", "the whole model": "torch.save(model, io.BytesIO())",
    "backward": "loss_of(engine, tokens).backward()",
    "backward of the model's own call": "loss_of(model, tokens).backward()",
    "grad": "torch.autograd.grad(loss_of(engine, tokens), [model.scale])",
}
PROGRAM = """
import copy, dataclasses, io, json, pickle, sys
import numpy, torch
import harp.angelptm
from tests.harp.angelptm.models import batches, config, engine_of, loss_of, seeded, train

reads, writes, refused = json.loads(sys.argv[1])
tokens, found = batches(1)[0], {}
torch.set_num_threads(1)
with torch.no_grad(), engine_of(seeded(), config(14, 160)) as engine:
    plain, model = seeded(), engine.module
    values = []
    for text in [*reads.values(), *writes.values()]:
        answers = []
        for model in (plain, engine.module):
            p = model.words.weight
            if text in writes.values():
                exec(text)
                text_of = "p.sum()"
            else:
                text_of = text
            answers.append(repr(eval(text_of)))
            with torch.enable_grad(), engine.watched():  # all pages of p go away
                engine.module.layers[3](torch.ones(2, 64))
        found[text] = answers
with engine_of(seeded(), config(14, 160)) as engine:
    model = engine.module
    p = model.words.weight
    train(engine, batches(2))
    for text in refused.values():
        try:
            eval(text)
            found[text] = "nothing"
        except harp.angelptm.HiddenError as error:
            found[text] = str(error)
@dataclasses.dataclass
class Words:
    chances: torch.Tensor
class Hiding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.own = seeded()
    def forward(self, tokens):
        self.chances = self.own(tokens)
        return Words(self.chances) if self.answers else None
for hiding in (True, False):
    with engine_of(Hiding(), config(14, 160)) as engine:
        engine.module.answers = hiding
        engine(tokens)
        engine.backward(engine.module.chances.sum())
        engine.step()
        try:
            engine(tokens)
            engine.module.chances.sum().backward()
        except harp.angelptm.HiddenError as error:
            found[f"hidden {hiding}"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    # In a process of its own: what is not on the device is no memory, and touching it a signal.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps([READS, WRITES, REFUSED])],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:] or done.returncode
    return json.loads(done.stdout)


@pytest.mark.parametrize("what", [*READS.values(), *WRITES.values()],
                         ids=[*(f"read {name}" for name in READS),
                              *(f"write {name}" for name in WRITES)])
def test_what_reads_or_writes_a_parameter_is_right(found, what):
    plain, own = found[what]
    assert own == plain


@pytest.mark.parametrize("what", REFUSED.values(), ids=REFUSED)
def test_access_to_its_memory_is_refused_in_a_sentence(found, what):
    assert "in pages" in found[what]
    assert "\n" not in found[what]


@pytest.mark.parametrize("hiding", [True, False], ids=["in a dataclass", "in an attribute"])
def test_outputs_that_are_hidden_are_refused_to_another_backward_pass_too(found, hiding):
    assert "call engine.backward(loss)" in found[f"hidden {hiding}"]
