"""Models out of torch modules, held against those that are built from their publications."""

import gzip
import json
from collections import Counter

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile

from sim.schema.model_file import read_model_file, text_of
from sim.trace import main
from sim.workloads.models import get_model
from sim.workloads.torch_module import ModuleError, built, traced_model
from sim.workloads.torch_profile import ProfileError, measure
from tests.support.json_changes import anything, changed, one_sentence_at_most, places
from tests.support.levels import draws


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()), {"input_ids": torch.zeros(2, 1024, dtype=torch.long)}


def bert():
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()), {"input_ids": torch.zeros(2, 128, dtype=torch.long)}


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    return (ResNetForImageClassification(ResNetConfig(num_labels=1000)),
            {"pixel_values": torch.zeros(2, 3, 224, 224)})


class Two(nn.Module):
    """Registered in the other order than used; the first layer can be frozen."""

    def __init__(self, *, frozen=False):
        super().__init__()
        self.second = nn.Linear(20, 5)
        self.first = nn.Linear(10, 20)
        self.first.requires_grad_(not frozen)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def two(**keys):
    return lambda: (Two(**keys), torch.zeros(4, 10))


def traced(build, **keys):
    return traced_model(built(build), "model", "a test", **keys)


@pytest.mark.parametrize(("build", "name", "within"), [
    (gpt2, "gpt2", 0.001), (bert, "bert-base", 0.001), (resnet, "resnet50", 0.004)])
def test_a_traced_model_is_the_one_of_its_publication_but_for_norms(build, name, within):
    """Parameters agree exactly; FLOPs but for norms, which torch does not count."""
    found, known = traced(build), get_model(name)
    if found.tokens != known.tokens:
        known = get_model(name, found.tokens)
    assert found.parameters == known.parameters
    assert found.forward_flops == pytest.approx(known.forward_flops, rel=within)
    assert found.backward_flops == pytest.approx(known.backward_flops, rel=within)
    assert found.activations == known.activations
    each, all_known = (Counter((layer.forward_flops, layer.backward_flops)
                               for layer in model.layers if layer.forward_flops)
                       for model in (found, known))
    assert not each - all_known  # layer by layer


def test_a_traced_resnet_moves_what_the_built_in_one_does_but_for_pools():
    found, known = traced(resnet), get_model("resnet50")
    for what, within in (("maps", 0.0), ("moved_forward", 0.03), ("moved_backward", 0.03)):
        sums = [sum(getattr(layer, what) for layer in model.layers) for model in (found, known)]
        assert sums[0] == pytest.approx(sums[1], rel=within)
    assert [sum(layer.winograd * layer.forward_flops for layer in model.layers) / (
        model.forward_flops) for model in (found, known)] == pytest.approx([0.367, 0.367], abs=2e-3)
    assert found.is_convolutional
    assert not traced(bert).is_convolutional


def vgg():
    layers, channels = [], 3
    for filters, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(inplace=True)]
            channels = filters
        layers.append(nn.MaxPool2d(2, 2))
    layers += [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(),
               nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers), torch.zeros(2, 3, 224, 224), torch.sum


def filtered(channels, filters, kernel, **more):
    return nn.Sequential(nn.Conv2d(channels, filters, kernel, bias=False, **more),
                         nn.BatchNorm2d(filters), nn.ReLU(inplace=True))


