#!/usr/bin/env python3
"""Makes seeds of fuzz_trace from a trace file, or of fuzz_spool from the frames of a spool. A seed is a list
of members.

    keyhole decode --model tests/fixtures/llama_mha --prompt "abc def" --lane full \\
        --lane h2o:budget=4,shadow=on --lane dilated:budget=3 --tokens 3 --save run.keyhole
    python make_trace_seed.py run.keyhole seeds/trace

A spool exists while a run goes on. For a spool run with --tokens 2000 and kill the program (SIGKILL) on the
way; the script takes three frames of it.

    python make_trace_seed.py run.keyhole.spool/frames.bin seeds/spool

The vocabulary is cut to a few tokens, all ids are reduced to it, and the model's path is replaced. `run` is a
valid seed. The others (case_...) are invalid: one for each fault that has ended the program.
"""

import copy
import json
import pathlib
import sys
import zipfile

N_VOCAB = 8


def with_small_vocabulary(run):
    def cut(ids):
        return [i % N_VOCAB for i in ids]

    if "run" in run:
        about = run["run"]
        about["token_display"] = [f"w{i}" for i in range(N_VOCAB)]
        about["token_bytes"] = [f"{97 + i:02x}" for i in range(N_VOCAB)]
        about["config"]["n_vocab"] = N_VOCAB
        about["prompt_tokens"] = cut(about["prompt_tokens"])
        about["start"]["forced"] = cut(about["start"]["forced"])
        about["model"]["path"] = "tests/fixtures/llama_mha"  # independent of where it was made
    for step in run["steps"]:
        for lane in step["lanes"]:
            lane["token"] %= N_VOCAB
            lane["predicted"] %= N_VOCAB
            lane["top"] = [[i % N_VOCAB, p] for i, p in lane["top"]][:3]
    return run


def text_of(run):
    return json.dumps(run, separators=(",", ":")).encode()


def write(path, members):
    with path.open("wb") as out:
        for name, data in members:
            out.write(f"{name}\n{len(data)}\n".encode() + data)


def cases(run):
    """Yields changed runs that have ended the program or exhausted its memory."""
    lane = lambda r: r["steps"][-1]["lanes"][0]
    changes = {
        "token_5000": lambda r: lane(r).update(token=5000),
        "token_5e8": lambda r: lane(r).update(token=500000000),
        "predicted_2_30": lambda r: lane(r).update(predicted=1 << 30),
        "top": lambda r: lane(r).update(top=[[-1, -1.0]]),
        "no_steps": lambda r: r.update(steps=[]),
        "no_lanes": lambda r: [step.update(lanes=[]) for step in r["steps"]],
        "no_display": lambda r: "run" in r and r["run"].update(token_display=[]),
        "no_bytes": lambda r: "run" in r and r["run"].update(token_bytes=[]),
        "lane_settings": lambda r: r.update(lane_settings=r["lane_settings"] * 20),
        "no_format": lambda r: r.pop("format"),
        "effective": lambda r: [settings.update(effective="evict 0 2") for settings in r["lane_settings"]],
    }
    if "run" in run:
        changes["heads"] = lambda r: r["run"]["config"].update(
            n_layers=1, n_kv_layers=1, n_heads=65536, n_kv_heads=65536)
    for name, change in changes.items():
        changed = copy.deepcopy(run)
        change(changed)
        yield f"case_{name}", changed


def trace_seeds(path, folder):
    with zipfile.ZipFile(path) as trace:
        members = [(name, trace.read(name)) for name in trace.namelist()]
    run = with_small_vocabulary(json.loads(dict(members)["run.json"]))
    arrays = [(name, data) for name, data in members if name != "run.json"]
    write(folder / "run", [("run.json", text_of(run)), *arrays])
    for name, changed in cases(run):
        write(folder / name, [("run.json", text_of(changed)), *arrays[:2]])
    with zipfile.ZipFile(folder / "case_bomb", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as bomb:
        bomb.writestr(zipfile.ZipInfo("run.json"), '{"x":[' + "[]," * 3_000_000 + "0]}", zipfile.ZIP_DEFLATED)


def spool_seeds(path, folder):
    rest, frames = path.read_bytes(), []
    while len(frames) < 3:
        length = int.from_bytes(rest[8:16], "little")
        payload, rest = rest[24 : 24 + length], rest[24 + length :]
        n_text = int.from_bytes(payload[:8], "little")
        frames.append((with_small_vocabulary(json.loads(payload[8 : 8 + n_text])), payload[8 + n_text :]))

    def member(i, run, arrays):
        return f"frame{i}", len(text_of(run)).to_bytes(8, "little") + text_of(run) + arrays

    write(folder / "run", [member(i, *frame) for i, frame in enumerate(frames)])
    for name, changed in cases(frames[0][0]):
        write(folder / name, [member(0, changed, frames[0][1])])


source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
if zipfile.is_zipfile(source):
    trace_seeds(source, target)
else:
    spool_seeds(source, target)
