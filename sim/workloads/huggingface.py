"""A Hugging Face ``config.json`` as the keys of a transformer (`sim.workloads.transformer`).

`keys_of` reads fields by the names that the authors' configurations give them and fills in what the
library takes where a field is missing. Nothing is downloaded and no code of the library runs. A
family (``model_type``) is a function of its own below, so that what differs between families can be
read off; models that wrap a text model among others (Llama 4, Gemma 3) are their text model.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Keys = dict[str, Any]


def keys_of(config: Mapping[str, Any]) -> Keys:
    """Keys of the transformer that ``config`` describes.

    Raises:
        ValueError: an unknown family, or a field that is missing; one sentence.

    """
    if config.get("model_type") is None:
        raise ValueError(f"it has no model_type; allowed: {', '.join(FAMILIES)}")
    kind = str(config["model_type"])
    if kind not in FAMILIES:
        near = difflib.get_close_matches(kind, FAMILIES, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"model_type {kind!r} is not known; allowed: {', '.join(FAMILIES)}{hint}; "
                         "others go by the keys of a transformer (docs/use/own-model.md)")
    try:
        return {key: value for key, value in FAMILIES[kind](config).items() if value is not None}
    except KeyError as error:
        raise ValueError(f"model_type {kind!r} needs the field {error.args[0]!r}") from None


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no mapping")
    return value


def _text_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model of one that wraps it among others."""
    return _mapping(config.get("text_config", config), "text_config")


def _whole(value: Any, name: str) -> int:
    """A number that is reckoned with here; all others go as they are to the check of the keys."""
    if type(value) is not int:
        raise ValueError(f"{name} is no whole number")
    return value


def _decoder(config: Mapping[str, Any], **more: Any) -> Keys:
    """Common keys of Llama's descendants."""
    keys: Keys = {
        "layers": config["num_hidden_layers"], "width": config["hidden_size"],
        "heads": config["num_attention_heads"], "vocabulary": config["vocab_size"],
        "kv_heads": config.get("num_key_value_heads"), "head_width": config.get("head_dim"),
        "ffn": config["intermediate_size"], "gated": True, "norm": "rms",
        "head": "tied" if config.get("tie_word_embeddings", False) else "own"}
    return keys | more


def _gpt2(config: Mapping[str, Any]) -> Keys:
    return {"layers": config["n_layer"], "width": config["n_embd"], "heads": config["n_head"],
            "vocabulary": config["vocab_size"], "ffn": config.get("n_inner"), "bias": "all",
            "head": "tied" if config.get("tie_word_embeddings", True) else "own",
            "positions": config.get("n_positions", 1024), "dropout": True}


def _llama(config: Mapping[str, Any]) -> Keys:
    """Llama, Granite and SmolLM 3; networks with a gate have no bias in either setting."""
    return _decoder(config, bias="all" if config.get("attention_bias") else None)


def _neox(config: Mapping[str, Any]) -> Keys:
    return {"layers": config["num_hidden_layers"], "width": config["hidden_size"],
            "heads": config["num_attention_heads"], "vocabulary": config["vocab_size"],
            "ffn": config["intermediate_size"], "bias": "all",
            "head": "tied" if config.get("tie_word_embeddings", False) else "own"}


def _opt(config: Mapping[str, Any]) -> Keys:
    if config.get("word_embed_proj_dim") not in (None, config["hidden_size"]):
        raise ValueError("word_embed_proj_dim is not the hidden_size: words of another width "
                         "than the layers' are not modelled")
    # Its table of positions has two rows more than a sample has tokens.
    return {"layers": config["num_hidden_layers"], "width": config["hidden_size"],
            "heads": config["num_attention_heads"], "vocabulary": config["vocab_size"],
            "ffn": config["ffn_dim"], "bias": "all", "head": "tied", "dropout": True,
            "positions": _whole(config.get("max_position_embeddings", 2048),
                                "max_position_embeddings") + 2}


