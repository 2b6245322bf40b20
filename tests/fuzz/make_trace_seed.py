#!/usr/bin/env python3
"""Makes a seed of fuzz_trace from a trace file, or of fuzz_spool from the frames of a spool: members one after the other.

    keyhole decode --model tests/fixtures/llama_mha --prompt "abc def" --lane full --lane h2o:budget=4,shadow=on \\
        --lane dilated:budget=3 --tokens 3 --save run.keyhole
    python make_trace_seed.py run.keyhole seeds/trace/run

A spool is there while a run goes on: with --tokens 2000, killed (SIGKILL) on the way, of which three frames are taken.

    python make_trace_seed.py run.keyhole.spool/frames.bin seeds/spool/run

The vocabulary goes, which nothing in a trace points into, and the model's path.
"""

import json
import pathlib
import sys
import zipfile


def without_vocabulary(text):
    run = json.loads(text)
    for key in ("token_display", "token_bytes"):
        if key in run.get("run", {}):
            run["run"][key] = run["run"][key][:3]
    if "model" in run.get("run", {}):
        run["run"]["model"]["path"] = "tests/fixtures/llama_mha"  # wherever it was made
    return json.dumps(run, separators=(",", ":")).encode()


def members_of_trace(path):
    with zipfile.ZipFile(path) as trace:
        for name in trace.namelist():
            data = trace.read(name)
            yield name, without_vocabulary(data) if name == "run.json" else data


def members_of_frames(path, n_frames):
    rest = pathlib.Path(path).read_bytes()
    for i in range(n_frames):
        length = int.from_bytes(rest[8:16], "little")
        payload, rest = rest[24 : 24 + length], rest[24 + length :]
        n_text = int.from_bytes(payload[:8], "little")
        text = without_vocabulary(payload[8 : 8 + n_text])
        yield f"frame{i}", len(text).to_bytes(8, "little") + text + payload[8 + n_text :]


members = members_of_trace(sys.argv[1]) if zipfile.is_zipfile(sys.argv[1]) else members_of_frames(sys.argv[1], 3)
with pathlib.Path(sys.argv[2]).open("wb") as out:
    for name, data in members:
        out.write(f"{name}\n{len(data)}\n".encode() + data)
