"""Configurations by the authors' field names, held against the parameters that they publish.

Counts are those that Hugging Face prints beside a model's weights (safetensors metadata), or the
authors' papers where so said. The configurations are numbers of the same pages, written by hand.
Random shapes are held against the library itself, which makes the models without memory.
"""

import json
import random

import pytest

from sim.schema.transformer_keys import TransformerKeys
from sim.workloads.huggingface import FAMILIES, keys_of
from sim.workloads.transformer import build


def config(kind, layers, width, heads, words, ffn, kv=None, head=None, *, tied=False, **more):
    """A configuration with the field names that most families share."""
    return {"model_type": kind, "num_hidden_layers": layers, "hidden_size": width,
            "num_attention_heads": heads, "vocab_size": words, "intermediate_size": ffn,
            "num_key_value_heads": kv, "head_dim": head, "tie_word_embeddings": tied} | more


def t5(layers, width, heads, size, ffn, **more):
    return {"model_type": "t5", "num_layers": layers, "d_model": width, "num_heads": heads,
            "d_kv": size, "d_ff": ffn, "vocab_size": 32128} | more


def vit(layers, width, heads, ffn):
    return {"model_type": "vit", "num_hidden_layers": layers, "hidden_size": width,
            "num_attention_heads": heads, "intermediate_size": ffn, "image_size": 224,
            "patch_size": 16, "id2label": {str(number): "" for number in range(1000)}}


MIXTRAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
            "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
            "first_k_dense_replace": 3}
LLAMA4 = {"intermediate_size_mlp": 16384, "num_experts_per_tok": 1}

