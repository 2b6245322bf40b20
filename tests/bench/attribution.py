#!/usr/bin/env python3
"""Times `keyhole attribute` against plain decoding of the same questions.

    tests/bench/attribution.py --keyhole build/release/keyhole --model smollm2-135m

It asks each question with the full cache alone, and then with a lane for each part (--by), all beside each
other. The ratio is the time of an answer among many over that of an answer alone: below 1, sharing the pass
over the prompt saves time.
"""
import argparse
import json
import pathlib
import resource
import subprocess
import tempfile
import time


def timed(words):
    """Returns what a command printed, its seconds, and the processor's."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, time.monotonic() - begin, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keyhole", default="build/release/keyhole")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--by", default="query-head")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--lane", default="sink:budget=32")
    options = parser.parse_args()
    asks = ["--model", options.model, "--task", "needle", "--ask", "statement",
            "--samples", str(options.samples), "--context", str(options.context)]
    with tempfile.TemporaryDirectory() as folder:
        _, _, loading = timed([options.keyhole, "eval", *asks[:-3], "1", *asks[-2:], "--lane", "full"])
        _, plain, plain_cpu = timed([options.keyhole, "eval", *asks, "--lane", "full"])
        printed, all_lanes, cpu = timed([options.keyhole, "attribute", *asks, "--by", options.by, "--take",
                                         "--lane", options.lane, "--json",
                                         "--out", str(pathlib.Path(folder) / "out")])
    n_lanes = len(json.loads(printed)["parts"]) + 2
    one = (plain_cpu - loading) / max(1, options.samples - 1)  # seconds of the processor
    answer = cpu / (n_lanes * options.samples)
    print(f"{n_lanes} lanes of {options.samples} questions at {options.context} tokens: {all_lanes:.1f} s, "
          f"{cpu:.1f} s of the processor, {1000 * answer:.1f} ms an answer")
    print(f"full cache alone: {plain:.1f} s, {1000 * one:.1f} ms of the processor a question")
    print(f"ratio of an answer to plain decoding: {answer / one:.3f}")


if __name__ == "__main__":
    main()