class Joined(nn.Module):
    """Branches on one input, whose outputs are joined."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*branch) for branch in branches)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


INCEPTION = {
    "mixed5b": (192, 35, [
        [filtered(192, 64, 1)], [filtered(192, 48, 1), filtered(48, 64, 5, padding=2)],
        [filtered(192, 64, 1), filtered(64, 96, 3, padding=1), filtered(96, 96, 3, padding=1)],
        [nn.AvgPool2d(3, 1, 1), filtered(192, 32, 1)]]),
    "mixed6a": (288, 35, [
        [filtered(288, 384, 3, stride=2)],
        [filtered(288, 64, 1), filtered(64, 96, 3, padding=1), filtered(96, 96, 3, stride=2)],
        [nn.MaxPool2d(3, 2)]]),
    "mixed7b": (1280, 8, [
        [filtered(1280, 320, 1)],
        [filtered(1280, 384, 1), Joined([filtered(384, 384, (1, 3), padding=(0, 1))],
                                        [filtered(384, 384, (3, 1), padding=(1, 0))])],
        [filtered(1280, 448, 1), filtered(448, 384, 3, padding=1),
         Joined([filtered(384, 384, (1, 3), padding=(0, 1))],
                [filtered(384, 384, (3, 1), padding=(1, 0))])],
        [nn.AvgPool2d(3, 1, 1), filtered(1280, 192, 1)]])}
"""Some of torchvision's blocks of Inception-v3: channels and side of the input, and branches."""


def kept_and_masks(layers):
    return [sum(getattr(layer, what) for layer in layers) for what in ("kept", "masks")]


@pytest.mark.parametrize(("build", "name"), [(resnet, "resnet50"), (vgg, "vgg16")])
def test_networks_of_convolutions_keep_what_torch_keeps(build, name):
    found, known = (kept_and_masks(model.layers) for model in (traced(build), get_model(name)))
    assert known == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("block", INCEPTION)
def test_blocks_of_inception_keep_what_torch_keeps(block):
    """A layer before a block makes its input one that has a gradient.

    A stride of 2 makes 17 of 35, which count as 34.
    """
    channels, side, branches = INCEPTION[block]
    module = nn.Sequential(nn.Conv2d(3, channels, 1), Joined(*branches))
    found = kept_and_masks([layer for layer in traced(lambda: (module, torch.zeros(
        64, 3, side, side), torch.sum)).layers if layer.name != "0"])
    known = kept_and_masks([layer for layer in get_model("inception-v3").layers
                            if layer.name.startswith(f"{block}.")])
    assert known == pytest.approx(found, rel=0.03)


def test_a_view_moves_nothing_and_a_sum_moves_three():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            y = self.conv(x)
            return y.view(-1, 4, 64) + y.flatten(2)

    (layer,) = traced(lambda: (Sum(), torch.zeros(2, 4, 8, 8),
                               lambda y: y.sum())).layers
    assert layer.moved_forward == 3 * 256 + 256  # the loss reads it
    assert layer.maps == 2 * 256
    assert layer.winograd


def test_layers_stand_in_the_order_of_use_not_of_registration():
    layers = traced(two()).layers
    assert [layer.name for layer in layers] == ["first", "second"]
    assert [layer.forward_flops for layer in layers] == [2 * 10 * 20, 2 * 20 * 5]
    # The input has no gradient, so the first layer's backward pass is that of its weights alone.
    assert [layer.backward_flops for layer in layers] == [2 * 10 * 20, 2 * 2 * 20 * 5]
    assert sum(layer.kept for layer in layers) == 10 + 20  # the input, and what relu gives


def test_parameters_of_a_module_that_is_never_called_belong_to_the_one_that_uses_them():
    """MultiheadAttention reads its projection's weight; the module of that is not called."""
    module = nn.TransformerEncoderLayer(16, 2, 32)
    model = traced(lambda: (module, torch.zeros(4, 3, 16)))
    assert sum(tensor.elements for layer in model.layers for tensor in layer.tensors) == sum(
        each.numel() for each in module.parameters())
    (attention,) = [layer for layer in model.layers if layer.name == "self_attn"]
    assert "self_attn.out_proj.weight" in [tensor.name for tensor in attention.tensors]


def test_a_frozen_layer_computes_but_has_no_gradient():
    layers = {layer.name: layer for layer in traced(two(frozen=True)).layers}
    assert layers["first"].tensors == ()
    assert layers["first"].backward_flops == 0
    assert layers["second"].backward_flops == 2 * 20 * 5  # of its weights alone


