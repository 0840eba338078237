"""Configurations: DeepSpeed's keys are read, and each mistake is one sentence."""

from __future__ import annotations

import json

import pytest

from harp.angelptm.adam import Adam
from harp.angelptm.config import ConfigError, read_config


def test_a_configuration_of_deepspeed_is_read(tmp_path):
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({
        "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
        "bf16": {"enabled": True}, "fp16": {"enabled": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-6,
                                                  "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3, "overlap_comm": True,
                              "offload_optimizer": {"device": "nvme", "nvme_path": "/disk"},
                              "offload_param": {"device": "cpu", "pin_memory": True}}}))
    found = read_config(file, ranks=2)
    assert (found.accumulation, found.clipping, found.precision) == (4, 1.0, "bfloat16")
    assert found.adam == Adam(3e-4, (0.9, 0.95), 1e-6, 0.1)
    assert (found.stage, found.disk_path, found.scaling) == (3, "/disk", None)


def test_keys_that_tune_deepspeeds_own_memory_and_reads_have_no_effect():
    tuned = {"aio": {"block_size": 1 << 20, "queue_depth": 8, "thread_count": 1,
                     "single_submit": False, "overlap_events": True},
             "zero_force_ds_cpu_optimizer": False,
             "zero_optimization": {"stage": 3, "ignore_unused_parameters": True,
                                   "stage3_gather_16bit_weights_on_model_save": True}}
    assert read_config(tuned) == read_config({"zero_optimization": {"stage": 3}})
    with pytest.raises(ConfigError, match=r"aio.queue_dept is no key .*did you mean 'queue_depth'"):
        read_config({"aio": {"queue_dept": 8}})


@pytest.mark.parametrize(("keys", "accumulation", "micro"), [
    ({"train_batch_size": 64}, 1, 32), ({"train_micro_batch_size_per_gpu": 3}, 1, 3),
    ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, 4, 8), ({}, 1, 1)])
def test_the_samples_of_a_micro_batch_follow_from_the_keys(keys, accumulation, micro):
    found = read_config(keys, ranks=2)
    assert (found.accumulation, found.micro_batch) == (accumulation, micro)


def test_adam_is_decoupled_as_deepspeed_has_it():
    def of(**params):
        return read_config({"optimizer": {"type": "Adam", "params": params}}).adam
    assert of().decoupled
    assert not of(adam_w_mode=False).decoupled


WRONG = [
    ({"zero_optimisation": {}}, "zero_optimisation is no key .*did you mean 'zero_optimization'"),
    ({"gradient_cliping": 1}, "gradient_cliping is no key .*did you mean 'gradient_clipping'"),
    ({"tensorboard": {}}, "tensorboard is no key that AngelPTM knows; keys there are train_batch"),
    ({"zero_optimization": {"stge": 3}}, r"zero_optimization.stge .*did you mean 'stage'"),
    ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage is 4: a whole number from 0 to"),
    ({"zero_optimization": {"stage": True}}, "zero_optimization.stage is true: a whole number"),
    ({"zero_optimization": 3}, "zero_optimization is 3: an object is possible"),
    ({"zero_optimization": {"offload_param": {"device": "gpu"}}},
     "offload_param.device is \"gpu\""),
    ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "nvme_path is missing"),
    ({"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}}, "did you mean 'device'"),
    ({"zero_optimization": {"offload_optimizer": "cpu"}}, "offload_optimizer is \"cpu\": an obj"),
    ({"optimizer": {"type": "Lamb"}}, "optimizer.type is \"Lamb\": Adam, AdamW"),
    ({"optimizer": {"type": "adamw"}}, "optimizer.type is \"adamw\": Adam, AdamW"),
    ({"optimizer": {"params": {}}}, "type is missing in optimizer"),
    ({"optimizer": {"type": "Adam", "params": {"lr": "auto"}}}, "optimizer.params.lr is \"auto\""),
    ({"optimizer": {"type": "Adam", "params": {"lr": -1}}},
     "optimizer.params.lr is -1: a number of at least 0"),
    ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": "false"}}},
     "adam_w_mode is \"false\": true or false"),
    ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, "two numbers below 1"),
    ({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1.0]}}}, "two numbers below 1"),
    ({"optimizer": {"type": "Adam", "params": {"betas": 0.9}}}, "betas is 0.9: a list"),
    ({"optimizer": {"type": "Adam", "params": {"momentum": 0.9}}}, "params.momentum is no key"),
    ({"train_batch_size": 0}, "train_batch_size is 0: a whole number from 1"),
    ({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}, "train_batch_size is 10: 8 is"),
    ({"train_batch_size": 8, "gradient_accumulation_steps": 3},
     r"train_batch_size is 8: a multiple of gradient_accumulation_steps \* ranks, 3 \* 1, is poss"),
    ({"gradient_accumulation_steps": 1.5}, "gradient_accumulation_steps is 1.5: a whole number"),
    ({"gradient_clipping": "1"}, "gradient_clipping is \"1\": a number"),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "are both true: one is possible"),
    ({"fp16": {"enabled": "yes"}}, "fp16.enabled is \"yes\": true or false"),
    ({"fp16": {"enabled": True, "loss_scale": -1}}, "fp16.loss_scale is -1"),
    ({"fp16": {"enabled": True, "initial_scale_power": 2000}},
     "fp16.initial_scale_power is 2000: a number from 0 to 127 is possible"),
    ({"fp16": {"enabled": True, "loss_scale_window": 1.5}},
     "fp16.loss_scale_window is 1.5: a whole number from 1"),
    ({"fp16": {"enabled": True, "loss_scale_windows": 2}}, "did you mean 'loss_scale_window'"),
    ({"angelptm": {"device_byte": 1}}, "did you mean 'device_bytes'"),
    ({"angelptm": {"device_bytes": "4GB"}}, "angelptm.device_bytes is \"4GB\": a whole number"),
    ({"angelptm": {"page_bytes": 12288}}, "angelptm.page_bytes is 12288: a multiple of 8192"),
    ({"angelptm": {"update": "asink"}}, "angelptm.update is \"asink\".*did you mean async"),
    ({"angelptm": {"update": True}}, "angelptm.update is true: "),
    ({"angelptm": {"update": "async", "staleness": 0}}, "angelptm.staleness is 0: a whole number"),
    ({"angelptm": {"staleness": 2}}, "angelptm.staleness is of late updates: angelptm.update asy"),
    ({"angelptm": {"update": "async", "staleness": 2}, "gradient_clipping": 1},
     "angelptm.staleness is 2: with gradient_clipping or fp16 only 1 is possible"),
    ({"angelptm": {"disk_bytes": 1 << 30}}, "disk_bytes needs a disk: give angelptm.disk_path"),
    ({"angelptm": {"disk_path": ""}}, "angelptm.disk_path is \"\": the path of a folder is"),
    ({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/a"},
                            "offload_optimizer": {"device": "nvme", "nvme_path": "/b"}}},
     "offload_optimizer.nvme_path is \"/b\": the folder of offload_param, /a, is possible"),
    ({"angelptm": {"io": "uring"}}, "angelptm.io is \"uring\".*did you mean io_uring"),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_each_mistake_is_one_sentence(given, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_config(given)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match=r"bad.json: it is no JSON: line 1"):
        read_config(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match=r"none.json: No such file"):
        read_config(tmp_path / "none.json")
