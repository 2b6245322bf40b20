#!/usr/bin/env python3
"""The page of all presets with floor and ceiling: right answers and nats a token in recall tasks at four
budgets, each question asked of every lane, and one sentence for each preset.

    python3 tests/bench/field.py --out FOLDER [--keyhole build/release/keyhole] [--model smollm2-135m]
        [--task needle,needles] [--questions 200] [--context 384] [--budgets 32,64,128,256] [--seeds 3]
        [--minutes 10] [--page tests/bench/results/field.md]

Presets come from `keyhole presets --json`, so a new one needs no change here. Answers are kept in FOLDER and
the same command goes on there. --minutes ends the asking after that time; the page then says how many
questions all lanes have answered. Several machines take parts by --shard I/N with
folders of their own; `keyhole merge` joins the folders, and a last run there writes the page.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_A_LANE = {"full", "random", "oracle"}  # the reference, the floor and the ceiling stand beside all
SIZE_KEY = {"quest": "read"}  # what of a preset is so many tokens; of the others the budget


def spec_of(name, size):
    """Returns the lane of a preset at a size: Quest stores every token and reads so many."""
    return f"{name}:{SIZE_KEY.get(name, 'budget')}={size}"


def presets_of(keyhole):
    """Returns (name, title, group, help) of all presets that choose tokens, in the order of the groups."""
    listed = json.loads(subprocess.run([keyhole, "presets", "--json"], check=True, capture_output=True,
                                       text=True).stdout)
    kept = {one["preset"]: one for one in listed["kept"]["presets"]}
    return [(one["name"], one["title"] or one["name"], group["looks_at"], one["help"])
            for group in listed["groups"] for one in group["presets"]
            if one["name"] not in NOT_A_LANE and "why_not" not in kept.get(one["name"], {})]


def version_of(keyhole):
    return subprocess.run([keyhole, "--version"], check=True, capture_output=True, text=True).stdout.strip()


def command_of(args, lanes, samples):
    command = [args.keyhole, "eval", "--model", args.model, "--task", args.task, "--ask", "statement",
               "--context", str(args.context), "--samples", str(samples), "--bounds", str(args.seeds),
               "--out", str(args.out), "--lane", "full"]
    for lane in lanes:
        command += ["--lane", lane]
    return command + (["--shard", args.shard] if args.shard else [])


def ask(args, lanes, n):
    """Asks more and more questions until all are answered or the time is over. n: known. Returns how many all
    lanes have answered."""
    end = time.monotonic() + 60 * args.minutes
    while n < args.questions and time.monotonic() < end:
        more = min(args.questions, max(n + n // 2, n + 2))
        try:
            subprocess.run(command_of(args, lanes, more), check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:  # what was answered stays in the folder
            break
        n = more
    return n


def measured(args, lanes, samples):
    """Returns what `eval` says of the answers that are kept."""
    return json.loads(subprocess.run(command_of(args, lanes, samples) + ["--json"], check=True,
                                     capture_output=True, text=True).stdout)


def percent(value):
    return f"{100 * value:.0f}"


def verdicts_of(result):
    """Returns {(task, spec): (surely above, surely below, floor)} of all lanes with a budget."""
    return {(floor["questions"], lane["spec"]): (lane["surely_above_random"], lane["surely_below_random"],
                                                 floor["accuracy"])
            for floor in result["floors"] for lane in floor["lanes"]}


def cell_of(lane, verdict):
    sign = "" if verdict is None else "▲" if verdict[0] else "▼" if verdict[1] else ""
    low, high = (percent(x) for x in lane["accuracy_interval"])
    return f"{percent(lane['accuracy'])} ({low}..{high}){sign}"


def sentence_of(title, help_text, cells, task, budgets):
    """Says what a preset does, at which budgets it is surely above random, and how near it comes to full."""
    above = [str(b) for b in budgets if cells[task, b][1] and cells[task, b][1][0]]
    below = [str(b) for b in budgets if cells[task, b][1] and cells[task, b][1][1]]
    best = max(budgets, key=lambda b: cells[task, b][0]["accuracy"])
    said = (f"surely above random at {', '.join(above)} tokens" if above
            else "at no budget surely above random")
    if below:
        said += f" and surely below it at {', '.join(below)}"
    return (f"**{title}** is {said}; its best is {percent(cells[task, best][0]['accuracy'])} % at {best}. "
            f"{help_text}")


def page_of(args, presets, lanes, samples):
    result = measured(args, lanes, samples)
    tasks = args.task.split(",")
    budgets = args.budgets
    by = {(lane["task"], lane["spec"]): lane for lane in result["lanes"]}
    verdicts = verdicts_of(result)
    full = {task: by[task, "full"] for task in tasks}
    lines = [
        f"# All presets, between a floor and a ceiling: {pathlib.Path(args.model).stem}", "",
        f"Made by `tests/bench/field.py` from {samples} questions of each task, context {args.context} "
        f"tokens, asked by their statement; `eval --bounds {args.seeds}`. A cell has the right answers in "
        "per cent, with a 95 % interval; ▲ surely above random, ▼ surely below, by question, corrected "
        "for all lanes of the table. Quest keeps every token and reads so many. Lanes that evict once after "
        "the prompt have a floor that does so too. Answers are of keyhole "
        f"{version_of(args.keyhole)}.",
        ""]
    if samples < args.questions:
        lines += [f"{args.questions} questions are wanted. With {samples} some differences stay undecided: "
                  "no sign means only that.", ""]
    head = "| looks at | preset | " + " | ".join(f"{b}" for b in budgets) + " |"
    for task in tasks:
        lines += [f"## {task}", "", f"The full cache: {cell_of(full[task], None)}.", "", head,
                  "| --- | --- |" + " --- |" * len(budgets)]
        floors = {b: floor for floor in result["floors"] for b in budgets
                  if floor["questions"] == task and floor["spec"] == f"random:budget={b}"}
        lines.append("| nothing | random | " + " | ".join(
            f"{percent(floors[b]['accuracy'])} ({', '.join(percent(x) for x in floors[b]['interval'])})"
            if b in floors else "" for b in budgets) + " |")
        for name, _, group, _ in presets:
            specs = [spec_of(name, b) for b in budgets]
            lines.append(f"| {group} | {name} | " + " | ".join(
                cell_of(by[task, spec], verdicts.get((task, spec))) for spec in specs) + " |")
        lines.append("| future | oracle | " + " | ".join(
            cell_of(by[task, f"oracle:budget={b}"], None) if (task, f"oracle:budget={b}") in by else ""
            for b in budgets) + " |")
        lines.append("")
    lines += [f"## One sentence each ({tasks[0]})", ""]
    for name, title, _, help_text in presets:
        cells = {(tasks[0], b): (by[tasks[0], spec_of(name, b)],
                                 verdicts.get((tasks[0], spec_of(name, b)))) for b in budgets}
        lines.append("* " + sentence_of(title, help_text, cells, tasks[0], budgets))
    return "\n".join(wrapped(line) for line in lines) + "\n"


def wrapped(line):
    """Returns a line of prose in lines of at most 110 columns; rows of tables stay whole."""
    if line.startswith("|"):
        return line
    return textwrap.fill(line, 110, subsequent_indent="  " if line.startswith("* ") else "",
                         break_long_words=False, break_on_hyphens=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keyhole", default=str(ROOT / "build/release/keyhole"))
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--task", default="needle,needles")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--context", type=int, default=384)
    parser.add_argument("--budgets", default=[32, 64, 128, 256],
                        type=lambda text: [int(b) for b in text.split(",")])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--shard", default="")
    parser.add_argument("--page", type=pathlib.Path)
    args = parser.parse_args()
    presets = presets_of(args.keyhole)
    lanes = [spec_of(name, b) for name, _, _, _ in presets for b in args.budgets]
    done_file = args.out / "questions"
    before = int(done_file.read_text()) if done_file.exists() else 0
    done = max(ask(args, lanes, before), before)
    args.out.mkdir(parents=True, exist_ok=True)
    done_file.write_text(f"{done}\n")
    print(f"{done} questions of each task are answered by all of {len(lanes) + 1} lanes and their bounds",
          file=sys.stderr)
    if done > 0 and args.page and not args.shard:
        args.page.write_text(page_of(args, presets, lanes, done), encoding="utf-8")


if __name__ == "__main__":
    main()