class Apart(nn.Module):
    """Each group of channels has a convolution of its own."""

    def __init__(self, kind, groups, channels, out, **how):
        super().__init__()
        self.groups = groups
        self.parts = nn.ModuleList([kind(channels // groups, out // groups, 3, **how)
                                    for _ in range(groups)])

    def forward(self, x):
        return torch.cat([part(own) for part, own in zip(
            self.parts, x.chunk(self.groups, 1), strict=True)], 1)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize(("groups", "out"), [(1, 8), (4, 16), (16, 16), (16, 32)])
@pytest.mark.parametrize("how", [{}, {"stride": 2, "padding": 1}], ids=["plain", "strided"])
def test_a_convolution_in_groups_computes_what_its_groups_do_apart(kind, groups, out, how):
    first = nn.Conv2d(3, 16, 1)

    def build(inner):
        return lambda: (nn.Sequential(first, inner()), torch.zeros(2, 3, 12, 10))
    together = traced(build(lambda: kind(16, out, 3, groups=groups, **how)))
    apart = traced(build(lambda: Apart(kind, groups, 16, out, **how)))
    assert together.forward_flops == apart.forward_flops
    assert together.backward_flops == apart.backward_flops


def test_scores_are_apart_from_what_a_block_keeps_otherwise():
    """Korthikanti et al. 2022, section 4.1: a block's inputs of matrices and norms, and of GELU;
    of scores the softmax, the mask of dropout, and what it leaves."""
    found = traced(bert)
    scores = [layer for layer in found.layers if layer.name.endswith(".scores")]
    assert len(scores) == 12
    assert scores[0].scores == 3 * 12 * 128 * 128  # heads, tokens, tokens
    assert scores[0].forward_flops == 2 * 2 * 128 * 128 * 768
    block = [layer for layer in found.layers if layer.block == "encoder.layer.0"]
    width, tokens = 768, 128
    # Inputs of attention, of two norms and of the two products of the network; one is
    # wide; queries, keys, values and context; GELU's input.
    expected = (1 + 1 + 1 + 1 + 4) + 4 + 4
    assert sum(layer.kept for layer in block) == pytest.approx(expected * tokens * width, rel=0.15)


def test_a_file_gives_the_model_back(tmp_path):
    path = tmp_path / "m.yaml"
    made = traced(gpt2)
    path.write_text(text_of(made))
    assert read_model_file(path).network == made


# ---- times

def profile_of(build, steps):
    torch.manual_seed(1)
    step = build()
    module, given = step
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as found:
        for _ in range(steps):
            module(given).sum().backward()
    return found


def test_times_of_a_profile_are_those_of_its_operators(tmp_path):
    """All that runs inside the steps that count, and nothing else."""
    def build():
        return Two(), torch.zeros(4, 10)

    found = profile_of(build, steps=1)
    path = tmp_path / "p.json"
    found.export_chrome_trace(str(path))
    model = traced(two(), profile=path.read_bytes())
    assert [layer.name for layer in model.layers] == ["first", "second"]
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in model.layers)
    # The profiler's own account: time of operators, each without those inside it.
    own = sum(event.self_cpu_time_total for event in found.key_averages()
              if event.key.startswith(("aten::", "autograd::", "torch::"))
              or event.key.endswith("Backward0"))
    spent = 4 * sum(layer.forward_s + layer.backward_s for layer in model.layers)
    assert spent <= own * 1e-6 * 1.01
    assert model.is_measured


def event(kind, name, start, duration, thread=1, **given):
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": duration, "tid": thread,
            "args": given}


