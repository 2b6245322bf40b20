#!/usr/bin/env python3
"""Runs `keyhole figure` for the papers' figures and writes the page of this evidence.

    tests/bench/papers.py --keyhole build/release/keyhole --work /tmp/papers

Answers stay in the work folder, so that a second run only computes what is missing. The page and one picture
of each figure go to tests/bench/results/papers.
"""
import argparse
import pathlib
import platform
import re
import shutil
import subprocess
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/bench/results/papers"
NARRATIVE = "--text assets/tasks/narrative.txt"
FAMILY = " ".join(f"--model assets/models/keyhole-{name}"
                  for name in ("base", "gqa2", "mqa", "mlkv-half", "mlkv2"))
RUNS = ["keyformer-3a", "keyformer-3b", "keyformer-4", "keyformer-11", "keyformer-eq8", "a2sf-1", "a2sf-2",
        "a2sf-4", "a2sf-6", "a2sf-table2", "tova-9", "tova-table2"]
ANSWERS = ["keyformer-3c", "keyformer-7", "keyformer-table2", "a2sf-3", "a2sf-5", "a2sf-table1", "tova-4",
           "tova-5"]
TEXTS = ["keyformer-5", "keyformer-12", "keyformer-13", "keyformer-16", "keyformer-table3",
         "keyformer-table4", "tova-3", "tova-table3"]
REAL = "smollm2-135m"


def jobs():
    for name in RUNS:
        yield name, "keyhole-base", ""
        yield name, REAL, ""
    for name in ANSWERS:
        yield name, "keyhole-base", "--samples 50 --context 512"
        yield name, REAL, "--ask statement --samples 12 --context 512"
    for name in TEXTS:
        yield name, "keyhole-base", f"{NARRATIVE} --samples 4"
        yield name, REAL, f"{NARRATIVE} --samples 3 --context 512"
    yield "keyformer-8", "keyhole-base", "--context 1024 --samples 20"
    yield "tova-7", "keyhole-base", f"{NARRATIVE} --samples 1 --context 2048 --prefill 64"
    for name in ("mlkv-4", "mlkv-table3"):
        yield name, "the shipped family", f"{FAMILY} --context 300 --samples 50"


def picture_of(folder, name, figure_is_memory):
    for stem in (name, "needle-memory" if figure_is_memory else "needle", "text", "fact", "passage"):
        if (folder / f"{stem}.png").exists():
            return folder / f"{stem}.png"
    return None


def run(keyhole, work, name, model, options, limit):
    """Returns the command, what it printed, and its seconds; None if it did not end within the limit."""
    folder = work / (f"{name}-" + model.replace(" ", "-"))
    chosen = f"--model {model} " if model == REAL else ""
    command = f"figure {name} {chosen}{options}".strip()
    begin = time.time()
    try:
        done = subprocess.run([keyhole, *command.split(), "--width", "720", "--out", str(folder)], cwd=ROOT,
                              capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        raise SystemExit(f"{command}: {done.stderr}")
    return command, done.stdout, time.time() - begin, folder


def sentences(text):
    """Returns the lines that say whether the finding holds, with the task where there are several."""
    task, found = "", []
    for line in text.splitlines():
        if match := re.match(r"(\w+): \d+ questions", line):
            task = match[1]
        if re.match(r"(Holds|Does not hold|Cannot be) ", line):
            found.append(f"{task}: {line}" if task else line)
    return list(dict.fromkeys(found))


def wrapped(text):
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


def shown(command):
    """Returns a command as a block of a page, in lines that end with a backslash."""
    return textwrap.fill(command, 104, initial_indent="    ", subsequent_indent="        ",
                         break_long_words=False, break_on_hyphens=False).replace("\n", " \\\n")


def about_figures(keyhole):
    text = subprocess.run([keyhole, "figure", "--list"], cwd=ROOT, capture_output=True, text=True).stdout
    about, name = {}, ""
    for line in text.splitlines():
        if not line.startswith(" "):
            name = line
            about[name] = {}
        else:
            key, _, value = line.strip().partition(" ")
            about[name][key] = value.strip()
    return about


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keyhole", required=True)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--limit", type=float, default=600, help="seconds of a figure")
    parser.add_argument("--without", default="", help="figures:models that are left out, comma between")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    about, done = about_figures(options.keyhole), {}
    left_out = options.without.split(",")
    for name, model, arguments in jobs():
        if f"{name}:{model}" in left_out:
            continue
        result = run(options.keyhole, options.work, name, model, arguments, options.limit)
        print(name, model, "not within the limit" if result is None else f"{result[2]:.0f} s", flush=True)
        if result is not None:
            done.setdefault(name, []).append((model, *result))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True,
                            text=True).stdout.strip()
    page = ["# The papers' figures and tables, here\n",
            wrapped(f"Made by `tests/bench/papers.py` on {time.strftime('%Y-%m-%d')}, commit {commit}, "
                    f"{platform.machine()}, CPU backend. The picture is that of the model that the paper's "
                    "finding needs, where it was run. Sentences are computed by the program from the numbers "
                    "of the run; intervals are 95 %, paired. Samples are few: more are an option of each "
                    "command. Below a picture stands what it confounds, and which task is a stand-in.")
            + "\n"]
    for name, entry in about.items():
        page.append(f"## {name}: {entry['shows']}\n")
        page.append(wrapped(f"Paper: {entry['paper'].partition(': ')[2]}"
                            + (f" Its numbers: {entry['printed']}." if "printed" in entry else "")) + "\n")
        runs = done.get(name, [])
        if not runs:
            page.append(f"Not run here ({entry['seen'].removeprefix('on').strip()}):\n\n"
                        f"{shown(entry['command'].rpartition('   (')[0])}\n")
            continue
        for model, command, text, seconds, _ in runs:
            said = " ".join(sentences(text)) or "No finding is decided."
            page.append(wrapped(f"**{model}**: {said}") + f"\n\n{shown(f'keyhole {command} --out OUT')}\n")
        best = next((r for r in runs if r[0] == REAL and "sink" in entry["seen"]), runs[0])
        if picture := picture_of(best[4], name, name.startswith("mlkv")):
            shutil.copyfile(picture, OUT / f"{name}.png")
            page.append(f"![{name} on {best[0]}]({name}.png)\n")
    (OUT / "README.md").write_text("\n".join(page).rstrip() + "\n")


if __name__ == "__main__":
    main()
