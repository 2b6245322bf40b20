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
    """Returns a safetensors file of floats of value 1. tensors: name -> shape."""
    header, data = {}, b""
    for name, shape in tensors.items():
        n = 1
        for extent in shape:
            n *= extent
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * n]}
        data += struct.pack("<f", 1.0) * n
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
    first, second = dict(list(TENSORS.items())[:5]), dict(list(TENSORS.items())[5:])
    index = {"weight_map": {**{name: "a.safetensors" for name in first},
                            **{name: "b.safetensors" for name in second}}}
    shards = {"config.json": json.dumps(CONFIG), **plain, "model.safetensors.index.json": json.dumps(index),
              "a.safetensors": safetensors(first), "b.safetensors": safetensors(second)}
    write("folder", "shards", members(shards))


main()
