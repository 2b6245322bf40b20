#!/usr/bin/env python3
"""Runs keyhole for the papers' figures and tables and writes the page of this evidence.

    tests/bench/papers.py --keyhole build/release/keyhole --work /tmp/papers
    tests/bench/papers.py --keyhole build/release/keyhole --work /tmp/papers --only tova-3,a2sf-4
    tests/bench/papers.py --keyhole build/release/keyhole --page

Answers stay in the work folder, so that a second run only computes what is missing. Every result goes to
tests/bench/results/papers/data: figure.json of a figure, with what its verdict was decided on, or bench.json
of a table, and about.json with command and commit. One picture of each figure goes beside the page. The page
is made from data alone. A test decides all of it anew: when the rule changes, run that test with
KEYHOLE_PAPERS=write (`keyhole_app_tests --gtest_filter='PapersPage.EveryVerdict*'`), and this with --page.
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
# Where a few samples decide nothing and more would: as many as decide it, if that does not take hours.
DECIDES = {("keyhole-base", "keyformer-12"): 34, ("keyhole-base", "keyformer-16"): 28,
           ("keyhole-base", "keyformer-table3"): 60, ("keyhole-base", "tova-table3"): 32,
           (REAL, "keyformer-5"): 14, (REAL, "keyformer-13"): 18, (REAL, "keyformer-16"): 12,
           (REAL, "keyformer-table3"): 36, (REAL, "keyformer-table4"): 60, (REAL, "tova-3"): 18,
           (REAL, "tova-table3"): 16, (REAL, "a2sf-3"): 60, (REAL, "keyformer-7"): 64,
           (REAL, "a2sf-table1"): 40, (REAL, "keyformer-table2"): 100}
# The papers' batches and contexts, with one layer of the 7B models, since all would take hours.
SPEEDS = {"keyformer-1": "keyformer-figure10 --layers 1", "keyformer-9": "keyformer-table1 --layers 1",
          "keyformer-table1": "keyformer-table1 --layers 1", "keyformer-10": "keyformer-figure10 --layers 1",
          "tova-table1": "tova-table1 --layers 1", "mlkv-3": "mlkv-figure3", "mlkv-5": "mlkv-figure5"}
TO_COMPARE = "Compare the table with the paper's column; the program decides nothing here."
DATA_OUT = OUT / "data"
WORDS = {"Holds here": "holds", "Does not hold here": "fails", "Holds in part here": "mixed",
         "Cannot be decided here": "open", "Too few samples": "few", "Measured here": "measured",
         "Cannot be seen on this model": "unseen"}
VERDICT = re.compile(f"({'|'.join(WORDS)}): ")


def jobs():
    """Yields a figure's name, the model, and the command without its folder."""
    def figure(name, model, options):
        chosen = f"--model {model} " if model == REAL else ""
        return name, model, f"figure {name} {chosen}{options}".strip()

    def samples(model, name, usual):
        return f"--samples {DECIDES.get((model, name), usual)}"

    for name in RUNS:
        yield figure(name, "keyhole-base", "")
        yield figure(name, REAL, "")
    for name in ANSWERS:
        yield figure(name, "keyhole-base", f"{samples('keyhole-base', name, 50)} --context 512")
        yield figure(name, REAL, f"--ask statement {samples(REAL, name, 12)} --context 512")
    for name in TEXTS:
        yield figure(name, "keyhole-base", f"{NARRATIVE} {samples('keyhole-base', name, 8)}")
        yield figure(name, REAL, f"{NARRATIVE} {samples(REAL, name, 3)} --context 512")
    for name, options in DATA.items():
        yield figure(name, REAL, options)
    yield figure("keyformer-8", "keyhole-base", "--context 1024 --samples 20")
    yield figure("tova-7", "keyhole-base", f"{NARRATIVE} --samples 6 --context 2048 --prefill 64")
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
        # The page decides by the figures' own lanes alone.
        arguments += ["--width", "720", "--bounds", "0", "--out", str(folder)]
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


