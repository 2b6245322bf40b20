"""Trains the model. Resumes from the newest checkpoint in --out. Every batch depends only on (seed, step)."""
import argparse
import json
import math
import os
import random
import signal
import time

import numpy as np
import torch
from tokenizers import Tokenizer

from evaluate import heldout_loss, heldout_windows, load, recall, recall_tests
from model import Config, Model, merged, read_sharing
from tasks import Windows
from text import Text

# stages: window length : last step : share of recall windows : largest share of narrative in a window's
# tokens. Short windows with many questions come first: the model learns retrieval on them soonest. Lengths
# joined by / alternate by step: attention makes long windows slow, and a few of them are enough to learn
# distance.
PRESETS = {
    "base": dict(model=Config(), tokens=8192,
                 stages="256:1000:0.6:0.5,512:1430:0.45:0.9,1024/256/256:1000000:0.4:0.9"),
    "tiny": dict(model=Config(width=64, layers=2, heads=2, mlp=128), tokens=1024,
                 stages="128:20:0.6:0.5,256/128:40:0.5:0.9"),
}


class Muon(torch.optim.Optimizer):
    """Momentum with a nearly orthogonal update, for matrices: all directions learn at the same rate."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}  # matrices of equal shape are processed in one batch
            for p in group["params"]:
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(buf, group["momentum"])
                # Fused matrices count as several.
                for part, weight in zip(g.split(p.parts), p.data.split(p.parts)):
                    shapes.setdefault(part.shape, []).append((part, weight))
            for shape, pairs in shapes.items():
                x = orthogonal(torch.stack([g for g, _ in pairs]))
                scale = group["lr"] * max(1, shape[0] / shape[1]) ** 0.5
                for update, (_, weight) in zip(x, pairs):
                    weight.add_(update.to(weight.dtype), alpha=-scale)


def orthogonal(x):
    """Orthogonalises by Newton-Schulz: five steps of a quintic that moves all singular values towards one."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


def batch(text, tasks, seed, step, length, count, share, most_fill, answer):
    """Returns ids and weights, each [count, length + 1]. Every window begins with <|endoftext|>, the sink."""
    rng = random.Random(seed * 10_000_000 + step)
    ids = np.zeros((count, length + 1), dtype=np.int64)
    weights = np.ones((count, length + 1), dtype=np.float32)
    for i in range(count):
        if rng.random() < share:
            ids[i, 1:], weights[i, 1:] = tasks.window(rng, text, length, answer, rng.uniform(0.05, most_fill))
        else:
            ids[i, 1:] = text.window(rng, length)
    return torch.from_numpy(ids), torch.from_numpy(weights)


def read_stages(text):
    stages = []
    for part in text.split(","):
        lengths, last, share, fill = part.split(":")
        stages.append(([int(x) for x in lengths.split("/")], int(last), float(share), float(fill)))
    return stages


def stage_at(stages, step):
    """Returns window length, recall share and largest narrative share at a step."""
    for lengths, last, share, fill in stages:
        if step < last:
            break
    return lengths[step % len(lengths)], share, fill


