"""Graph passes for recommenders, over the graph that dynamo found, before it is differentiated.

Look-ups    Dynamic embeddings of equally many bags are looked up in one call, as an
            `EmbeddingCollection` does it. An ``nn.EmbeddingBag`` over ids of two dimensions is a
            gather and a sum, which inductor puts into one kernel with those beside it; else each
            bag is a call of its own.
Linears     Narrow linear layers over one input, such as gates, are one product; their weights are
            put together in each call, which costs less than a call where they are small.
Casts       A cast is made once: `ShareCasts` goes over inductor's graph. torch's own pass for
            common subexpressions does not run without gradients, and with them it leaves
            autocast's casts beside those of the model from torch 2.14 on.

Results are those of the graph as it was, but that a product may add in another order. Passes leave
a graph alone that writes to tensors in place, or in which autocast begins or ends.
"""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.nn.functional import embedding, embedding_bag

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from torch.fx import Graph, GraphModule, Node

SMALL, NARROW = 1 << 13, 32
"""Most numbers in a weight that is put together with others, and most of its outputs. Measured in
CPU time of a step on one thread: 8 layers of 128 to 4 gain 1.3, 24 of 64 to 16 gain 1.05, 8 of 256
to 32 gain 1.04, while 8 of 64 to 64 lose 0.92."""
STRICT = ("view", "as_strided", "stride", "is_contiguous")
"""Methods that a piece of a tensor is not good enough for, where the whole was."""
LINEARS = (torch._C._nn.linear, torch.nn.functional.linear)


def optimize(module: GraphModule) -> list[Any]:
    """Change a graph. Returns what it needs to be kept alive."""
    graph = module.graph
    if any(_writes(node) for node in graph.nodes):
        return []
    before = len(graph.nodes), _calls(graph)
    _gather_bags(graph)
    kept = _merge_lookups(graph)
    _merge_linears(graph)
    if (len(graph.nodes), _calls(graph)) != before:
        from torch._inductor.pattern_matcher import stable_topological_sort
        stable_topological_sort(graph)
        graph.lint()
        module.recompile()
    return kept


class ShareCasts(CustomGraphPass):
    """Make equal casts of a graph one; nothing in it writes before its end."""

    def __call__(self, graph: Graph) -> None:
        """Change a graph of inductor's."""
        first: dict[Hashable, Node] = {}
        for node in list(graph.nodes):
            if node.target in (torch.ops.aten._to_copy.default,
                               torch.ops.prims.convert_element_type.default):
                key = (node.target, node.args, tuple(sorted(node.kwargs.items())))
                if (one := first.setdefault(key, node)) is not node:
                    node.replace_all_uses_with(one)
                    graph.erase_node(node)

    def uuid(self) -> str:
        """Name what the pass does, for torch's caches."""
        return "harp.ttf.compiler.passes.ShareCasts 1"