def bench_of(text, table):
    """Returns what `bench` printed as data: the numbers that a verdict is decided on, and the verdict."""
    number = r"([\d.]+)"
    line = re.compile(rf"(.+?) {{2,}}(.+?) {{2,}}{number} +{number} +{number} +{number} +\d+% +{number} "
                      rf"\({number}\)(?: +(\d+) lanes in 12 GB)?$")
    parts = re.compile(rf".+? {{2,}}{number} +{number} +{number} +{number} +{number}$")
    groups = []
    for row in text.splitlines():
        if "tokens/s" in row and "ms/step" in row:
            groups.append({"title": row.split("  ")[0], "lines": [], "verdict": "none", "why": ""})
            timed = 0
        elif found := line.match(row):
            groups[-1]["lines"].append({
                "label": found[1], "printed": found[2], "tokens_per_s": float(found[3]),
                "ms_per_step": float(found[4]), "by_bytes": float(found[8]), "attention_ms": 0,
                "lanes_in_12_gb": int(found[9] or 0)})
        elif groups and (found := parts.match(row)):
            groups[-1]["lines"][timed]["attention_ms"] = float(found[2])
            timed += 1
        elif VERDICT.match(row):
            label, _, groups[-1]["why"] = row.partition(": ")
            groups[-1]["verdict"] = WORDS[label]
    return {"table": table, "groups": groups}


def slug(name, model, command):
    return re.sub(r"[^\w.]+", "-", name if command.startswith("bench")
                  else f"{name} {model}{' data' if '--data' in command else ''}")


def keep(name, model, command, text, folder, commit):
    """Keeps a result beside the page."""
    kept = DATA_OUT / slug(name, model, command)
    kept.mkdir(parents=True, exist_ok=True)
    about = {"figure": name, "model": model, "command": command, "commit": commit,
             "date": time.strftime("%Y-%m-%d")}
    if command.startswith("bench"):
        about["printed"] = table_of(text)
        (kept / "bench.json").write_text(json.dumps(bench_of(text, command.split()[2]), indent=1) + "\n")
    else:
        record = json.loads((folder / "figure.json").read_text())
        # One line a comparison.
        written = re.sub(r"\[[\s\d.,e+-]+\]", lambda gains: re.sub(r"\s+", " ", gains[0]),
                         json.dumps(record, indent=1))
        (kept / "figure.json").write_text(written + "\n")
    (kept / "about.json").write_text(json.dumps(about, indent=1) + "\n")


def said_of(kept):
    """Returns the sentences on the findings, with the task where there are several."""
    if (kept / "bench.json").exists():
        found = json.loads((kept / "bench.json").read_text())["groups"]
    else:
        found = json.loads((kept / "figure.json").read_text())["findings"]
    labels = {word: label for label, word in WORDS.items()}
    verdicts = [(f"{one['task']}: " if len(found) > 1 and "task" in one else "")
                + f"{labels[one['verdict']]}: {one['why']}" for one in found if one["verdict"] != "none"]
    return " ".join(dict.fromkeys(verdicts)) or TO_COMPARE


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


def job_of_picture(of_figure, seen_on):
    """Returns the job whose picture stands for a figure: that of the model that the finding needs."""
    return next((job for job in of_figure if job[1] == REAL and "sink" in seen_on), of_figure[0])


def copy_pictures(job, of_figure, seen_on, folder):
    name, _, command = job
    wanted = {job_of_picture(of_figure, seen_on): f"{name}.png"}
    for other in of_figure:
        if "--data" in other[2]:
            wanted[other] = f"{name}-data.png"
    if job in wanted and not command.startswith("bench"):
        for picture in pictures_of(folder, name)[:1]:
            shutil.copyfile(picture, OUT / wanted[job])