def _starcoder2(config: Mapping[str, Any]) -> Keys:
    return _decoder(config, gated=False, norm="layer", window=config.get("sliding_window"),
                    bias="all" if config.get("use_bias", True) else "none",
                    head="tied" if config.get("tie_word_embeddings", True) else "own")


def _glm(config: Mapping[str, Any]) -> Keys:
    return _decoder(config, bias="qkv" if config.get("attention_bias", False) else None,
                    head_width=config.get("head_dim", 128))


def _glm4(config: Mapping[str, Any]) -> Keys:
    return _glm(config) | {"norms": 4}


def _glm4_moe(config: Mapping[str, Any]) -> Keys:
    return _glm(config) | {"head_width": config.get("head_dim"),
                           "qk_norm": bool(config.get("use_qk_norm", False)),
                           "experts": _deepseek_experts(config)}


def _gpt_oss(config: Mapping[str, Any]) -> Keys:
    # Its experts have biases as well; the sinks of its attention, one a head, are not counted.
    return _decoder(config, bias="all", head_width=config.get("head_dim", 64),
                    window=config.get("sliding_window", 128), full_every=2, experts={
        "count": config.get("num_local_experts", 128),
        "top_k": config.get("num_experts_per_tok", 4), "ffn": config["intermediate_size"]})


def _windowed(config: Mapping[str, Any]) -> Keys:
    """Mistral and Phi 3; Mistral 3 wraps a text model."""
    config = _text_model(config)
    return _decoder(config, window=config.get("sliding_window"))


def _mixtral(config: Mapping[str, Any]) -> Keys:
    return _decoder(config, window=config.get("sliding_window"), experts={
        "count": config["num_local_experts"], "top_k": config["num_experts_per_tok"],
        "ffn": config["intermediate_size"]})


def _qwen2(config: Mapping[str, Any]) -> Keys:
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    return _decoder(config, bias="qkv", window=window)


def _qwen3(config: Mapping[str, Any]) -> Keys:
    return _decoder(config, qk_norm=True, head_width=config.get("head_dim", 128))


def _sparse(config: Mapping[str, Any]) -> Keys:
    """Qwen's experts: in every ``decoder_sparse_step``-th layer."""
    shared = config.get("shared_expert_intermediate_size", 0)
    # The library's newer releases write the second name.
    count = config.get("num_experts") or config["num_local_experts"]
    return {"experts": {"count": count, "top_k": config["num_experts_per_tok"],
                        "ffn": config["moe_intermediate_size"], "shared": shared,
                        "shared_gate": bool(shared),
                        "every": config.get("decoder_sparse_step", 1)}}


def _qwen2_moe(config: Mapping[str, Any]) -> Keys:
    return _qwen2(config) | _sparse(config)


def _qwen3_moe(config: Mapping[str, Any]) -> Keys:
    return _qwen3(config) | {"head_width": config.get("head_dim")} | _sparse(config)


def _deepseek_experts(config: Mapping[str, Any]) -> Keys:
    expert = _whole(config["moe_intermediate_size"], "moe_intermediate_size")
    return {"count": config["n_routed_experts"], "top_k": config["num_experts_per_tok"],
            "ffn": expert,
            "shared": expert * _whole(config.get("n_shared_experts") or 0, "n_shared_experts"),
            "every": config.get("moe_layer_freq", 1),
            "first": config.get("first_k_dense_replace", 0),
            **_limited(config)}


def _limited(config: Mapping[str, Any]) -> Keys:
    """Groups of experts, where the router limits a token to some of them."""
    groups = config.get("n_group") or 1
    if groups == 1 or config.get("topk_method") == "greedy":  # DeepSeek-V2-Lite names groups, too
        return {}
    return {"groups": groups, "top_groups": config.get("topk_group") or groups}


def _deepseek(config: Mapping[str, Any]) -> Keys:
    return _decoder(config, kv_heads=None, experts=_deepseek_experts(config), latent={
        "kv_rank": config["kv_lora_rank"], "q_rank": config.get("q_lora_rank") or 0,
        "nope": config["qk_nope_head_dim"], "rope": config["qk_rope_head_dim"],
        "value": config["v_head_dim"]})


