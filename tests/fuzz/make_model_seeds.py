"""Makes the seeds of fuzz_config, fuzz_tokenizer, fuzz_vocabulary, fuzz_safetensors and fuzz_folder below
seeds/: small valid inputs, and inputs on which readers of model folders once failed, as small as possible.

    python3 tests/fuzz/make_model_seeds.py
"""
import json
import pathlib
import struct

SEEDS = pathlib.Path(__file__).parent / "seeds"


def write(target, name, data):
    (SEEDS / target).mkdir(parents=True, exist_ok=True)
    (SEEDS / target / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def members(files):
    """Returns a list of members in the form that fuzz.h reads."""
    out = b""
    for name, data in files.items():
        data = data if isinstance(data, bytes) else data.encode()
        out += f"{name}\n{len(data)}\n".encode() + data
    return out


def safetensors(tensors):
    """Returns a safetensors file of floats of value 1. tensors: name -> shape; blocks
    and scales of MXFP4 are bytes."""
    header, data = {}, b""
    for name, shape in tensors.items():
        n = 1
        for extent in shape:
            n *= extent
        is_bytes = name.endswith(("_blocks", "_scales"))
        added = b"\x7b" * n if is_bytes else struct.pack("<f", 1.0) * n
        header[name] = {"dtype": "U8" if is_bytes else "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(added)]}
        data += added
    text = json.dumps(header)
    return struct.pack("<Q", len(text)) + text.encode() + data


CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4,
          "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "vocab_size": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000,
          "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": [1]}
LAYER = "model.layers.0."
TENSORS = {"model.embed_tokens.weight": [8, 4], LAYER + "input_layernorm.weight": [4],
           LAYER + "self_attn.q_proj.weight": [4, 4], LAYER + "self_attn.k_proj.weight": [2, 4],
           LAYER + "self_attn.v_proj.weight": [2, 4], LAYER + "self_attn.o_proj.weight": [4, 4],
           LAYER + "post_attention_layernorm.weight": [4], LAYER + "mlp.gate_proj.weight": [4, 4],
           LAYER + "mlp.up_proj.weight": [4, 4], LAYER + "mlp.down_proj.weight": [4, 4],
           "model.norm.weight": [4]}
# gpt-oss as it is published: learned sinks, experts in MXFP4, which has blocks of 32.
SINKS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 32,
         "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
         "head_dim": 2, "vocab_size": 8, "num_local_experts": 2, "num_experts_per_tok": 1,
         "sliding_window": 4, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": [1],
         "quantization_config": {"quant_method": "mxfp4"}, "rope_parameters": {
             "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False}}
EXPERTS = LAYER + "mlp.experts."
SINK_TENSORS = {"model.embed_tokens.weight": [8, 32], LAYER + "input_layernorm.weight": [32],
                LAYER + "self_attn.q_proj.weight": [4, 32], LAYER + "self_attn.q_proj.bias": [4],
                LAYER + "self_attn.k_proj.weight": [2, 32], LAYER + "self_attn.k_proj.bias": [2],
                LAYER + "self_attn.v_proj.weight": [2, 32], LAYER + "self_attn.v_proj.bias": [2],
                LAYER + "self_attn.o_proj.weight": [32, 4], LAYER + "self_attn.o_proj.bias": [32],
                LAYER + "self_attn.sinks": [2], LAYER + "post_attention_layernorm.weight": [32],
                LAYER + "mlp.router.weight": [2, 32], LAYER + "mlp.router.bias": [2],
                EXPERTS + "gate_up_proj_blocks": [2, 64, 1, 16], EXPERTS + "gate_up_proj_scales": [2, 64, 1],
                EXPERTS + "gate_up_proj_bias": [2, 64], EXPERTS + "down_proj_blocks": [2, 32, 1, 16],
                EXPERTS + "down_proj_scales": [2, 32, 1], EXPERTS + "down_proj_bias": [2, 32],
                "model.norm.weight": [32]}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
VOCAB = {"a": 0, "b": 1, "ab": 2, "c": 3, "abc": 4, "\u0120": 5}
TOKENIZER = {"added_tokens": [{"id": 6, "content": "<s>", "special": True},
                              {"id": 7, "content": "<x>", "lstrip": True}],
             "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"},
                                                                {"type": "Prepend", "prepend": "a"}]},
             "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                 {"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\p{L}+"}, "behavior": "Isolated"},
                 BYTE_LEVEL]},
             "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
                                                                         {"Sequence": {"id": "A"}}],
                                "special_tokens": {"<s>": {"ids": [6]}}},
             "decoder": BYTE_LEVEL,
             "model": {"type": "BPE", "vocab": VOCAB, "merges": ["a b", ["ab", "c"]]}}


