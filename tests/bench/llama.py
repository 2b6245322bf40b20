#!/usr/bin/env python3
"""Times Keyhole beside llama.cpp on the same GGUF file, round by round in turn, and prints ratios of medians.

    tests/bench/llama.py --keyhole build/release/keyhole --model FILE.gguf
    tests/bench/llama.py ... --llama "chroot DIR llama-bench" --llama-model /in/DIR/FILE.gguf

Debian unstable has llama-bench in the package llama.cpp. Both use all cores that --threads names.
"""
import argparse
import json
import shlex
import statistics
import subprocess


def output(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"llama.py: {shlex.join(command)} failed: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keyhole", required=True)
    of_what = parser.add_mutually_exclusive_group(required=True)
    of_what.add_argument("--model", help="a GGUF file")
    of_what.add_argument("--shape", help="random f16 weights of this shape; needs --llama-model of the same")
    parser.add_argument("--llama", default="llama-bench", help="the command of llama-bench")
    parser.add_argument("--llama-model", help="the same file as that command names it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 4096])
    parser.add_argument("--depths", type=int, nargs="*", default=[0, 2048])
    parser.add_argument("--tokens", type=int, default=48, help="decoded at each depth")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.shape and not args.llama_model:
        parser.error("--shape needs --llama-model")
    weights = ["--shape", args.shape] if args.shape else ["--model", args.model]

    def llama(*what):
        command = [*shlex.split(args.llama), "-m", args.llama_model or args.model, "-t", str(args.threads),
                   "-ngl", "0", "-r", "1", "-o", "json", *map(str, what)]
        return output(command)[-1]["avg_ts"]

    def keyhole(*what):
        command = [args.keyhole, "bench", *weights, "--threads", str(args.threads), "--backend", "cpu",
                   "--rounds", "1", "--lane", "full", "--json", *map(str, what)]
        return output(command)["lanes"][0]["tokens_per_s"]

    pairs = [(f"prompt of {n}", ("-p", n, "-n", 0), ("--prompt", "--context", n)) for n in args.prompts]
    pairs += [(f"decode at depth {d}", ("-p", 0, "-n", args.tokens, "-d", d),
               ("--context", max(d, 1), "--tokens", args.tokens)) for d in args.depths]
    print(f"{'tokens/s, medians of ' + str(args.rounds) + ' rounds':<34} {'llama.cpp':>10} {'Keyhole':>10} "
          f"{'ratio':>7}   rounds")
    for name, of_llama, of_keyhole in pairs:
        both = [(llama(*of_llama), keyhole(*of_keyhole)) for _ in range(args.rounds)]
        a, b = (statistics.median(values) for values in zip(*both))
        rounds = ", ".join(f"{y / x:.2f}" for x, y in both)
        print(f"{name:<34} {a:>10.1f} {b:>10.1f} {b / a:>7.2f}   {rounds}", flush=True)


if __name__ == "__main__":
    main()
