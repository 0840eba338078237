"""Layers by hand: parameters, arithmetic, and what they exchange."""

from sim.workloads import layers as nn


def test_transformer_xl_attends_to_memory_and_tokens():
    with_memory = nn.relative_attention("a", 64, tokens=10, memory=30)
    without = nn.relative_attention("a", 64, tokens=10, memory=0)
    flops = {layer.name: layer.forward_flops for layer in with_memory}
    assert flops["a.qkv"] == 2 * 40 * 64 * 3 * 64
    assert flops["a.scores"] == 3 * 2 * 10 * 40 * 64
    assert sum(flops.values()) > sum(layer.forward_flops for layer in without)


def test_moe_cost_grows_with_top_k_and_capacity_but_not_with_experts():
    def experts(**given):
        return nn.moe_ffn("m", 8, 32, 100, **given)[1]
    base = experts(experts=4)
    assert base.forward_flops == 2 * 2 * 8 * 32 * 100
    assert experts(experts=16).forward_flops == base.forward_flops
    assert experts(experts=16).parameters == 4 * base.parameters
    wide = experts(experts=4, top_k=2, capacity=1.25)
    assert wide.forward_flops == 2.5 * base.forward_flops
    assert wide.alltoall_bytes(4) == 2.5 * base.alltoall_bytes(4) == 2.5 * 100 * 8 * 4


def test_convolution_and_linear_by_hand():
    conv = nn.conv2d("c", 3, 64, 3, 224)
    assert conv.parameters == 3 * 64 * 9 + 64
    assert conv.forward_flops == 2 * 3 * 64 * 9 * 224 * 224
    full = nn.linear("l", 10, 20, tokens=7, bias=False)
    assert [tensor.elements for tensor in full.tensors] == [200]
    assert full.forward_flops == 2 * 10 * 20 * 7
    assert nn.batchnorm("b", 8, 5).parameters == nn.layernorm("n", 8, 5).parameters == 16
    assert nn.embedding("e", 100, 8).forward_flops == 0