CONFIGS = {
    "gpt2-xl": {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25,
                "vocab_size": 50257, "n_positions": 1024},
    "Llama-2-70b": config("llama", 80, 8192, 64, 32000, 28672, 8),
    "Llama-3.2-1B": config("llama", 16, 2048, 32, 128256, 8192, 8, 64, tied=True),
    "Llama-3.1-8B": config("llama", 32, 4096, 32, 128256, 14336, 8),
    "Llama-3.1-70B": config("llama", 80, 8192, 64, 128256, 28672, 8),
    "Llama-3.1-405B": config("llama", 126, 16384, 128, 128256, 53248, 8),
    "Llama-4-Scout-17B-16E": {"model_type": "llama4", "text_config": config(
        "llama4_text", 48, 5120, 40, 202048, 8192, 8, 128, num_local_experts=16,
        interleave_moe_layer_step=1, **LLAMA4)},
    "Llama-4-Maverick-17B-128E": config(
        "llama4_text", 48, 5120, 40, 202048, 8192, 8, 128, num_local_experts=128,
        interleave_moe_layer_step=2, **LLAMA4),
    "Mistral-7B-v0.1": config("mistral", 32, 4096, 32, 32000, 14336, 8, sliding_window=4096),
    "Mixtral-8x7B-v0.1": config("mixtral", 32, 4096, 32, 32000, 14336, 8, **MIXTRAL),
    "Mixtral-8x22B-v0.1": config("mixtral", 56, 6144, 48, 32000, 16384, 8, **MIXTRAL),
    "Qwen2-0.5B": config("qwen2", 24, 896, 14, 151936, 4864, 2, tied=True),
    "Qwen2-7B": config("qwen2", 28, 3584, 28, 152064, 18944, 4),
    "Qwen3-8B": config("qwen3", 36, 4096, 32, 151936, 12288, 8, 128),
    "Qwen3-30B-A3B": config("qwen3_moe", 48, 2048, 32, 151936, 6144, 4, 128, num_experts=128,
                            num_experts_per_tok=8, moe_intermediate_size=768),
    "Qwen1.5-MoE-A2.7B": config("qwen2_moe", 24, 2048, 16, 151936, 5632, 16, num_experts=60,
                                num_experts_per_tok=4, moe_intermediate_size=1408,
                                shared_expert_intermediate_size=5632),
    "Phi-3-mini-4k-instruct": config("phi3", 32, 3072, 32, 32064, 8192, 32, sliding_window=2047),
    "DeepSeek-V3": config("deepseek_v3", 61, 7168, 128, 129280, 18432, 128, **DEEPSEEK),
    "gemma-2b": config("gemma", 18, 2048, 8, 256000, 16384, 1, 256),
    "gemma-7b": config("gemma", 28, 3072, 16, 256000, 24576, 16, 256),
    "gemma-2-9b": config("gemma2", 42, 3584, 16, 256000, 14336, 8, 256),
    # The published file leaves out heads and words, which equal the library's defaults.
    "gemma-3-4b-it": {"model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024}},
    "gemma-3-1b": config("gemma3_text", 26, 1152, 4, 262144, 6912, 1, 256),
    "bert-base-uncased": config("bert", 12, 768, 12, 30522, 3072, max_position_embeddings=512),
    "t5-small": t5(6, 512, 8, 64, 2048),
    "t5-base": t5(12, 768, 12, 64, 3072),
    "t5-3b": t5(24, 1024, 32, 128, 16384),
    "t5-v1_1-base": t5(12, 768, 12, 64, 2048, feed_forward_proj="gated-gelu",
                       tie_word_embeddings=False),
    "gpt-oss-20b": config("gpt_oss", 24, 2880, 64, 201088, 2880, 8, 64, num_local_experts=32),
    "gpt-oss-120b": config("gpt_oss", 36, 2880, 64, 201088, 2880, 8, 64),
    "GLM-4-9B-0414": config("glm4", 40, 4096, 32, 151552, 13696, 2, 128, attention_bias=True),
    "Kimi-K2": config("kimi_k2", 61, 7168, 64, 163840, 18432, 64, **DEEPSEEK | {
        "n_routed_experts": 384, "first_k_dense_replace": 1}),
    "SmolLM3-3B": config("smollm3", 36, 2048, 16, 128256, 11008, 4, tied=True),
    "pythia-12b": config("gpt_neox", 36, 5120, 40, 50688, 20480),
    "opt-1.3b": {"model_type": "opt", "num_hidden_layers": 24, "hidden_size": 2048,
                 "num_attention_heads": 32, "vocab_size": 50272, "ffn_dim": 8192},
    "starcoder2-3b": config("starcoder2", 30, 3072, 24, 49152, 12288, 2, tied=True),
    "vit-base-patch16-224": vit(12, 768, 12, 3072),
    "vit-large-patch16-224": vit(24, 1024, 16, 4096),
}


def model(name, tokens=2048):
    keys = TransformerKeys.model_validate(keys_of(CONFIGS[name]))
    return build(keys.shape, tokens)


@pytest.mark.parametrize(("name", "parameters"), [
    ("gpt2-xl", 1_557_611_200), ("Llama-2-70b", 68_976_648_192), ("Llama-3.2-1B", 1_235_814_400),
    ("Llama-3.1-8B", 8_030_261_248), ("Llama-3.1-70B", 70_553_706_496),
    ("Llama-3.1-405B", 405_853_388_800), ("Mistral-7B-v0.1", 7_241_732_096),
    ("Mixtral-8x7B-v0.1", 46_702_792_704), ("Mixtral-8x22B-v0.1", 140_620_634_112),
    ("Qwen2-0.5B", 494_032_768), ("Qwen2-7B", 7_615_616_512), ("Qwen3-8B", 8_190_735_360),
    ("Qwen3-30B-A3B", 30_532_122_624), ("Qwen1.5-MoE-A2.7B", 14_315_784_192),
    ("Phi-3-mini-4k-instruct", 3_821_079_552), ("gemma-3-4b-it", 3_880_263_168),
    ("gemma-2b", 2_506_172_416), ("gemma-7b", 8_537_680_896),
    ("gemma-2-9b", 9_241_705_984), ("gemma-3-1b", 999_885_952),
    ("bert-base-uncased", 109_482_240), ("t5-small", 60_506_624), ("t5-base", 222_903_552),
    ("t5-3b", 2_851_598_336), ("t5-v1_1-base", 247_577_856),
    ("GLM-4-9B-0414", 9_400_279_040), ("SmolLM3-3B", 3_075_098_624),
    ("pythia-12b", 11_846_072_320), ("opt-1.3b", 1_315_758_080), ("starcoder2-3b", 3_030_371_328),
    ("vit-base-patch16-224", 86_567_656), ("vit-large-patch16-224", 304_326_632),
])
def test_parameters_equal_the_published_count(name, parameters):
    assert model(name).parameters == parameters


@pytest.mark.parametrize(("name", "billions", "active"), [
    ("DeepSeek-V3", 671, 37),              # DeepSeek-V3 technical report, section 1
    ("Mixtral-8x7B-v0.1", 47, 13),         # Jiang et al. 2024, section 1
    ("Mixtral-8x22B-v0.1", 141, 39),       # mistral.ai/news/mixtral-8x22b
    ("Qwen3-30B-A3B", 30.5, 3.3),          # Qwen3 technical report and model card
    ("gpt-oss-20b", 20.9, 4.19),           # arXiv 2508.10925, table 1, and its table of words
    ("gpt-oss-120b", 116.8, 5.71),
    ("Kimi-K2", 1026, 32.6),               # arXiv 2507.20534, table 2
    ("Llama-4-Scout-17B-16E", 109, 17),    # Llama 4 model card; with a vision tower of some 1 B
    ("Llama-4-Maverick-17B-128E", 400, 17),
])
def test_experts_leave_the_published_share_at_work(name, billions, active):
    """A weight at work is a multiply-add a token; the table of words is none, and counts above."""
    made = model(name, tokens=1)
    assert made.parameters == pytest.approx(billions * 1e9, rel=0.015)
    table = next(layer.parameters for layer in made.layers if layer.name == "embed_tokens")
    at_work = made.forward_flops / 2 + table
    assert at_work == pytest.approx(active * 1e9, rel=0.03)


@pytest.mark.parametrize(("fields", "groups"), [
    ({"n_group": 8, "topk_group": 4, "topk_method": "noaux_tc"}, (8, 4)),
    ({"n_group": 8, "topk_group": 3, "topk_method": "group_limited_greedy"}, (8, 3)),
    ({"n_group": 1, "topk_group": 1}, (1, 1)), ({"n_group": None}, (1, 1)),
    ({"n_group": 8, "topk_group": 4, "topk_method": "greedy"}, (1, 1))])
def test_a_router_is_limited_to_the_groups_that_it_names(fields, groups):
    keys = TransformerKeys.model_validate(keys_of(CONFIGS["DeepSeek-V3"] | fields))
    assert (keys.experts.groups, keys.experts.top_groups) == groups


def test_every_family_is_read():
    assert set(FAMILIES) - {kind["model_type"] for kind in CONFIGS.values()} == {
        "deepseek_v2", "mistral3", "glm4_moe", "granite", "glm", "roberta", "xlm-roberta", "mt5"}


WRAPPED = {"llama4": "llama4_text", "gemma3": "gemma3_text", "mistral3": "mistral"}
"""Text models inside families of several."""
MORE = {"deepseek_v2": {"num_experts_per_tok": 2}, "phi3": {"pad_token_id": 0},
        "glm": {"pad_token_id": 0, "attention_bias": True},
        "glm4": {"pad_token_id": 0, "attention_bias": True}, "smollm3": {"pad_token_id": 0},
        "glm4_moe": {"attention_bias": True, "use_qk_norm": True},
        "llama": {"attention_bias": True}}


def random_fields(kind, choose):
    """Fields of a small model of a family, for the library's own configuration class."""
    heads, head, tied = choose((2, 4, 8)), choose((32, 64)), choose((True, False))
    width, layers, inner = heads * head, choose((2, 3, 4)), choose((192, 256))
    if kind == "gpt2":
        return {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": 1000,
                "n_positions": choose((64, 512)), "n_inner": choose((None, inner))}
    if kind == "opt":
        return {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
                "vocab_size": 1000, "ffn_dim": inner, "word_embed_proj_dim": width}
    if kind in ("t5", "mt5"):
        return {"num_layers": layers, "num_decoder_layers": choose((None, 4)), "d_model": width,
                "num_heads": heads, "d_kv": 2 * head, "d_ff": inner, "vocab_size": 1000,
                "feed_forward_proj": choose(("relu", "gated-gelu")), "tie_word_embeddings": tied}
    fields = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
              "intermediate_size": inner}
    if kind == "vit":
        return fields | {"id2label": {0: "cat", 1: "dog", 2: "cow"}}
    if kind in ("bert", "roberta", "xlm-roberta"):
        return fields | {"vocab_size": 1000}
    if choose((True, False)):
        fields |= {"head_dim": head, "hidden_size": 2 * width}
    tied = tied or kind.startswith("gemma")
    return fields | {"num_key_value_heads": choose((1, 2)), "vocab_size": choose((1000, 1024)),
                     "tie_word_embeddings": tied} | MORE.get(kind, {})


