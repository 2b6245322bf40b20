"""Converts a checkpoint to a Hugging Face LLaMA folder (bf16 safetensors, configuration, tokenizer)."""
import argparse
import json
import os
import pathlib
import shutil

import torch
from safetensors.torch import save_file

from evaluate import load

# Model code that transformers lacks; `keyhole convert` writes the same file.
MLKV = pathlib.Path(__file__).parents[2] / "engine/model/modeling_llama_mlkv.py"


def tensors(model):
    """Returns the weights under Hugging Face's names. Splits the fused matrices and omits the tied head."""
    out = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm}
    for i, b in enumerate(model.blocks):
        at = f"model.layers.{i}."
        out[at + "input_layernorm.weight"] = b.norm1
        out[at + "post_attention_layernorm.weight"] = b.norm2
        for name, part in zip("qkv", b.qkv.weight.split(b.rows)):
            if len(part):  # a layer without KV heads of its own has no k and v
                out[at + f"self_attn.{name}_proj.weight"] = part
        out[at + "self_attn.o_proj.weight"] = b.out.weight
        for name, part in zip(("gate", "up"), b.gate_up.weight.chunk(2)):
            out[at + f"mlp.{name}_proj.weight"] = part
        out[at + "mlp.down_proj.weight"] = b.down.weight
    return {k: v.detach().to(torch.bfloat16).contiguous().clone() for k, v in out.items()}


def configuration(cfg):
    across = cfg.kv_layers < cfg.layers  # README.md, "Config of a model that shares KV heads between layers"
    return {
        "architectures": ["LlamaMlkvForCausalLM" if across else "LlamaForCausalLM"],
        "model_type": "llama_mlkv" if across else "llama",
        **({"auto_map": {"AutoConfig": "modeling_llama_mlkv.LlamaMlkvConfig",
                         "AutoModelForCausalLM": "modeling_llama_mlkv.LlamaMlkvForCausalLM"}}
           if across else {}),
        "vocab_size": cfg.vocab,
        "hidden_size": cfg.width,
        "intermediate_size": cfg.mlp,
        "num_hidden_layers": cfg.layers,
        "num_attention_heads": cfg.heads,
        "num_key_value_heads": cfg.kv_heads,
        **({"num_key_value_layers": cfg.kv_layers} if across else {}),
        "head_dim": cfg.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": cfg.max_positions,
        "rope_theta": cfg.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": cfg.eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "use_cache": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def check(model, folder):
    """Checks that transformers gives this module's logits for the exported folder (float32, bf16-rounded
    weights)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True).eval()
    ids = torch.randint(1, model.cfg.vocab, (1, 700), generator=torch.Generator().manual_seed(0))
    ids[0, 0] = 0
    for p in model.parameters():
        p.data = p.data.bfloat16().float()
    with torch.no_grad():
        ours, theirs = model(ids), other(ids).logits
    gap = (ours - theirs).abs().max().item()
    tok = AutoTokenizer.from_pretrained(folder)
    text = "The code of the garden gate is 4821.\n\nWhat?"
    ids = tok(text).input_ids
    assert ids[0] == 0 and tok.decode(ids[1:]) == text, ids
    print(json.dumps({"largest logit difference": gap, "tokenizer": "ok"}))
    assert gap < 1e-3


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--checkpoint", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--check", action="store_true", help="compare with transformers")
    a = ap.parse_args()
    model, _ = load(a.checkpoint)
    os.makedirs(a.out, exist_ok=True)
    save_file(tensors(model), os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})
    # The library makes it readable for its owner only.
    os.chmod(os.path.join(a.out, "model.safetensors"), 0o644)
    shutil.copyfile(a.tokenizer, os.path.join(a.out, "tokenizer.json"))
    write_json(a.out, "config.json", configuration(model.cfg))
    if model.cfg.kv_layers < model.cfg.layers:
        copy = os.path.join(a.out, MLKV.name)
        if not os.path.exists(copy):  # the folders in assets hold links
            shutil.copy(MLKV, copy)
    write_json(a.out, "generation_config.json", {"bos_token_id": 0, "eos_token_id": 0, "do_sample": False})
    eot = "<|endoftext|>"
    write_json(a.out, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": eot, "eos_token": eot,
        "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": model.cfg.max_positions})
    if a.check:
        check(model, a.out)


if __name__ == "__main__":
    main()
