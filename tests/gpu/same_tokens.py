#!/usr/bin/env python3
"""Decodes a prompt on the CPU and on CUDA, and counts decisions about kept tokens that differ.

A decision is one token of one KV head that is stored before a row's eviction. Both runs compute in floats, or
as --precision says. A lane is compared up to the first row for which the two texts differ. Fails if a
decision or a token differs. Needs numpy.

    tests/gpu/same_tokens.py KEYHOLE --model MODEL --prompt-file FILE --tokens 200 --lane h2o:budget=64 ...
"""
import json
import subprocess
import sys
import tempfile
import time

import numpy as np


def decode(keyhole, backend, options, folder):
    path = f"{folder}/{backend}.keyhole"
    begin = time.time()
    precision = [] if "--precision" in options else ["--precision", "float"]
    status = subprocess.run([keyhole, "decode", "--backend", backend, *precision, "--ignore-eos", *options,
                             "--save", path], stdout=subprocess.DEVNULL).returncode
    if status != 0:
        sys.exit(f"same_tokens: the run on {backend} failed with status {status}; keyhole says why above")
    seconds = time.time() - begin
    trace = np.load(path)
    return trace, json.loads(trace["run.json"]), seconds


def tokens(run, lane):
    return [of_lane["token"] for step in run["steps"] for of_lane in step["lanes"] if of_lane["lane"] == lane]


def equal_rows(left, right):
    for row, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return row
    return min(len(left), len(right))


def decisions(gone, other, rows):
    """Of the given rows: how many there are, and how many differ."""
    count = differ = 0
    for row in rows:
        of_row = slice(0, row + 1)
        stored = (gone[:, of_row] < 0) | (gone[:, of_row] >= row)
        left = (gone[:, of_row] < 0) | (gone[:, of_row] > row)
        right = (other[:, of_row] < 0) | (other[:, of_row] > row)
        count += int(stored.sum())
        differ += int((left != right).sum())
    return count, differ


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    keyhole, options = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        cpu, cpu_run, cpu_seconds = decode(keyhole, "cpu", options, folder)
        cuda, cuda_run, cuda_seconds = decode(keyhole, "cuda", options, folder)
    all_count = all_differ = all_tokens = 0
    for lane in cpu_run["lane_settings"]:
        name = f"lane{lane['id']}"
        left, right = tokens(cpu_run, lane["id"]), tokens(cuda_run, lane["id"])
        same = equal_rows(left, right)
        first = cpu_run["steps"][0]["row"]
        count, differ = decisions(cpu[f"{name}/evicted_at"], cuda[f"{name}/evicted_at"],
                                  range(first, first + same))
        print(f"{lane['spec']}: {same} of {len(left)} tokens are the same; {differ} of {count:,} decisions "
              "differ")
        all_count, all_differ = all_count + count, all_differ + differ
        all_tokens += len(left) - same
    print(f"in all {all_differ} of {all_count:,} decisions differ; with the reading of the model the CPU "
          f"took {cpu_seconds:.1f} s and CUDA {cuda_seconds:.1f} s")
    sys.exit(1 if all_differ or all_tokens else 0)


main()
