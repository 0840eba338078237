"""Names of `horovod.torch` 0.28.1 are all there, with the same arguments and defaults."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("torch")


import harp.lightcc.horovod.torch as hvd

REDUCTION = ("average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, "
             "process_set=all")
COMPRESSED = ("average=None, name=None, compression=none, op=None, prescale_factor=1.0, "
              "postscale_factor=1.0, process_set=all")
SCATTER = "name=None, op=avg, process_set=all, prescale_factor=1.0, postscale_factor=1.0"
COMPRESSED_SCATTER = SCATTER.replace("op=", "compression=none, op=")
CALLS = {
    "init": "comm=None, process_sets=None", "shutdown": "", "is_initialized": "",
    "size": "", "rank": "", "local_size": "", "local_rank": "", "cross_size": "", "cross_rank": "",
    "start_timeline": "file_path, mark_cycles=False", "stop_timeline": "",
    "mpi_threads_supported": "", "mpi_enabled": "", "mpi_built": "", "gloo_enabled": "",
    "gloo_built": "", "nccl_built": "", "ddl_built": "", "ccl_built": "", "cuda_built": "",
    "rocm_built": "", "is_homogeneous": "",
    "allreduce": f"tensor, {COMPRESSED}", "allreduce_async": f"tensor, {REDUCTION}",
    "allreduce_": f"tensor, {REDUCTION}", "allreduce_async_": f"tensor, {REDUCTION}",
    "grouped_allreduce": f"tensors, {COMPRESSED}",
    "grouped_allreduce_async": f"tensors, {REDUCTION}",
    "grouped_allreduce_": f"tensors, {REDUCTION}",
    "grouped_allreduce_async_": f"tensors, {REDUCTION}",
    "sparse_allreduce_async": "tensor, name, op, process_set=all",
    "allgather": "tensor, name=None, process_set=all",
    "allgather_async": "tensor, name=None, process_set=all",
    "grouped_allgather": "tensors, name=None, process_set=all",
    "grouped_allgather_async": "tensors, name=None, process_set=all",
    **dict.fromkeys(("broadcast", "broadcast_async", "broadcast_", "broadcast_async_"),
                    "tensor, root_rank, name=None, process_set=all"),
    "alltoall": "tensor, splits=None, name=None, process_set=all",
    "alltoall_async": "tensor, splits=None, name=None, process_set=all",
    "reducescatter": f"tensor, {COMPRESSED_SCATTER}", "reducescatter_async": f"tensor, {SCATTER}",
    "grouped_reducescatter": f"tensors, {COMPRESSED_SCATTER}",
    "grouped_reducescatter_async": f"tensors, {SCATTER}",
    "join": "device=-1", "barrier": "process_set=all", "poll": "handle", "synchronize": "handle",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=all",
    "allgather_object": "obj, name=None",
    "add_process_set": "process_set", "remove_process_set": "process_set",
    "DistributedOptimizer": (
        "optimizer, named_parameters=None, compression=none, backward_passes_per_step=1, op=avg, "
        "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, "
        "process_set=all"),
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
}
VALUES = ("Average", "Sum", "Adasum", "Min", "Max", "Product", "global_process_set", "Compression",
          "ProcessSet", "HorovodInternalError", "elastic")
MORE = {"allreduce_async_": "sparse=False", "broadcast_parameters": "process_set=all",
        "allgather_object": "process_set=all"}
"""Further arguments of ours, behind the others."""
SAME = {"broadcast_object": ("obj=None", "obj")}
"""Arguments that Horovod requires and ours do not: only the root has an object."""


def written(default):
    if default is hvd.global_process_set:
        return "all"
    return {hvd.Compression.none: "none", hvd.Average: "avg"}.get(default, repr(default))


def arguments(call):
    return [each.name if each.default is each.empty else f"{each.name}={written(each.default)}"
            for each in inspect.signature(call).parameters.values()]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_horovods_arguments_and_defaults(name):
    found = ", ".join(arguments(getattr(hvd, name))).replace(*SAME.get(name, ("", "")))
    assert found == ", ".join(filter(None, (CALLS[name], MORE.get(name))))
    assert name in hvd.__all__ or name.endswith(("_built", "_enabled", "_supported"))


def test_reductions_sets_and_elastic_training_have_their_names():
    assert all(hasattr(hvd, name) for name in VALUES)
    assert arguments(hvd.elastic.TorchState)[:2] == ["model=None", "optimizer=None"]
    assert arguments(hvd.elastic.ElasticSampler) == ["dataset", "shuffle=True", "seed=0"]
    for cls, names in ((hvd.elastic.TorchState, "register_reset_callbacks on_reset commit save "
                        "check_host_updates restore sync reset"),
                       (hvd.elastic.ElasticSampler, "set_epoch record_batch load_state_dict "
                        "state_dict reset __iter__ __len__"),
                       (hvd.ProcessSet, "size rank included process_set_id")):
        assert all(hasattr(cls, name) for name in names.split())
    assert callable(hvd.elastic.run)
    assert all(hasattr(hvd.Compression, name) for name in ("none", "fp16"))
    assert issubclass(hvd.HorovodInternalError, RuntimeError)


def test_ranks_of_a_communicator_are_refused_in_a_sentence():
    with pytest.raises(NotImplementedError, match="the ranks are all that the launcher started"):
        hvd.init([0, 1])
    with pytest.raises(ValueError, match="allowed are a list of sets and 'dynamic'"):
        hvd.init(process_sets="static")


@pytest.mark.parametrize("ranks", [3, None, "01", [0.5], ["a"]])
def test_ranks_of_a_set_that_are_no_numbers_are_one_sentence(ranks):
    with pytest.raises(TypeError, match=r"^the ranks of a process set are .+; allowed are whole "):
        hvd.ProcessSet(ranks)
