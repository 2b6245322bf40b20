"""Measures recall by distance and bits per byte of the held-out text, and prints unselected samples."""
import argparse
import functools
import json
import math
import random

import torch
from tokenizers import Tokenizer

from model import Config, Model, merged, read_sharing
from tasks import TASKS, WORDS, split_sentences, test_task
from text import read_text


def heldout_windows(data, tok, count, length):
    """Returns `count` windows spread evenly over heldout.txt: ids [count, length + 1] and the bytes of
    each."""
    text = read_text(data, "heldout")
    rows, sizes = [], []
    for i in range(count):
        at = text.index("\n\n", int(len(text) * i / count)) + 2
        part = text[at:at + 8 * length]
        ids = tok.encode(part.replace("<|endoftext|>\n", ""), add_special_tokens=False).ids[:length]
        rows.append([0] + ids)
        sizes.append(len(tok.decode(ids).encode()))
    return torch.tensor(rows), sizes


@torch.no_grad()
def heldout_loss(model, held):
    """Returns nats per token and bits per byte."""
    ids, sizes = held
    device = model.embed.weight.device
    total = 0.0
    for row in ids.split(4):
        row = row.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(row[:, :-1])
        total += torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), row[:, 1:].flatten(), reduction="sum").item()
    return total / ids[:, 1:].numel(), total / math.log(2) / sum(sizes)


# Small models cannot answer passage questions; keyhole eval --task passage has them.
KINDS = [k for k in TASKS if k != "passage"]


def recall_tests(tok, distance, count, kind="needle", seed=7):
    """Returns ids of prompts and of their answers: the questions of `keyhole eval --task` at a distance in
    tokens.

    Names, nouns and the narrative (../tasks/narrative.txt, from the held-out files) were not trained on."""
    global sentences
    if sentences is None:
        sentences = split_sentences((WORDS.parent / "narrative.txt").read_text())
    sizes = functools.lru_cache(maxsize=None)(
        lambda text: len(tok.encode(text, add_special_tokens=False).ids))
    context = min(distance + 124, 1024)
    found = []
    for i in range(count):
        task = test_task(kind, seed, i, context, (distance, distance), sentences, [], sizes)
        ids = tok.encode(task.prompt).ids
        found.append((ids, tok.encode(task.prompt + task.answer).ids[len(ids):]))
    return found


sentences = None


@torch.no_grad()
def recall(model, tests, detail=False):
    """Returns the share of tests where greedy decoding gives exactly the answer.

    Feeds the answer and requires every token of it to be the model's first choice, which is equivalent and
    takes one pass."""
    device = model.embed.weight.device
    # Batches similar lengths.
    order = sorted(range(len(tests)), key=lambda i: len(tests[i][0]) + len(tests[i][1]))
    good = [False] * len(tests)
    for at in range(0, len(order), 8):
        some = order[at:at + 8]
        rows = [tests[i][0] + tests[i][1] for i in some]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
        with torch.autocast(device.type, torch.bfloat16):
            picks = model(ids[:, :-1]).argmax(-1).tolist()
        for i, pick, row in zip(some, picks, rows):
            good[i] = pick[len(tests[i][0]) - 1:len(row) - 1] == tests[i][1]
    return good if detail else sum(good) / len(good)


def interval(share, count):
    """Returns the 95 % interval of a share of `count` questions (Wilson)."""
    z = 1.96
    middle, half = share + z * z / 2 / count, z * math.sqrt(
        share * (1 - share) / count + z * z / 4 / count / count)
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


@torch.no_grad()
def generate(model, ids, count, rng=None, temperature=0.8, top_p=0.95):
    """Generates `count` tokens, greedily without rng. Uses no cache: simple, and fast enough for samples."""
    ids = list(ids)
    for _ in range(count):
        logits = model(torch.tensor([ids[-model.cfg.max_positions:]],
                                    device=model.embed.weight.device))[0, -1].float()
        if rng is None:
            pick = int(logits.argmax())
        else:
            p, order = torch.softmax(logits / temperature, -1).sort(descending=True)
            p = p[: int((p.cumsum(0) < top_p).sum()) + 1]
            pick = int(order[rng.choices(range(len(p)), p.tolist())[0]])
        if pick == 0:
            break
        ids.append(pick)
    return ids


def load(path, device="cpu"):
    c = torch.load(path, map_location=device)
    model = Model(Config(**c["config"])).to(device)
    model.load_state_dict(c["model"])
    return model.eval(), c


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--checkpoint", required=True)
    ap.add_argument("--count", type=int, default=100, help="questions of each kind at each distance")
    ap.add_argument("--kinds", default=",".join(KINDS))
    ap.add_argument("--distances", default="100,300,512,900")
    ap.add_argument("--kv", default="mha",
                    help="merge KV heads first, as train.py --kv: what merging alone costs")
    ap.add_argument("--samples", type=int, default=10)
    a = ap.parse_args()
    tok = Tokenizer.from_file(a.tokenizer)
    model, c = load(a.checkpoint)
    model = merged(model, *read_sharing(a.kv, model.cfg)) if a.kv != "mha" else model
    nats, bits = heldout_loss(model, heldout_windows(a.data, tok, 64, 512))
    print(json.dumps(dict(step=c["step"], tokens=c["tokens"], minutes=round(c["seconds"] / 60, 1),
                          heldout_nats_per_token=round(nats, 4), heldout_bits_per_byte=round(bits, 4))),
          flush=True)
    for kind in filter(None, a.kinds.split(",")):
        for distance in map(int, a.distances.split(",")):
            share = recall(model, recall_tests(tok, distance, a.count, kind))
            low, high = interval(share, a.count)
            print(json.dumps(dict(kind=kind, distance=distance, n=a.count, recall=round(share, 4),
                                  low=round(low, 3), high=round(high, 3))), flush=True)
    rng = random.Random(1)
    for i in range(a.samples):
        print(f"--- sample {i + 1}\n" + tok.decode(generate(model, [0], 120, rng)), flush=True)


if __name__ == "__main__":
    main()
