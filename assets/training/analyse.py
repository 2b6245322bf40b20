"""Measures attention per head: share of the first token, entropy, distance, and attention to the needle."""
import argparse
import json

import torch
from tokenizers import Tokenizer

from evaluate import heldout_windows, load, recall_tests


@torch.no_grad()
def attention(model, ids):
    """Returns the probabilities of every layer for one window: [layers, heads, rows, columns], float32."""
    probs = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, is_causal):
        scores = (q.float() @ k.float().mT) / q.shape[-1] ** 0.5
        p = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        probs.append(p[0])
        return (p @ v.float()).to(v.dtype)

    torch.nn.functional.scaled_dot_product_attention = spy
    try:
        model(torch.tensor([ids]))
    finally:
        torch.nn.functional.scaled_dot_product_attention = plain
    return torch.stack(probs)


def of_text(model, windows):
    """Returns means over rows 64 and up of held-out windows, each [layers, heads]."""
    first, entropy, near, distance = [], [], [], []
    for ids in windows:
        p = attention(model, ids.tolist())[:, :, 64:]
        rows, columns = torch.arange(64, 64 + p.shape[2])[:, None], torch.arange(p.shape[3])[None]
        back = (rows - columns).clamp(min=0)
        first.append(p[..., 0].mean(-1))
        entropy.append(-(p * p.clamp(min=1e-12).log2()).sum(-1).mean(-1))
        near.append((p * (back < 8)).sum(-1).mean(-1))
        others = p * (columns > 0)
        distance.append(((others * back).sum((-1, -2)) / others.sum((-1, -2))))
    return [torch.stack(x).mean(0) for x in (first, entropy, near, distance)]


def of_needles(model, tests, distance):
    """Returns the attention from the row that predicts a token of the value to that token, mean over tests:
    [layers, heads]."""
    total = 0
    for ids, answer in tests:
        rows = list(range(len(ids) - 1, len(ids) - 1 + len(answer)))
        text = ids + answer
        starts = [i for i in range(len(ids) - len(answer)) if text[i:i + len(answer)] == answer]
        at = min(starts, key=lambda i: abs(len(ids) - i - distance))
        p = attention(model, text[:-1])
        total = total + torch.stack([p[:, :, r, at + i] for i, r in enumerate(rows)]).mean(0)
    return total / len(tests)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--checkpoint", required=True)
    ap.add_argument("--windows", type=int, default=8)
    ap.add_argument("--needles", type=int, default=20)
    a = ap.parse_args()
    tok = Tokenizer.from_file(a.tokenizer)
    model, _ = load(a.checkpoint)
    ids, _ = heldout_windows(a.data, tok, a.windows, 512)
    found = dict(zip(("first", "entropy_bits", "last_eight", "mean_distance"), of_text(model, ids)))
    found["needle"] = of_needles(model, recall_tests(tok, 300, a.needles), 300)
    for name, values in found.items():
        print(json.dumps({name: [[round(x, 3) for x in row] for row in values.tolist()]}))


if __name__ == "__main__":
    main()
