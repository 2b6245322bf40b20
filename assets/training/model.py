"""The model: LLaMA as in Hugging Face's LlamaForCausalLM, with q/k/v and gate/up fused for speed.

Query heads of a layer can share KV heads (GQA, MQA), and so can layers (MLKV)."""
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 2048
    width: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 0  # per owning layer; query head h reads KV head h // (heads / kv_heads). 0: heads
    kv_layers: int = 0  # layers that own KV heads; the others read the nearest owner below. 0: all
    mlp: int = 512
    max_positions: int = 1024
    rope_theta: float = 10000.0
    eps: float = 1e-5

    def __post_init__(self):
        self.kv_heads, self.kv_layers = self.kv_heads or self.heads, self.kv_layers or self.layers
        if self.heads % self.kv_heads or self.layers % self.kv_layers:
            raise ValueError("KV heads must divide heads, and layers with KV must divide layers")

    def dict(self):
        return asdict(self)

    @property
    def head_dim(self):
        return self.width // self.heads

    def owner(self, layer):
        """Returns the layer whose keys and values `layer` reads (MLKV, equation 17, counted from 0)."""
        group = self.layers // self.kv_layers
        return layer // group * group

    def qkv_rows(self, layer):
        """Returns the rows of q, k and v in the fused matrix of a layer."""
        own = self.kv_heads * self.head_dim if self.owner(layer) == layer else 0
        return [self.width, own, own]


def rope_tables(cfg, length):
    """Returns cos and sin, each [length, head_dim]. The two halves of a head have the same angles
    (rotate-half)."""
    dim = cfg.head_dim
    freq = cfg.rope_theta ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.outer(torch.arange(length).float(), freq)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Block(nn.Module):
    def __init__(self, cfg, layer):
        super().__init__()
        self.heads, self.head_dim, self.kv_heads = cfg.heads, cfg.head_dim, cfg.kv_heads
        self.rows = cfg.qkv_rows(layer)
        self.eps = cfg.eps
        self.norm1 = nn.Parameter(torch.ones(cfg.width))
        self.qkv = nn.Linear(cfg.width, sum(self.rows), bias=False)
        self.out = nn.Linear(cfg.width, cfg.width, bias=False)
        self.norm2 = nn.Parameter(torch.ones(cfg.width))
        self.gate_up = nn.Linear(cfg.width, 2 * cfg.mlp, bias=False)
        self.down = nn.Linear(cfg.mlp, cfg.width, bias=False)

    def heads_of(self, x, count):
        return x.view(*x.shape[:2], count, self.head_dim).transpose(1, 2)

    def attend(self, h, kv, cos, sin):
        """Returns the attention output and (k, v) as the query heads read them: this layer's own, or `kv`
        from below."""
        q, k, v = self.qkv(h).split(self.rows, dim=-1)
        q = rotate(self.heads_of(q, self.heads), cos, sin).to(h.dtype)
        if self.rows[1]:
            k, v = self.heads_of(k, self.kv_heads), self.heads_of(v, self.kv_heads)
            k = rotate(k, cos, sin).to(v.dtype)
            if self.kv_heads < self.heads:
                k, v = (x.repeat_interleave(self.heads // self.kv_heads, dim=1) for x in (k, v))
            kv = k, v
        h = F.scaled_dot_product_attention(q.to(kv[1].dtype), *kv, is_causal=True)
        return self.out(h.transpose(1, 2).flatten(2)), kv

    def forward(self, x, kv, cos, sin):
        d = x.shape[-1]
        h, kv = self.attend(F.rms_norm(x, (d,), self.norm1, self.eps), kv, cos, sin)
        x = x + h
        h = F.rms_norm(x, (d,), self.norm2, self.eps)
        gate, up = self.gate_up(h).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up), kv


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab, cfg.width)
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(cfg.layers))
        self.norm = nn.Parameter(torch.ones(cfg.width))
        cos, sin = rope_tables(cfg, cfg.max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                # The two matrices that write into the residual stream start small, so that it does not grow
                # with depth.
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * cfg.layers) ** 0.5 if last else 0.02)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.embed(ids)
        cos, sin, kv = self.cos[:t], self.sin[:t], None
        for block in self.blocks:
            x, kv = block(x, kv, cos, sin)
        x = F.rms_norm(x, (x.shape[-1],), self.norm, self.cfg.eps)
        return F.linear(x, self.embed.weight)  # tied embeddings

    def loss(self, ids, targets, weights):
        """Returns the weighted loss to train on, the loss of tokens of weight 1, and the accuracy of tokens
        of larger weight (answers)."""
        logits = self(ids).float()
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        w = weights.flatten()
        plain, heavy = (w == 1).float(), (w > 1).float()
        right = (logits.argmax(-1) == targets).flatten().float()
        return ((each * w).sum() / w.sum(), (each * plain).sum().detach() / plain.sum(),
                (right * heavy).sum() / heavy.sum().clamp(min=1))


@torch.no_grad()
def merged(model, kv_heads, kv_layers):
    """Returns the model with fewer KV heads: each is the mean of the heads it replaces, over heads and
    layers."""
    cfg = replace(model.cfg, kv_heads=kv_heads, kv_layers=kv_layers)
    state = model.state_dict()
    for i in range(cfg.layers):
        q = state[f"blocks.{i}.qkv.weight"][:cfg.width]
        if cfg.owner(i) == i:
            stood_for = [b.qkv.weight[cfg.width:] for j, b in enumerate(model.blocks) if cfg.owner(j) == i]
            kv = torch.stack(stood_for).view(len(stood_for), 2, kv_heads, -1, cfg.head_dim, cfg.width)
            q = torch.cat((q, kv.mean(dim=(0, 3)).flatten(0, 2)))
        state[f"blocks.{i}.qkv.weight"] = q.clone()
    small = Model(cfg)
    small.load_state_dict(state)
    return small.to(q.device)


def read_sharing(text, cfg):
    """Reads `gqa:2`, `mqa` or `mlkv:m=3,g=1`. Returns KV heads per owning layer, and the number of such
    layers."""
    kind, _, rest = text.partition(":")
    if kind == "mlkv":
        values = dict(part.split("=") for part in rest.split(","))
        return int(values["g"]), int(values["m"])
    return {"mha": cfg.heads, "mqa": 1, "gqa": int(rest or 1)}[kind], cfg.layers
