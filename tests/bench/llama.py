#!/usr/bin/env python3
"""Times Keyhole beside llama.cpp on the same GGUF file, round by round in turn, and prints ratios of medians
to the fastest of the others: llama.cpp without and with flash attention, and ik_llama.cpp where it is named.

    tests/bench/llama.py --keyhole build/release/keyhole --model FILE.gguf
    tests/bench/llama.py ... --llama "chroot DIR llama-bench" --llama-model /in/DIR/FILE.gguf
    tests/bench/llama.py ... --ik BUILD/bin/llama-bench --depths 0 2048 8192

Debian unstable has llama-bench in the package llama.cpp; ik_llama.cpp is built by hand. All use --threads.
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
    parser.add_argument("--ik", help="the command of ik_llama.cpp's llama-bench")
    parser.add_argument("--ik-model", help="the file as that command names it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 4096])
    parser.add_argument("--depths", type=int, nargs="*", default=[0, 2048])
    parser.add_argument("--tokens", type=int, default=48, help="decoded at each depth")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.shape and not args.llama_model:
        parser.error("--shape needs --llama-model")
    weights = ["--shape", args.shape] if args.shape else ["--model", args.model]

    def rival(name, command, model, flash, is_prompt, n):
        if is_prompt:
            what = ["-p", n, "-n", 0]
        elif name.startswith("ik"):  # has no -d; -gp times the tokens that follow a prompt
            what = ["-p", 0, "-n", 0, "-gp", f"{n},{args.tokens}"]
        else:
            what = ["-p", 0, "-n", args.tokens, "-d", n]
        return output([*shlex.split(command), "-m", model or args.model, "-t", str(args.threads), "-ngl", "0",
                       "-r", "1", "-fa", flash, "-o", "json", *map(str, what)])[-1]["avg_ts"]

    rivals = [("llama.cpp", args.llama, args.llama_model, "0"),
              ("with -fa", args.llama, args.llama_model, "1")]
    if args.ik:
        rivals += [("ik", args.ik, args.ik_model, "0"), ("ik -fa", args.ik, args.ik_model, "1")]

    def keyhole(is_prompt, n):
        what = ["--context", max(n, 1), "--tokens", args.tokens]
        if is_prompt:
            what = ["--prompt", "--context", n]
        command = [args.keyhole, "bench", *weights, "--threads", str(args.threads), "--backend", "cpu",
                   "--rounds", "1", "--lane", "full", "--json", *map(str, what)]
        return output(command)["lanes"][0]["tokens_per_s"]

    cases = [(f"prompt of {n}", True, n) for n in args.prompts]
    cases += [(f"decode at depth {n}", False, n) for n in args.depths]
    print(f"{'tokens/s, medians of ' + str(args.rounds) + ' rounds':<34}"
          + "".join(f" {name:>10}" for name, *_ in rivals) + f" {'Keyhole':>10} {'ratio':>7}   rounds")
    for case, *what in cases:
        rounds = [([rival(*one, *what) for one in rivals], keyhole(*what)) for _ in range(args.rounds)]
        theirs = [statistics.median(each) for each in zip(*(values for values, _ in rounds))]
        best = theirs.index(max(theirs))
        ours = statistics.median(value for _, value in rounds)
        print(f"{case:<34}" + "".join(f" {value:>10.1f}" for value in theirs)
              + f" {ours:>10.1f} {ours / theirs[best]:>7.2f}   "
              + ", ".join(f"{value / values[best]:.2f}" for values, value in rounds), flush=True)


if __name__ == "__main__":
    main()