def rate_at(a, step):
    """Returns the learning rate as a share of its highest value."""
    rate = min(1.0, max(0, step + 1 - a.warm_from) / a.warm_steps)
    if step >= a.decay_from:
        rate *= max(0.0, (a.stop_at - step) / (a.stop_at - a.decay_from))
    return rate


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True, help="folder with the .txt.xz files")
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--out", required=True, help="folder for checkpoints and the log")
    ap.add_argument("--preset", default="base", choices=PRESETS)
    ap.add_argument("--stages", help="comma separated, see PRESETS (default: the preset's)")
    ap.add_argument("--merge-from",
                    help="checkpoint of a model whose KV heads are merged as --kv says, to begin with")
    ap.add_argument("--kv", default="mha",
                    help="mha, gqa:HEADS, mqa, or mlkv:m=LAYERS,g=HEADS; with --merge-from")
    ap.add_argument("--warm-from", type=int, default=0,
                    help="step from which the learning rate rises: for a run that goes on from a finished"
                    " one")
    ap.add_argument("--warm-steps", type=int, default=100)
    ap.add_argument("--decay-from", type=int, default=10**9,
                    help="step at which the learning rate begins to fall")
    ap.add_argument("--stop-at", type=int, default=10**9, help="step at which it has fallen to zero; the end")
    ap.add_argument("--finish-in", type=float,
                    help="minutes: instead, fall to zero by the clock, from the rate of the first step now;"
                    " for a machine whose speed cannot be foreseen")
    ap.add_argument("--answer-weight", type=float, default=4.0)
    ap.add_argument("--lr", type=float, default=0.015, help="for matrices (Muon)")
    ap.add_argument("--adam-lr", type=float, default=0.003, help="for the embedding and the norms")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--batch-tokens", type=int, help="tokens a step (default: the preset's)")
    ap.add_argument("--eval-every", type=int, default=250, help="steps; 0: never, not at the end either")
    ap.add_argument("--save-minutes", type=float, default=5)
    ap.add_argument("--no-compile", action="store_true")
    a = ap.parse_args()

    preset = PRESETS[a.preset]
    stages = read_stages(a.stages or preset["stages"])
    batch_tokens = a.batch_tokens or preset["tokens"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    os.makedirs(a.out, exist_ok=True)
    tok = Tokenizer.from_file(a.tokenizer)
    text = Text(a.data, tok, os.path.join(a.out, "tokens"))
    tasks = Windows(tok)
    if a.merge_from:
        whole = load(a.merge_from, device)[0]
        model = merged(whole, *read_sharing(a.kv, whole.cfg)).train()
    else:
        model = Model(preset["model"]).to(device)
    for p in model.parameters():
        p.parts = p.shape[0]
    for block in model.blocks:  # rows of the matrices fused into one
        block.qkv.weight.parts = [n for n in block.rows if n]
        block.gate_up.weight.parts = model.cfg.mlp
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n != "embed.weight"]
    others = [p for n, p in model.named_parameters() if p.dim() == 1 or n == "embed.weight"]
    muon = Muon(matrices, lr=a.lr)
    adam = torch.optim.AdamW(others, lr=a.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    loss_of = model.loss if a.no_compile else torch.compile(model.loss, dynamic=False)

    step, tokens, seconds, best = 0, 0, 0.0, -1e9
    last = os.path.join(a.out, "last.pt")
    if os.path.exists(last):
        c = torch.load(last, map_location=device)
        model.load_state_dict(c["model"]), muon.load_state_dict(c["muon"]), adam.load_state_dict(c["adam"])
        step, tokens, seconds, best = c["step"], c["tokens"], c["seconds"], c["best"]
    held = heldout_windows(a.data, tok, 16, min(512, model.cfg.max_positions))
    tests = {d: recall_tests(tok, d, 32) for d in (100, 500, 900)}
    log = open(os.path.join(a.out, "log.jsonl"), "a")

    def note(**kw):
        line = json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in kw.items()})
        print(line, flush=True)
        print(line, file=log, flush=True)

    def save(name):
        state = dict(model=model.state_dict(), muon=muon.state_dict(), adam=adam.state_dict(), step=step,
                     tokens=tokens, seconds=seconds, best=best, config=model.cfg.dict(), args=vars(a))
        torch.save(state, os.path.join(a.out, "new.tmp"))
        os.replace(os.path.join(a.out, "new.tmp"), os.path.join(a.out, name))

    note(event="start", step=step, parameters=sum(p.numel() for p in model.parameters()), stages=stages,
         decay_from=a.decay_from, stop_at=a.stop_at, lr=a.lr, seed=a.seed, device=device)
    started, first_rate, stop = time.time(), rate_at(a, step), []
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, lambda *_: stop.append(1))  # finishes the step, saves, exits
    saved, since, sums, count = time.time(), time.time(), np.zeros(3), 0
    while step < a.stop_at and not stop:
        began = time.time()
        length, share, fill = stage_at(stages, step)
        ids, weights = batch(text, tasks, a.seed, step, length, batch_tokens // length, share, fill,
                             a.answer_weight)
        ids, weights = ids.to(device), weights.to(device)
        rate = rate_at(a, step)
        if a.finish_in:
            left = 1 - (time.time() - started) / (60 * a.finish_in)
            rate = first_rate * max(0.0, left)
            if left <= 0:
                stop.append(1)
        muon.param_groups[0]["lr"], adam.param_groups[0]["lr"] = a.lr * rate, a.adam_lr * rate
        with torch.autocast(device, torch.bfloat16):
            loss, plain, answers = loss_of(ids[:, :-1], ids[:, 1:], weights[:, 1:])
        loss.backward()
        muon.step(), adam.step()
        model.zero_grad()
        values = [x.item() for x in (loss, plain, answers)]
        if not math.isfinite(values[0]):
            raise SystemExit(f"loss is {values[0]} at step {step}")
        step += 1
        tokens += length * ids.shape[0]
        seconds += time.time() - began
        sums, count = sums + values, count + 1
        if step % 25 == 0:
            m = sums / count
            note(step=step, tokens=tokens, length=length, rate=round(rate, 3), loss=m[0], plain=m[1],
                 answer_accuracy=m[2], tokens_per_s=int(count * batch_tokens / (time.time() - since)),
                 minutes=round(seconds / 60, 1))
            since, sums, count = time.time(), np.zeros(3), 0
        if a.eval_every and (step % a.eval_every == 0 or step == a.stop_at):
            paused = time.time()
            nats, bits = heldout_loss(model, held)
            found = {str(d): recall(model, t) for d, t in tests.items()}
            note(event="eval", step=step, heldout_nats_per_token=nats, heldout_bits_per_byte=bits,
                 recall=found)
            score = sum(found.values()) / len(found) - nats
            if score > best:
                best = score
                save("best.pt")
            since += time.time() - paused
        if time.time() - saved > a.save_minutes * 60 or step == a.stop_at or stop:
            if os.path.exists(last):
                os.replace(last, os.path.join(a.out, "previous.pt"))
            save("last.pt")
            saved = time.time()


if __name__ == "__main__":
    main()
