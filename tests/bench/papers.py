#!/usr/bin/env python3
"""Runs keyhole for the papers' figures and tables and writes the page of this evidence.

    tests/bench/papers.py --keyhole build/release/keyhole --work /tmp/papers

Answers stay in the work folder, so that a second run only computes what is missing. The page and one picture
of each figure go to tests/bench/results/papers.
"""
import argparse
import itertools
import json
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
RUNS = ["keyformer-3a", "keyformer-3b", "keyformer-4", "keyformer-11", "keyformer-eq8", "keyformer-14",
        "keyformer-15", "a2sf-1", "a2sf-2", "a2sf-4", "a2sf-6", "a2sf-table2", "tova-8", "tova-9", "tova-12",
        "tova-table2"]
ANSWERS = ["keyformer-3c", "keyformer-7", "keyformer-table2", "a2sf-3", "a2sf-5", "a2sf-table1", "tova-4",
           "tova-5", "tova-10", "tova-11"]
TEXTS = ["keyformer-5", "keyformer-12", "keyformer-13", "keyformer-16", "keyformer-table3",
         "keyformer-table4", "tova-3", "tova-table3"]
REAL = "smollm2-135m"
SUMMARIES = "assets/tasks/data/short-summaries.jsonl"
QUESTIONS = "assets/tasks/data/tale-questions.jsonl"
SUMMARY_TASK = f"--data {SUMMARIES} --few-shot {SUMMARIES} --shots 2 --answer-tokens 24 --samples 12"
DATA = {"keyformer-7": SUMMARY_TASK, "tova-4": SUMMARY_TASK,
        "tova-5": f"--data {QUESTIONS} --few-shot {QUESTIONS} --shots 2 --answer-tokens 12 --samples 20"}
# The papers' batches and contexts, with one layer of the 7B models, since all would take hours.
SPEEDS = {"keyformer-1": "keyformer-figure10 --layers 1", "keyformer-9": "keyformer-table1 --layers 1",
          "keyformer-table1": "keyformer-table1 --layers 1", "keyformer-10": "keyformer-figure10 --layers 1",
          "tova-table1": "tova-table1 --layers 1", "mlkv-3": "mlkv-figure3", "mlkv-5": "mlkv-figure5"}
TO_COMPARE = "Compare the table with the paper's column; the program decides nothing here."
VERDICT = re.compile(r"(Holds|Does not hold|Cannot be) ")


def jobs():
    """Yields a figure's name, the model, and the command without its folder."""
    def figure(name, model, options):
        chosen = f"--model {model} " if model == REAL else ""
        return name, model, f"figure {name} {chosen}{options}".strip()

    for name in RUNS:
        yield figure(name, "keyhole-base", "")
        yield figure(name, REAL, "")
    for name in ANSWERS:
        yield figure(name, "keyhole-base", "--samples 50 --context 512")
        yield figure(name, REAL, "--ask statement --samples 12 --context 512")
    for name in TEXTS:
        yield figure(name, "keyhole-base", f"{NARRATIVE} --samples 4")
        yield figure(name, REAL, f"{NARRATIVE} --samples 3 --context 512")
    for name, options in DATA.items():
        yield figure(name, REAL, options)
    yield figure("keyformer-8", "keyhole-base", "--context 1024 --samples 20")
    yield figure("tova-7", "keyhole-base", f"{NARRATIVE} --samples 1 --context 2048 --prefill 64")
    for name in ("mlkv-4", "mlkv-table3"):
        yield figure(name, "the shipped family", f"{FAMILY} --context 300 --samples 50")
    for name, options in SPEEDS.items():
        yield name, "random weights of the paper's shape", f"bench --paper {options}"


def pictures_of(folder, name):
    stems = (name, "needle-memory" if name.startswith("mlkv") else "needle", "text", "fact", "passage")
    record = folder / "figure.json"
    if record.exists():
        stems = (json.loads(record.read_text())["findings"][0]["picture"],)
    found = [folder / f"{stem}.png" for stem in stems if (folder / f"{stem}.png").exists()][:1]
    return found or sorted(folder.glob("**/*.png"))