def step_on_a_gpu(at, microseconds):
    """Two layers forward and back; the kernels run later than their operators."""
    base = 100 * at
    numbers = [base + number for number in range(8)]
    return [
        event("python_function", "nn.Module: Two_0", base, 30),
        event("python_function", "nn.Module: Linear_0", base + 1, 8),
        event("python_function", "nn.Module: Linear_1", base + 20, 8),
        event("cpu_op", "aten::addmm", base + 2, 5, **{"External id": numbers[0],
                                                       "Sequence number": numbers[0]}),
        event("cpu_op", "aten::relu", base + 12, 2, **{"External id": numbers[1],
                                                       "Sequence number": numbers[1]}),
        event("cpu_op", "aten::addmm", base + 21, 5, **{"External id": numbers[2],
                                                        "Sequence number": numbers[2]}),
        *(event("cpu_op", f"autograd::engine::evaluate_function: {number}", base + 40 + 5 * number,
                4, thread=2, **{"External id": numbers[3 + number],
                                "Sequence number": numbers[2 - number]})
          for number in range(3)),
        event("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
              base + 56, 2, thread=2, **{"External id": numbers[6]}),
        *(event("kernel", "gemm", 10_000 + 50 * number, microseconds * 2**count, thread=7,
                **{"External id": number}) for count, number in enumerate(numbers[:7])),
        event("kernel", "ncclDevKernel_AllReduce", 10, 999, thread=8,
              **{"External id": numbers[3]})]


def test_kernels_count_where_a_gpu_ran_and_the_first_step_is_left_out():
    events = step_on_a_gpu(1, 100) + step_on_a_gpu(2, 1) + step_on_a_gpu(3, 3)
    found = measure(json.dumps({"traceEvents": events}).encode(), ["Two", "Linear", "Linear"])
    assert found.device == "GPU"
    assert found.steps == 2
    # Kernels of 1, 2, 4 and so on: a mean of twice that in the steps that count.
    assert [round(each.forward_s * 1e6 / 2) for each in found.times] == [2, 1, 4]
    assert [round(each.backward_s * 1e6 / 2) for each in found.times] == [16, 32 + 64, 8]


@pytest.mark.parametrize(("data", "classes", "says"), [
    (b"{", ["Two"], "no trace of torch's profiler"), (b"[]", ["Two"], "no trace of torch's"),
    (b'{"traceEvents": [{"ph": "X"}]}', ["Two"], "no trace of torch's"),
    (b'{"traceEvents": []}', ["Two"], "take it with with_stack=True"),
    (None, ["Net"], "has no call of the module Net"),
    (None, ["Two", "Linear", "ReLU"], "calls a Linear where the module calls a ReLU"),
    (None, ["Two", "Linear"], "has 3 calls of modules a step, and the module makes 2")])
def test_a_profile_of_something_else_is_refused(data, classes, says):
    data = data or json.dumps({"traceEvents": step_on_a_gpu(1, 1)}).encode()
    with pytest.raises(ProfileError, match=says):
        measure(data, classes)


STEP = {"traceEvents": step_on_a_gpu(1, 1)}


@settings(max_examples=draws(200), deadline=None)
@given(place=st.sampled_from(places(STEP)), value=anything)
def test_any_value_at_any_place_is_a_profile_or_one_sentence(place, value):
    data = json.dumps(changed(STEP, *place, value=value)).encode()
    with one_sentence_at_most(ProfileError):
        measure(data, ["Two", "Linear", "Linear"])


@pytest.mark.parametrize("data", [
    b'{"traceEvents":' + b"[" * 100_000, gzip.compress(json.dumps(STEP).encode())[:-30],
    b"\x1f\x8b" + b"no gzip"])
def test_a_profile_that_is_not_whole_is_refused(data):
    with pytest.raises(ProfileError, match="no trace of torch's profiler"):
        measure(data, ["Two", "Linear", "Linear"])


# ---- the command

