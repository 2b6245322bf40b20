#!/usr/bin/env python3
"""Makes a seed of fuzz_trace from a trace file: its members one after the other, without the zip.

    keyhole decode --model tests/fixtures/llama_mha --prompt "abc def" --lane full --lane h2o:budget=4,shadow=on \\
        --lane dilated:budget=3 --tokens 3 --save run.keyhole
    python make_trace_seed.py run.keyhole seeds/trace/run

The vocabulary goes, which nothing in a trace points into.
"""

import json
import pathlib
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as trace, pathlib.Path(sys.argv[2]).open("wb") as out:
    for name in trace.namelist():
        data = trace.read(name)
        if name == "run.json":
            run = json.loads(data)
            run["run"]["token_display"] = run["run"]["token_display"][:3]
            run["run"]["token_bytes"] = run["run"]["token_bytes"][:3]
            data = json.dumps(run, separators=(",", ":")).encode()
        out.write(f"{name}\n{len(data)}\n".encode() + data)
