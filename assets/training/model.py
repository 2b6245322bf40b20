"""The model: LLaMA as Hugging Face's LlamaForCausalLM computes it, with q/k/v and gate/up fused for speed."""
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 2048
    width: int = 256
    layers: int = 6
    heads: int = 8
    mlp: int = 512
    max_positions: int = 1024
    rope_theta: float = 10000.0
    eps: float = 1e-5

    def dict(self):
        return asdict(self)


def rope_tables(cfg, length):
    """cos and sin, each [length, head_dim]: the two halves of a head carry the same angles (rotate-half)."""
    dim = cfg.width // cfg.heads
    freq = cfg.rope_theta ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.outer(torch.arange(length).float(), freq)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.eps = cfg.eps
        self.norm1 = nn.Parameter(torch.ones(cfg.width))
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width, bias=False)
        self.out = nn.Linear(cfg.width, cfg.width, bias=False)
        self.norm2 = nn.Parameter(torch.ones(cfg.width))
        self.gate_up = nn.Linear(cfg.width, 2 * cfg.mlp, bias=False)
        self.down = nn.Linear(cfg.mlp, cfg.width, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        h = F.rms_norm(x, (d,), self.norm1, self.eps)
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).reshape(b, t, d))
        h = F.rms_norm(x, (d,), self.norm2, self.eps)
        gate, up = self.gate_up(h).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab, cfg.width)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = nn.Parameter(torch.ones(cfg.width))
        cos, sin = rope_tables(cfg, cfg.max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                # The two matrices that write into the residual stream start small, so that depth does not inflate it.
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * cfg.layers) ** 0.5 if last else 0.02)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.embed(ids)
        cos, sin = self.cos[:t], self.sin[:t]
        for block in self.blocks:
            x = block(x, cos, sin)
        x = F.rms_norm(x, (x.shape[-1],), self.norm, self.cfg.eps)
        return F.linear(x, self.embed.weight)  # tied embeddings

    def loss(self, ids, targets, weights):
        """The weighted loss to train on; the loss of the tokens of weight 1; the accuracy of heavier ones (answers)."""
        logits = self(ids).float()
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        w = weights.flatten()
        plain, heavy = (w == 1).float(), (w > 1).float()
        right = (logits.argmax(-1) == targets).flatten().float()
        return ((each * w).sum() / w.sum(), (each * plain).sum().detach() / plain.sum(),
                (right * heavy).sum() / heavy.sum().clamp(min=1))