SCRIPT = """
import torch
from torch import nn

def build():
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    return blocks, torch.zeros(2, 8)

def fails():
    raise RuntimeError("no\\nweights")

def number():
    return 3

def looks():
    class Looks(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x
    return Looks(3, 3), torch.zeros(2, 3)

def frozen():
    return nn.Linear(3, 3).requires_grad_(False), torch.zeros(2, 3)

def no_batch():
    return nn.Linear(3, 3), ()

def list_of_modules():
    return [nn.Linear(3, 3)], torch.zeros(2, 3)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run(*options):
    return CliRunner().invoke(main, [str(option) for option in options])


def test_the_command_writes_a_file_that_a_topology_may_name(script, tmp_path):
    out = tmp_path / "model.yaml"
    result = run(f"{script}:build", "-o", out)
    assert result.exit_code == 0, result.output
    assert "3 layers, 216 parameters" in result.stdout
    model = read_model_file(out).network
    assert [layer.block for layer in model.layers] == ["0", "1", "2"]
    assert model.activations == 8


@pytest.mark.parametrize(("function", "says"), [
    ("fails", "failed: RuntimeError: no weights"), ("number", "must return a module and a batch"),
    ("looks", "asks for the values of a tensor"), ("frozen", "no tensor with a gradient"),
    ("no_batch", "no tensor whose first dimension"), ("buidl", "did you mean 'build'?"),
    ("list_of_modules", "is a list, no torch.nn.Module")])
def test_a_mistake_in_the_script_is_one_sentence_and_nothing_is_written(script, tmp_path, function,
                                                                        says):
    out = tmp_path / "model.yaml"
    result = run(f"{script}:{function}", "-o", out)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert not out.exists()


def test_a_script_without_a_function_is_no_trace(script, tmp_path):
    out = tmp_path / "model.yaml"
    result = run(script, "-o", out)
    assert result.exit_code == 2
    assert result.stderr == (f"error: {script} names no function; allowed: {script}:NAME, of one "
                             "that builds a module\n")
    assert not out.exists()


@pytest.mark.parametrize(("options", "says"), [
    (("script.py:build",), "needs -o FILE.yaml"), (("missing.py:build", "-o", "m.yaml"), "No such"),
    (("script.py:build", "-o", "m.json"), ".yaml"),
    (("script.py:build", "-o", "m.yaml", "--topology", "t.yaml"), "--topology does not work"),
    (("script.py:build", "-o", "m.yaml", "--measure", "missing.json"), "No such file"),
    (("script.py:build", "-o", "m.yaml", "--measure", "script.py"), "no trace of torch's profiler"),
    (("traces/gpt",), "need --topology"), (("traces/gpt", "--measure", "p"), "does not work with")])
def test_wrong_options_are_one_sentence(script, monkeypatch, options, says):
    monkeypatch.chdir(script.parent)
    result = run(*options)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert [path.name for path in script.parent.glob("m.*")] == []


@pytest.mark.parametrize(("built_of", "says"), [
    (None, "must return"), ((Two(), torch.zeros(0, 10)), "first dimension counts samples"),
    ((Two(), torch.zeros(4, 10), "mse"), "the third thing that it returns is a str"),
    ((Two(), torch.zeros(4, 10), lambda _: 1.0), "its loss gives a float, no tensor")])
def test_a_script_that_builds_nothing_that_trains_says_why(built_of, says):
    with pytest.raises(ModuleError, match=says):
        traced(lambda: built_of)


def test_a_batch_may_come_from_a_data_loader():
    given = torch.from_numpy(np.zeros((4, 10), np.float32))
    assert traced(lambda: (Two(), given)).layers == traced(two()).layers


def test_lengths_of_sequences_may_stay_on_the_cpu():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.LSTM(8, 16, batch_first=True)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.net(packed)[1][0]

    model = traced(lambda: (Packed(), (torch.zeros(2, 5, 8), torch.tensor([5, 3], device="cpu"))))
    assert model.forward_flops == 2 * 8 * 64 * (8 + 16) // 2  # 5 and 3 places, 4 gates of 16