def with_changes(base, **changes):
    return json.dumps({**base, **changes})


def main():
    write("config", "layers_and_heads",
          with_changes(CONFIG, num_hidden_layers=1 << 20, num_attention_heads=1 << 20))
    write("config", "rope_scaling_text", with_changes(CONFIG, rope_scaling="linear"))
    write("config", "yarn", with_changes(CONFIG, rope_scaling={"rope_type": "yarn", "factor": 4.0}))
    write("config", "nested", json.dumps({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1],
        "text_config": {**CONFIG, "model_type": "gemma3_text", "head_dim": 2, "sliding_window": 4,
                        "layer_types": ["sliding_attention"], "query_pre_attn_scalar": 2,
                        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0},
                                            "sliding_attention": {"rope_theta": 10000}}}}))
    write("config", "longrope", with_changes(
        CONFIG, original_max_position_embeddings=16,
        rope_scaling={"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}))
    write("config", "dynamic", with_changes(CONFIG, rope_parameters={"rope_type": "dynamic", "factor": 2.0}))
    write("config", "sinks", json.dumps(SINKS))
    write("config", "escape", with_changes(CONFIG, hidden_act="\x1b[31mred"))
    write("config", "no_architecture", "{}")
    write("config", "theta", with_changes(CONFIG, rope_theta=1e-320))
    write("tokenizer", "small", json.dumps(TOKENIZER))
    slow = {"type": "Split", "pattern": {"Regex": "a*a*[bc]"}, "behavior": "Isolated"}
    write("tokenizer", "slow_pattern", with_changes(TOKENIZER, pre_tokenizer=slow))
    grow = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 20
    write("tokenizer", "growing", with_changes(TOKENIZER, decoder={"type": "Sequence",
                                                                  "decoders": [{"type": "Fuse"}] + grow}))
    plain = {"vocab.json": json.dumps({**VOCAB, "<s>": 6}), "merges.txt": "#version: 0.2\na b\nab c\n",
             "added_tokens.json": json.dumps({"<x>": 7}),
             "tokenizer_config.json": json.dumps({"add_bos_token": True, "bos_token": {"content": "<s>"}}),
             "special_tokens_map.json": json.dumps({"eos_token": "<s>"})}
    write("vocabulary", "small", members(plain))
    write("vocabulary", "many_added", members({**plain, "added_tokens.json": json.dumps(
        {f"<{i}>": 8 + i for i in range(400)})}))
    write("vocabulary", "wrong_merge", members({**plain, "merges.txt": "a zz\n"}))
    write("safetensors", "small", safetensors(TENSORS))
    write("safetensors", "rank", safetensors({"x": [1] * 40}))
    folder = {"config.json": json.dumps(CONFIG), "tokenizer.json": json.dumps(TOKENIZER),
              "model.safetensors": safetensors(TENSORS)}
    write("folder", "small", members(folder))
    write("folder", "sinks", members({"config.json": json.dumps(SINKS),
                                      "tokenizer.json": json.dumps(TOKENIZER),
                                      "model.safetensors": safetensors(SINK_TENSORS)}))
    # The rows of MXFP4 have whole blocks: another width reads beyond them.
    write("folder", "case_block_width", members({
        "config.json": with_changes(SINKS, hidden_size=40), "tokenizer.json": json.dumps(TOKENIZER),
        "model.safetensors": safetensors({
            name: [40 if extent == 32 and "_proj_" not in name else extent for extent in shape]
            for name, shape in SINK_TENSORS.items()})}))
    first, second = dict(list(TENSORS.items())[:5]), dict(list(TENSORS.items())[5:])
    index = {"weight_map": {**{name: "a.safetensors" for name in first},
                            **{name: "b.safetensors" for name in second}}}
    shards = {"config.json": json.dumps(CONFIG), **plain, "model.safetensors.index.json": json.dumps(index),
              "a.safetensors": safetensors(first), "b.safetensors": safetensors(second)}
    write("folder", "shards", members(shards))


main()
