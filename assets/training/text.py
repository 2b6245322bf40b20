"""Reads the text files and cuts plain windows and filler sentences from them."""
import lzma
import os

import numpy as np

EOT = "<|endoftext|>"

# Weight of each file relative to its size: simple English counts more, the classics less.
TRAIN_FILES = {
    "train-childrens": 3.0,
    "train-childrens-uspd": 3.0,
    "train-qa": 3.0,
    "train-classics": 0.3,
    "train-classics-uspd": 0.3,
}


def read_text(folder, name):
    with lzma.open(os.path.join(folder, name + ".txt.xz"), "rt", encoding="utf-8") as f:
        return f.read()


def encode_text(tok, text):
    """Returns the token ids of a whole file. Id 0 (EOT) begins each document."""
    docs = [d.strip("\n") for d in text.split(EOT)]
    ids = []
    for enc in tok.encode_batch_fast([d for d in docs if d], add_special_tokens=False):
        ids.append(np.array([0] + enc.ids, dtype=np.uint16))
    return np.concatenate(ids)


class Text:
    """The tokens of every file, with the positions where a paragraph or a sentence can begin."""

    def __init__(self, folder, tok, cache):
        os.makedirs(cache, exist_ok=True)
        pieces = [tok.decode([i], skip_special_tokens=False) for i in range(tok.get_vocab_size())]
        ends = np.array([p.rstrip("\"')").endswith((".", "!", "?")) for p in pieces])
        spaced = np.array([p.startswith(" ") for p in pieces])
        title = np.array([p.strip() in ("Mr", "Mrs", "Dr", "St") for p in pieces])
        newline = tok.token_to_id("\u010a")  # the byte-level spelling of "\n"
        self.files, self.paragraphs, self.sentences, share = [], [], [], []
        for name, weight in TRAIN_FILES.items():
            path = os.path.join(cache, name + ".npy")
            if not os.path.exists(path):
                np.save(path, encode_text(tok, read_text(folder, name)))
            ids = np.load(path)
            before, here = ids[:-1], ids[1:]
            # A paragraph begins after an empty line; a sentence (or the empty line before a
            # paragraph) after . ! or ?, but not after Mr. and the like.
            self.paragraphs.append(
                1 + np.flatnonzero(((before == newline) & (here != newline)) | (before == 0)))
            ok = ends[before] & spaced[here]
            ok[1:] &= ~title[ids[:-2]]
            ok |= (here == newline) & (before != newline)  # the end of a paragraph
            self.sentences.append(1 + np.flatnonzero(ok))
            self.files.append(ids)
            share.append(weight * len(ids))
        self.share = np.array(share) / sum(share)

    def window(self, rng, length):
        """Returns `length` tokens of plain text that begin at a paragraph."""
        f = rng.choices(range(len(self.files)), self.share)[0]
        ids, starts = self.files[f], self.paragraphs[f]
        while True:
            a = starts[rng.randrange(len(starts))]
            if a + length <= len(ids):
                return ids[a:a + length].astype(np.int64)

    def filler(self, rng, length):
        """Returns consecutive sentences as token arrays, about `length` tokens, beginning at a paragraph.

        Uses only the children's files: the questions belong in simple English."""
        f = rng.choices((0, 1), self.share[:2])[0]
        ids, starts, cuts = self.files[f], self.paragraphs[f], self.sentences[f]
        while True:
            a = starts[rng.randrange(len(starts))]
            if a + length + 200 < len(ids):
                break
        lo, hi = np.searchsorted(cuts, [a + 1, a + length])
        edges = [a, *cuts[lo:hi + 1]]
        return [ids[x:y].astype(np.int64) for x, y in zip(edges, edges[1:])]