def run(keyhole, work, name, model, command, limit):
    """Returns the command, what it printed, its seconds, and the folder; None if it took too long.

    What the same program already printed for the same command is taken from there.
    """
    own = " data" if "--data" in command else ""
    folder = work / re.sub(r"[^\w.]+", "-",
                           command if command.startswith("bench") else f"{name} {model}{own}")
    printed = folder / "printed.txt"
    asked = folder / "command.txt"
    newer = printed.exists() and printed.stat().st_mtime > pathlib.Path(keyhole).stat().st_mtime
    if newer and asked.exists() and asked.read_text() == command:
        return command, printed.read_text(), 0, folder
    arguments = command.split()
    if not command.startswith("bench"):
        arguments += ["--width", "720", "--out", str(folder)]
    begin = time.time()
    try:
        done = subprocess.run([keyhole, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        raise SystemExit(f"{command}: {done.stderr}")
    folder.mkdir(parents=True, exist_ok=True)
    printed.write_text(done.stdout)
    asked.write_text(command)
    return command, done.stdout, time.time() - begin, folder


def sentences(folder):
    """Returns whether the paper's findings hold, with the task where there are several."""
    record = folder / "figure.json"
    found = json.loads(record.read_text())["findings"] if record.exists() else []
    verdicts = []
    for finding in found:
        task = f"{finding['task']}: " if len(found) > 1 else ""
        verdicts += [task + line for line in finding["sentences"] if VERDICT.match(line)]
    return list(dict.fromkeys(verdicts))


def said_of(text, folder):
    """Returns the sentences on the findings: those of a figure's record, or those that `bench` printed."""
    printed = [line for line in text.splitlines() if VERDICT.match(line)]
    return " ".join(sentences(folder) or printed) or TO_COMPARE


def wrapped(text):
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


def shown(command):
    """Returns a command as a block of a page, in lines that end with a backslash."""
    return textwrap.fill(command, 104, initial_indent="    ", subsequent_indent="        ",
                         break_long_words=False, break_on_hyphens=False).replace("\n", " \\\n")


def table_of(text):
    """Returns what `bench` printed as prose and tables, without the lines on each model."""
    text = text.replace("share x first", "share  x first").replace("linear attention", "linear  attention")
    blocks = []
    lines = [line for line in text.splitlines() if "threads" not in line and not VERDICT.match(line)]
    for is_row, group in itertools.groupby(lines, key=lambda line: bool(re.search(r"\S {2,}\S", line))):
        if not is_row:
            blocks += [wrapped(line) for line in group if line.strip()]
            continue
        rows = [re.split(r" {2,}", line.rstrip()) for line in group]
        columns = max(len(row) for row in rows)
        rows = [row + [""] * (columns - len(row)) for row in rows]
        blocks.append("\n".join("| " + " | ".join(row) + " |"
                                for row in [rows[0], ["---"] + ["---:"] * (columns - 1), *rows[1:]]))
    return "\n\n".join(blocks) + "\n"


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


def sections_of_old_page():
    """Returns the sections of the present page by figure, with a line that says of which commit they are."""
    page = OUT / "README.md"
    if not page.exists():
        return {}
    head, *parts = re.split(r"^## ", page.read_text(), flags=re.M)
    made = " ".join(head.split())
    commit = re.search(r"on (\S+), commit (\w+)", made)
    kept = {}
    for part in parts:
        title, _, rest = part.partition("\n")
        if "\nNot run here" in part or not commit:
            continue
        if not rest.startswith("\nFrom commit"):
            rest = f"\nFrom commit {commit[2]}, {commit[1]}.\n{rest}"
        kept[title.partition(":")[0]] = f"## {title}\n{rest}".rstrip() + "\n"
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keyhole", required=True)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--limit", type=float, default=600, help="seconds of a figure")
    parser.add_argument("--without", default="",
                        help="figures:models that are left out, comma between; a figure that has no other "
                             "model keeps its section of the present page")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    about, done, old = about_figures(options.keyhole), {}, sections_of_old_page()
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
                    "of the run; intervals are 95 %, paired, and several pairs of lanes are compared without "
                    "a correction for their number. Samples are few: more are an option of each command. "
                    "Below a picture stands what it confounds, and which task is a stand-in. Speeds are of "
                    "this machine's CPU, of as many layers as the table says; the papers' are of a GPU. A "
                    "section that begins with \"From commit\" was not made anew.")
            + "\n"]
    for name, entry in about.items():
        page_begin = len(page)
        page.append(f"## {name}: {entry['shows']}\n")
        page.append(wrapped(f"Paper: {entry['paper'].partition(': ')[2]}"
                            + (f" Its numbers: {entry['printed']}." if "printed" in entry else "")) + "\n")
        runs = done.get(name, [])
        if not runs and name in old:
            page[page_begin:] = [old[name]]
            continue
        if not runs:
            page.append(f"Not run here ({entry['seen'].removeprefix('on').strip()}):\n\n"
                        f"{shown(entry['command'].rpartition('   (')[0])}\n")
            continue
        for model, command, text, _, folder in runs:
            said = said_of(text, folder)
            out = "" if command.startswith("bench") else " --out OUT"
            page.append(wrapped(f"**{model}**: {said}") + f"\n\n{shown(f'keyhole {command}{out}')}\n")
            if command.startswith("bench"):
                page.append(table_of(text))
        best = next((r for r in runs if r[0] == REAL and "sink" in entry["seen"]), runs[0])
        own = next((r for r in runs if "--data" in r[1]), best)
        for model, _, _, _, folder in [best] + ([own] if own is not best else []):
            for picture in pictures_of(folder, name):
                kept = f"{name}.png" if folder == best[4] else f"{name}-data.png"
                shutil.copyfile(picture, OUT / kept)
                page.append(f"![{name} on {model}]({kept})\n")
    (OUT / "README.md").write_text("\n".join(page).rstrip() + "\n")


if __name__ == "__main__":
    main()