def _calls(graph: Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def _writes(node: Node) -> bool:
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    return (node.target in (operator.setitem, torch.amp.autocast_mode._enter_autocast,
                            torch.amp.autocast_mode._exit_autocast)
            or node.kwargs.get("out") is not None
            or (node.op.startswith("call") and name.endswith("_") and not name.endswith("__")))


def _example(node: Any) -> torch.Tensor | None:
    """Give the tensor that dynamo saw at a node."""
    value = getattr(node, "meta", {}).get("example_value")
    return value if torch.is_tensor(value) else None


def _gather_bags(graph: Graph) -> None:
    """Take bags of one length apart, where there is nothing else to them."""
    names = ("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode",
             "sparse", "per_sample_weights", "include_last_offset", "padding_idx")
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not embedding_bag:
            continue
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        ids, mode = _example(given["input"]), given.get("mode", "mean")
        plain = not any(given.get(name) is not None for name in (
            "offsets", "max_norm", "per_sample_weights", "padding_idx")) and not any(
            given.get(name) for name in ("scale_grad_by_freq", "sparse", "include_last_offset"))
        if plain and ids is not None and ids.dim() == 2 and mode in ("sum", "mean"):
            with graph.inserting_before(node):
                rows = graph.call_function(embedding, (given["input"], given["weight"]))
                reduced = graph.call_method(mode, (rows, 1))
            node.replace_all_uses_with(reduced)
            graph.erase_node(node)


def _groups(nodes: Iterable[Node], key: Callable[[Node], Hashable | None]) -> list[list[Node]]:
    """Group nodes of one key that do not depend on one another; two at least."""
    groups: dict[Hashable, list[Node]] = {}
    for node in nodes:
        name = key(node)
        if name is not None and not _ancestors(node).intersection(groups.get(name, ())):
            groups.setdefault(name, []).append(node)
    return [group for group in groups.values() if len(group) > 1]


def _ancestors(node: Node) -> set[Node]:
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        fresh = [each for each in waiting.pop().all_input_nodes if each not in found]
        found.update(fresh)
        waiting += fresh
    return found


def _replace(graph: Graph, whole: Node, parts: dict[Node, int], dimension: int) -> None:
    """Put pieces of a node, in order and of these sizes, in the places of others."""
    strict = any(node.op == "call_method" and node.target in STRICT for node in graph.nodes)
    pieces = graph.call_method("split", (whole, list(parts.values()), dimension))
    after = pieces
    for place, node in enumerate(parts):
        with graph.inserting_after(after):
            piece = after = graph.call_function(operator.getitem, (pieces, place))
        if strict:
            with graph.inserting_after(piece):
                piece = after = graph.call_method("contiguous", (piece,))
        node.replace_all_uses_with(piece)
        graph.erase_node(node)


def _merge_lookups(graph: Graph) -> list[Any]:
    """Look up dynamic embeddings in one call."""
    if not hasattr(torch.ops.harp, "embed"):
        return []
    from harp.ttf.embedding.operators import FeatureSet, features_of_number
    # An exchange prefetches for the feature sets that it knows.
    looks = [node for node in graph.nodes if node.op == "call_function"
             and node.target in (torch.ops.harp.embed, torch.ops.harp.embed.default)
             and features_of_number(node.args[4]).exchange is None
             and all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)]
    kept = []
    for group in _groups(looks, lambda node: node.args[5]):
        sets = [features_of_number(node.args[4]) for node in group]
        # The number is a constant of the graph: the same in each process, for torch's caches.
        text = repr([each.number for each in sets]).encode()
        number = (1 << 40) + int.from_bytes(hashlib.sha256(text).digest()[:5], "big")
        merged = FeatureSet([table for each in sets for table in each.tables],
                            [mean for each in sets for mean in each.means],
                            [padding for each in sets for padding in each.paddings],
                            number=number)
        kept.append(merged)
        with graph.inserting_after(group[-1]):
            lists = [[each for node in group for each in node.args[place]] for place in (1, 2, 3)]
            anchors = graph.call_function(torch.stack, ([node.args[0] for node in group],))
        with graph.inserting_after(anchors):
            anchor = graph.call_method("sum", (anchors, 0))
        with graph.inserting_after(anchor):
            call = graph.call_function(torch.ops.harp.embed, (
                anchor, *lists, number, group[0].args[5], merged.width))
        with graph.inserting_after(call):
            rows = graph.call_function(operator.getitem, (call, 0))
        parts = {}
        for node, features in zip(group, sets, strict=True):
            first, *others = node.users
            for other in others:
                other.replace_all_uses_with(first)
                graph.erase_node(other)
            parts[first] = features.width
        with graph.inserting_after(rows):
            _replace(graph, rows, parts, 1)
        for node in group:
            graph.erase_node(node)
    return kept


def _merge_linears(graph: Graph) -> None:
    """Make one product of small linear layers over one input."""
    def parts_of(node: Node) -> tuple[Any, Any, Any]:
        given = {**dict(zip(("input", "weight", "bias"), node.args, strict=False)), **node.kwargs}
        return given["input"], given["weight"], given.get("bias")

    def key(node: Node) -> Hashable | None:
        x, weight, bias = parts_of(node)
        example = _example(weight)
        if example is None or example.dim() != 2 or not isinstance(example.numel(), int) or (
                example.numel() > SMALL or example.shape[0] > NARROW):
            return None
        return x, bias is None, example.dtype

    linears = [node for node in graph.nodes
               if node.op == "call_function" and node.target in LINEARS]
    for group in _groups(linears, key):
        x, weights, biases = zip(*map(parts_of, group), strict=True)
        sizes = [example.shape[0] for example in map(_example, weights) if example is not None]
        with graph.inserting_after(group[-1]):
            weight = graph.call_function(torch.cat, (list(weights),))
        last, bias = weight, None
        if biases[0] is not None:
            with graph.inserting_after(weight):
                last = bias = graph.call_function(torch.cat, (list(biases),))
        with graph.inserting_after(last):
            whole = graph.call_function(torch.nn.functional.linear, (x[0], weight, bias))
        with graph.inserting_after(whole):
            _replace(graph, whole, dict(zip(group, sizes, strict=True)), -1)
