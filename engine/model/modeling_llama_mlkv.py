# LLaMA whose layers share KV heads (MLKV). num_key_value_layers of the num_hidden_layers layers have their
# own K and V: layers int(i * (num_hidden_layers / num_key_value_layers)) for i = 0, 1, ... The other layers
# read those of the nearest owner below. Load this folder with
# AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True).
# Borrowed K and V are cached a second time, which Keyhole avoids.
import torch
from transformers import LlamaConfig, LlamaForCausalLM


class LlamaMlkvConfig(LlamaConfig):
    model_type = "llama_mlkv"


class Lent(torch.nn.Linear):
    def forward(self, x):
        self.last = super().forward(x)
        return self.last


class Borrowed(torch.nn.Module):
    def __init__(self, owner):
        super().__init__()
        self.__dict__["owner"] = owner  # no submodule: its weights belong to the owner

    def forward(self, x):
        return self.owner.last


class LlamaMlkvForCausalLM(LlamaForCausalLM):
    config_class = LlamaMlkvConfig

    def __init__(self, config):
        super().__init__(config)
        n, m = config.num_hidden_layers, config.num_key_value_layers
        owners = {int(i * (n / m)) for i in range(m)}
        width = config.num_key_value_heads * self.model.layers[0].self_attn.head_dim
        for i, layer in enumerate(self.model.layers):
            for name in ("k_proj", "v_proj"):
                if i in owners:
                    setattr(layer.self_attn, name,
                            Lent(config.hidden_size, width, bias=config.attention_bias))
                else:
                    owner = self.model.layers[max(j for j in owners if j < i)].self_attn
                    setattr(layer.self_attn, name, Borrowed(getattr(owner, name)))
        self.post_init()
