#!/usr/bin/env python3
"""A peer for `keyhole bench --shape`: one decoding step of a dense model in PyTorch, on the same card.

Weights are random, in 16 bits. The step has the field's usual form: a cache that has room for all tokens,
joined q, k and v, joined gate and up, and one CUDA graph. With --compile, torch.compile makes the kernels, as
in gpt-fast.

    python3 tests/bench/torch_step.py --shape llama-2-7b --context 2048 [--compile]
"""
import argparse
import statistics

import torch
import torch.nn.functional as F

# layers, width, heads, KV heads, feed-forward, vocabulary
SHAPES = {
    "llama-2-7b": (32, 4096, 32, 32, 11008, 32000),
    "llama-3-8b": (32, 4096, 32, 8, 14336, 128256),
    "tinyllama-1.1b": (22, 2048, 32, 4, 5632, 32000),
}


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Model:
    def __init__(self, shape, context, dtype):
        self.layers, width, self.heads, self.kv_heads, ff, vocabulary = SHAPES[shape]
        self.size = width // self.heads
        room = context + 64

        def random(*sizes):
            return torch.randn(*sizes, device="cuda", dtype=dtype) * sizes[-1] ** -0.5

        qkv = (self.heads + 2 * self.kv_heads) * self.size
        self.weights = [
            (random(qkv, width), random(width, width), random(2 * ff, width), random(width, ff),
             random(width), random(width)) for _ in range(self.layers)
        ]
        self.caches = [random(2, 1, self.kv_heads, room, self.size) for _ in range(self.layers)]
        self.embedding, self.output = random(vocabulary, width), random(vocabulary, width)
        self.gain = random(width)
        self.token = torch.zeros(1, dtype=torch.long, device="cuda")
        self.at = torch.full((1,), context, dtype=torch.long, device="cuda")
        angles = torch.arange(room, device="cuda")[:, None] * 10000 ** (
            -torch.arange(0, self.size, 2, device="cuda") / self.size)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.allowed = (torch.arange(room, device="cuda") <= context)[None, None, None]

    def bytes_read(self, context):
        of_weights = sum(w.numel() for layer in self.weights for w in layer) + self.output.numel()
        return 2 * (of_weights + self.layers * 2 * self.kv_heads * self.size * context)

    def step(self):
        x = self.embedding[self.token]
        cos, sin = self.cos[self.at], self.sin[self.at]
        width = x.shape[-1]
        for (qkv, out, gate_up, down, gain_1, gain_2), cache in zip(self.weights, self.caches):
            q, k, v = F.linear(F.rms_norm(x, (width,), gain_1), qkv).view(1, -1, self.size).split(
                (self.heads, self.kv_heads, self.kv_heads), 1)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            cache[0].index_copy_(2, self.at, k.view(1, self.kv_heads, 1, self.size))
            cache[1].index_copy_(2, self.at, v.view(1, self.kv_heads, 1, self.size))
            mixed = F.scaled_dot_product_attention(q.view(1, self.heads, 1, self.size), cache[0], cache[1],
                                                   self.allowed, enable_gqa=self.kv_heads != self.heads)
            x = x + F.linear(mixed.reshape(1, -1), out)
            gate, up = F.linear(F.rms_norm(x, (width,), gain_2), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.linear(F.rms_norm(x, (width,), self.gain), self.output).argmax(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="llama-2-7b")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    with torch.no_grad():
        model = Model(args.shape, args.context, torch.float16 if args.dtype == "f16" else torch.bfloat16)
        step = torch.compile(model.step, mode="max-autotune-no-cudagraphs") if args.compile else model.step
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        times = []
        for _ in range(args.steps + 5):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        ms = statistics.median(times[5:])
        made = "torch.compile" if args.compile else "eager kernels"
        print(f"{args.shape} {args.dtype}, {args.context} tokens, {made}, one CUDA graph: {ms:.3f} ms a "
              f"step, {model.bytes_read(args.context) / ms / 1e9:.2f} TB/s, "
              f"{torch.cuda.get_device_name()}, torch {torch.__version__}")


main()