def _llama4(config: Mapping[str, Any]) -> Keys:
    config = _text_model(config)
    expert = config["intermediate_size"]
    # Every fourth layer sees all tokens, the others chunks of them.
    return _decoder(config, ffn=config["intermediate_size_mlp"], head_width=config["head_dim"],
                    window=config.get("attention_chunk_size", 8192), full_every=4, experts={
        "count": config["num_local_experts"], "top_k": config["num_experts_per_tok"],
        "ffn": expert, "shared": expert, "every": config["interleave_moe_layer_step"]})


def _gemma(config: Mapping[str, Any]) -> Keys:
    return _decoder(config, head="tied", head_width=config.get("head_dim", 256))


def _gemma2(config: Mapping[str, Any]) -> Keys:
    return _gemma(config) | {"norms": 4, "window": config.get("sliding_window", 4096),
                             "full_every": 2}


def _gemma3(config: Mapping[str, Any]) -> Keys:
    # The text model of a published file leaves out what equals the library's defaults.
    config = {"num_attention_heads": 8, "num_key_value_heads": 4,
              "vocab_size": 262_208} | _text_model(config)
    return _gemma(config) | {"norms": 4, "qk_norm": True,
                             "window": config.get("sliding_window", 4096),
                             "full_every": config.get("sliding_window_pattern", 6)}


def _bert(config: Mapping[str, Any]) -> Keys:
    return {"layers": config["num_hidden_layers"], "width": config["hidden_size"],
            "heads": config["num_attention_heads"], "vocabulary": config["vocab_size"],
            "ffn": config["intermediate_size"], "bias": "all", "head": "none",
            "positions": config["max_position_embeddings"],
            "types": config.get("type_vocab_size", 2), "pooler": True, "dropout": True}


def _t5(config: Mapping[str, Any]) -> Keys:
    return {"layers": config.get("num_decoder_layers") or config["num_layers"],
            "encoder": config["num_layers"], "width": config["d_model"],
            "heads": config["num_heads"], "head_width": config["d_kv"], "ffn": config["d_ff"],
            "vocabulary": config["vocab_size"], "norm": "rms",
            "gated": str(config.get("feed_forward_proj", "relu")).startswith("gated"),
            "buckets": config.get("relative_attention_num_buckets", 32),
            "head": "tied" if config.get("tie_word_embeddings", True) else "own", "dropout": True}


def _vit(config: Mapping[str, Any]) -> Keys:
    return {"layers": config["num_hidden_layers"], "width": config["hidden_size"],
            "heads": config["num_attention_heads"], "ffn": config["intermediate_size"],
            "bias": "all", "head": "none", "patches": {
                "image": config["image_size"], "size": config["patch_size"],
                "channels": config.get("num_channels", 3),
                "classes": len(_mapping(config.get("id2label") or {}, "id2label"))}}


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Keys]] = {
    "gpt2": _gpt2, "gpt_neox": _neox, "gpt_oss": _gpt_oss, "opt": _opt, "starcoder2": _starcoder2,
    "llama": _llama, "granite": _llama, "smollm3": _llama,
    "llama4": _llama4, "llama4_text": _llama4,
    "mistral": _windowed, "mistral3": _windowed, "phi3": _windowed, "mixtral": _mixtral,
    "qwen2": _qwen2, "qwen2_moe": _qwen2_moe, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek,
    "glm": _glm, "glm4": _glm4, "glm4_moe": _glm4_moe, "gemma": _gemma, "gemma2": _gemma2,
    "gemma3": _gemma3, "gemma3_text": _gemma3, "bert": _bert, "roberta": _bert,
    "xlm-roberta": _bert, "t5": _t5, "mt5": _t5, "vit": _vit}
"""Reader of each family by its ``model_type``."""
