"""Computes bits per byte of the held-out text with an n-gram model of the training text: the demo model's
baseline.

Interpolated modified Kneser-Ney (Chen and Goodman 1999) over the same tokens: the highest order counts
n-grams, the lower orders count distinct left neighbours, with three discounts per order. It reads every file
once. The windows are those of evaluate.py; no n-gram crosses the beginning of a window."""
import argparse
import json
import math

import numpy as np
from tokenizers import Tokenizer

from evaluate import heldout_windows
from text import Text

BITS = 11  # a token; five of them fit into 64 bits
VOCAB = 1 << BITS


class Order:
    """Counts of one order and its discounts. N-grams and contexts are sorted codes, found by bisection."""

    def __init__(self, grams, counts):
        self.grams, self.counts = grams, counts
        n = [int((counts == i).sum()) for i in (1, 2, 3, 4)]
        y = n[0] / max(1, n[0] + 2 * n[1])
        self.discount = np.array(
            [0.0] + [max(0.0, i - (i + 1) * y * n[i] / max(n[i - 1], 1)) for i in (1, 2, 3)])
        contexts = grams >> BITS
        starts = np.flatnonzero(np.r_[True, contexts[1:] != contexts[:-1]])
        self.contexts = contexts[starts]
        self.totals = np.add.reduceat(counts, starts)
        # Mass that the discounts free.
        self.left = np.add.reduceat(self.discount[np.minimum(counts, 3)], starts)

    def probability(self, gram, lower):
        """Returns the probability of the last token of each code, given those before it. lower: the next
        lower order's."""
        at = np.minimum(np.searchsorted(self.grams, gram), len(self.grams) - 1)
        count = np.where(self.grams[at] == gram, self.counts[at], 0)
        context = gram >> BITS
        at = np.minimum(np.searchsorted(self.contexts, context), len(self.contexts) - 1)
        seen, total = self.contexts[at] == context, self.totals[at]
        here = (count - self.discount[np.minimum(count, 3)] + self.left[at] * lower) / total
        return np.where(seen, here, lower)


def orders(streams, order):
    """Returns the orders from 1 to `order`."""
    codes = []
    for ids in streams:
        ids = ids.astype(np.int64)
        code = np.zeros(len(ids) - order + 1, dtype=np.int64)
        for i in range(order):
            code = code << BITS | ids[i:len(ids) - order + 1 + i]
        codes.append(code)
    grams, counts = np.unique(np.concatenate(codes), return_counts=True)
    out = [Order(grams, counts)]
    for n in range(order - 1, 0, -1):
        grams, counts = np.unique(out[-1].grams & ((1 << BITS * n) - 1), return_counts=True)
        out.append(Order(grams, counts))
    return out[::-1]


def window_probabilities(models, row):
    """Returns the probability of every token of a window after its first."""
    p = np.full(len(row) - 1, 1 / VOCAB)
    code = np.zeros(len(row), dtype=np.int64)
    for n, model in enumerate(models):  # the codes of the n + 1 tokens that end at each place
        code = code[1:] if n else code
        code = code | row[:len(row) - n] << BITS * n
        p[max(n - 1, 0):] = model.probability(code[0 if n else 1:], p[max(n - 1, 0):])
    return p


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--tokens", required=True, help="folder for the encoded text, such as RUN/tokens")
    ap.add_argument("--order", type=int, default=5)
    ap.add_argument("--windows", type=int, default=64)
    a = ap.parse_args()
    tok = Tokenizer.from_file(a.tokenizer)
    assert tok.get_vocab_size() <= VOCAB
    models = orders(Text(a.data, tok, a.tokens).files, a.order)
    ids, sizes = heldout_windows(a.data, tok, a.windows, 512)
    bits = [-np.log2(window_probabilities(models, row)).sum() for row in ids.numpy()]
    print(json.dumps(dict(order=a.order, windows=a.windows, tokens=int(models[-1].counts.sum()),
                          bits_per_byte=round(float(sum(bits)) / sum(sizes), 4),
                          nats_per_token=round(float(sum(bits)) * math.log(2) / ids[:, 1:].numel(), 4))))


if __name__ == "__main__":
    main()