def builds_text():
    """Returns which builds the results on the page are of."""
    made = [json.loads(file.read_text()) for file in sorted(DATA_OUT.glob("*/about.json"))]
    counts = {}
    for one in made:
        counts.setdefault(one["commit"][:7], []).append(one["date"])
    newest = max(counts, key=lambda commit: (max(counts[commit]), len(counts[commit])))
    others = ", ".join(f"{len(dates)} of {commit}" for commit, dates in
                       sorted(counts.items(), key=lambda item: -len(item[1])) if commit != newest)
    return (f"Of {len(made)} results, {len(counts[newest])} are of commit {newest}"
            + (f"; {others}." if others else "."))


def page_of(about):
    """Returns the page, made from what is kept."""
    page = []
    for name, entry in about.items():
        page.append(f"## {name}: {entry['shows']}\n")
        page.append(wrapped(f"Paper: {entry['paper'].partition(': ')[2]}"
                            + (f" Its numbers: {entry['printed']}." if "printed" in entry else "")) + "\n")
        of_figure = [job for job in jobs() if job[0] == name]
        results = [(job, DATA_OUT / slug(*job)) for job in of_figure]
        results = [(job, kept) for job, kept in results if (kept / "about.json").exists()]
        if not results:
            page.append(f"Not run here ({entry['seen'].removeprefix('on').strip()}):\n\n"
                        f"{shown(entry['command'].rpartition('   (')[0])}\n")
            continue
        for (_, model, _), kept in results:
            made = json.loads((kept / "about.json").read_text())
            out = "" if made["command"].startswith("bench") else " --out OUT"
            page.append(wrapped(f"**{model}**: {said_of(kept)}")
                        + f"\n\n{shown('keyhole ' + made['command'] + out)}\n")
            page.append(f"Measured on {made['date']}, commit {made['commit']}.\n")
            if "printed" in made:
                page.append(made["printed"])
        best = job_of_picture(of_figure, entry["seen"])
        for job, picture in ((best, f"{name}.png"), (of_figure[-1], f"{name}-data.png")):
            if (OUT / picture).exists() and (DATA_OUT / slug(*job) / "about.json").exists():
                page.append(f"![{name} on {job[1]}]({picture})\n")
    head = ["# The papers' figures and tables, here\n",
            wrapped("Made by `tests/bench/papers.py`, on x86_64 and the CPU backend, from the results in "
                    "[`data`](data). The picture is that of the model that the paper's finding needs, where "
                    "it was run. Sentences are computed by the program from the numbers of the run, by one "
                    "rule for both directions and corrected for the number of comparisons "
                    "([manual](../../../../assets/manual/figures.md)); a test decides each of them anew from "
                    "`data`. Samples are few: more are an option of each command, and what is not decided "
                    "says how many would decide it in four of five cases. Below a picture stands "
                    "what it confounds, and which task is a stand-in. Speeds are of this machine's CPU, of "
                    "as many layers as the table says; the papers' are of a GPU. " + builds_text())
            + "\n"]
    return "\n".join(head + page).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keyhole", required=True)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--limit", type=float, default=600, help="seconds of a figure")
    parser.add_argument("--only", default="", help="figures, or figure:model, comma between")
    parser.add_argument("--page", action="store_true", help="write the page alone, and run nothing")
    options = parser.parse_args()
    if not options.page and options.work is None:
        parser.error("--work FOLDER is needed for the answers")
    OUT.mkdir(parents=True, exist_ok=True)
    about = about_figures(options.keyhole)
    only = [name for name in options.only.split(",") if name]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True,
                            text=True).stdout.strip()
    for job in [] if options.page else list(jobs()):
        name, model, command = job
        if only and name not in only and f"{name}:{model}" not in only:
            continue
        result = run(options.keyhole, options.work, name, model, command, options.limit)
        print(name, model, "not within the limit" if result is None else f"{result[2]:.0f} s", flush=True)
        if result is None:
            continue
        keep(name, model, command, result[1], result[3], commit)
        copy_pictures(job, [other for other in jobs() if other[0] == name], about[name]["seen"], result[3])
    (OUT / "README.md").write_text(page_of(about))


if __name__ == "__main__":
    main()