@pytest.mark.parametrize("kind", sorted(set(FAMILIES) - {"kimi_k2"}))  # its class is DeepSeek-V3's
def test_random_shapes_have_the_librarys_parameters(kind):
    """The file is what the library would save, which leaves fields out."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    heads = {"t5": transformers.AutoModelForSeq2SeqLM, "mt5": transformers.AutoModelForSeq2SeqLM,
             "bert": transformers.AutoModel, "roberta": transformers.AutoModel,
             "xlm-roberta": transformers.AutoModel,
             "vit": transformers.AutoModelForImageClassification}
    for seed in range(4):
        text = CONFIG_MAPPING[WRAPPED.get(kind, kind)](
            **random_fields(kind, random.Random(seed).choice))
        whole = CONFIG_MAPPING[kind](text_config=text.to_dict()) if kind in WRAPPED else text
        with torch.device("meta"):
            theirs = heads.get(kind, transformers.AutoModelForCausalLM).from_config(text)
        read = keys_of(json.loads(whole.to_json_string(use_diff=True)))
        ours = build(TransformerKeys.model_validate(read).shape, 128)
        counted = sum(each.numel() for name, each in theirs.named_parameters()
                      if not name.endswith("sinks"))
        assert ours.parameters == counted, (seed, read)


@pytest.mark.parametrize(("given", "says"), [
    ({"model_type": "lama"}, "model_type 'lama' is not known; allowed: gpt2, .*'llama'"),
    ({"model_type": None}, "has no model_type; allowed: gpt2, "), ({}, "has no model_type"),
    ({"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512},  # opt-350m
     "word_embed_proj_dim is not the hidden_size"),
    ({"model_type": "llama"}, "model_type 'llama' needs the field 'num_hidden_layers'"),
    ({"model_type": ["gpt2"]}, "is not known")])
def test_an_unreadable_file_is_one_sentence(given, says):
    with pytest.raises(ValueError, match=says) as caught:
        keys_of(given)
    assert "\n" not in str(caught.value)
