#!/usr/bin/env python3
"""The page of all presets with floor and ceiling: right answers in recall tasks and at the last word of
passages, and perplexity of a text, at four budgets; each question is asked of every lane. One sentence for
each preset.

    python3 tests/bench/field.py --out FOLDER [--keyhole build/release/keyhole] [--model smollm2-135m]
        [--task needle,needles] [--last-words FILE] [--text FILE] [--questions 200] [--context 384]
        [--presets NAME,...] [--budgets 32,64,128,256] [--seeds 3] [--minutes 10]
        [--page tests/bench/results/field.md]

Presets come from `keyhole presets --json`, so a new one needs no change here; --presets takes some of them,
to measure a row anew. Answers are kept in FOLDER, a folder for each kind of question, and the same command
goes on there. --minutes ends the asking after that time; the page then says how many questions all lanes have
answered. Several machines take parts by --shard I/N with folders of their own; `keyhole merge` joins them
kind by kind, and a last run there writes the page.

--last-words makes questions of a text: a passage is given up to its last word, a name that stands earlier in
it, but not within its last 60 words. --text measures the perplexity of its windows' last 32 tokens.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import sys
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLOOR, CEILING = "random", "oracle"  # they stand beside all lanes, as `full` does
NOT_A_LANE = {"full", FLOOR, CEILING}
WRITTEN = {"h2o": "H2O", "tova": "TOVA", "a2sf": "A2SF"}  # as papers do, where the name is no word
SCORED = 32  # tokens of a text's window that are scored
PASSAGE, NEAR = 210, 60  # words of a passage; words before the last one that do not hold it
ASKED = 8  # words that are read after the eviction: an answer's first token comes from what is kept then
SIZE_KEY = {"quest": "read"}  # what of a preset is so many tokens; of the others the budget


def spec_of(name, size):
    """Returns the lane of a preset at a size: Quest stores every token and reads so many."""
    return f"{name}:{SIZE_KEY.get(name, 'budget')}={size}"


def presets_of(keyhole):
    """Returns (name, title, group, help) of all presets that choose tokens, in the order of the groups, and
    {name: (title, help)} of floor and ceiling."""
    listed = json.loads(subprocess.run([keyhole, "presets", "--json"], check=True, capture_output=True,
                                       text=True).stdout)
    kept = {one["preset"]: one for one in listed["kept"]["presets"]}
    lanes, bounds = [], {}
    for group in listed["groups"]:
        for one in group["presets"]:
            name, title = one["name"], title_of(one)
            if name in (FLOOR, CEILING):
                bounds[name] = (title, one["help"])
            elif name not in NOT_A_LANE and "why_not" not in kept.get(name, {}):
                lanes.append((name, title, group["looks_at"], one["help"]))
    return lanes, bounds


def title_of(preset):
    """Returns what papers call a preset, or its name with a capital letter."""
    name = preset["name"]
    return preset["title"] or WRITTEN.get(name, name.capitalize())


def versions_of(args, sources):
    """Returns which builds gave the answers that are kept."""
    found = set()
    for source in sources:
        file = args.out / source.name / "answers.csv"
        if file.exists():
            found |= set(re.findall(r'"Keyhole ([^:]+):', file.read_text(encoding="utf-8")))
    return ", ".join(sorted(found))


@dataclasses.dataclass
class Source:
    """A kind of question: its folder in --out, what `eval` is told, and what a cell of its table shows."""
    name: str
    about: str
    arguments: list
    shows: str = "accuracy"  # or perplexity
    grows: bool = True  # the first n of its questions are the same, however many there are


def sources_of(args):
    sources = [Source(task, f"The recall task `{task}`, asked by its statement.",
                      ["--task", task, "--ask", "statement"]) for task in args.task.split(",") if task]
    if args.last_words:
        made = args.out / "last-words.jsonl"
        questions = last_words(args.last_words, args.questions)
        made.write_text("".join(json.dumps(one) + "\n" for one in questions), encoding="utf-8")
        sources.append(Source("last-words", "The last word of passages of a text. It is a name that stands "
                              f"earlier in the passage, but not within its last {NEAR} words.",
                              ["--data", str(made), "--cut", "--ask-when", "after"]))
    if args.text:
        sources.append(Source("text", f"Perplexity of a text: {args.context - SCORED} tokens of a window are "
                              f"its prompt, the next {SCORED} are scored.",
                              ["--text", str(args.text), "--prefill", str(args.context - SCORED)],
                              "perplexity", grows=False))  # windows are spread over the text
    return sources


def plain(text):
    """Returns a line of WikiText without the blanks and signs of its tokenizer."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    return re.sub(r" ([,.;:!?%)]|'s\b)", r"\1", text.replace("( ", "("))


def last_words(file, n):
    """Returns n questions, as `eval --data` reads them: passages up to a word that stands far before too.
    Passages do not overlap, and are spread over the text."""
    words = plain(file.read_text(encoding="utf-8")).split()
    found, begin = [], 0
    while begin + PASSAGE < len(words):
        end = next((i for i in range(begin + PASSAGE - 40, begin + PASSAGE)
                    if is_asked_for(words[begin:i], words[i].rstrip(",.;:"))), None)
        if end is not None:
            found.append({"context": " ".join(words[begin:end - ASKED]),
                          "prompt": " ".join(words[end - ASKED:end]), "target": words[end].rstrip(",.;:")})
        begin += PASSAGE
    if len(found) < n:
        raise SystemExit(f"field.py: {file} gives {len(found)} passages, not {n}: take a longer text")
    return [found[i * len(found) // n] for i in range(n)]


def is_asked_for(before, word):
    """Returns whether a word is a name within a sentence that stands before, but not near."""
    plain_before = [w.rstrip(",.;:") for w in before]
    return (word.isalpha() and word[0].isupper() and before[-1][-1].isalpha() and len(word) >= 4
            and word in plain_before[:-NEAR] and word not in plain_before[-NEAR:])


def command_of(args, source, lanes, samples):
    command = [args.keyhole, "eval", "--model", args.model, *source.arguments,
               "--context", str(args.context), "--samples", str(samples), "--bounds", str(args.seeds),
               "--out", str(args.out / source.name), "--lane", "full"]
    for lane in lanes:
        command += ["--lane", lane]
    return command + (["--shard", args.shard] if args.shard else [])


def answered(args, source, lanes):
    """Returns how many questions all of these lanes have answered. 0 where the folder's answers are of other
    lanes or questions: `eval` then asks what is missing alone."""
    file = args.out / source.name / "questions.json"
    if not file.exists():
        return 0
    kept = json.loads(file.read_text(encoding="utf-8"))
    same = kept["of"] == asked_of(args, source)
    return kept["questions"] if same and set(lanes) <= set(kept["lanes"]) else 0


def asked_of(args, source):
    """Returns what the answers depend on, beside the lanes: model, questions, floors."""
    return command_of(args, source, [], 0)[1:]


def ask(args, source, lanes, end):
    """Asks more and more questions until all are answered or the time is over. Returns how many all lanes
    have answered."""
    n = answered(args, source, lanes)
    while n < args.questions and time.monotonic() < end:
        more = min(args.questions, max(n + n // 2, n + 2)) if source.grows else args.questions
        try:
            subprocess.run(command_of(args, source, lanes, more), check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:  # what was answered stays in the folder
            break
        n = more
        kept = {"questions": n, "lanes": lanes, "of": asked_of(args, source)}
        (args.out / source.name / "questions.json").write_text(json.dumps(kept) + "\n", encoding="utf-8")
    return n


def measured(args, source, lanes, samples):
    """Returns what `eval` says of the answers that are kept."""
    return json.loads(subprocess.run(command_of(args, source, lanes, samples) + ["--json"], check=True,
                                     capture_output=True, text=True).stdout)


def percent(value):
    return f"{100 * value:.0f}"


def one_place(value):
    """Returns a number with one place; JSON has null for one that is not finite."""
    return "–" if value is None else f"{value:.1f}"


def verdicts_of(result):
    """Returns {spec: (surely above random, surely below)} of all lanes with a budget."""
    return {lane["spec"]: (lane["surely_above_random"], lane["surely_below_random"])
            for floor in result["floors"] for lane in floor["lanes"]}


def value_of(source, lane):
    return percent(lane["accuracy"]) if source.shows == "accuracy" else f"{lane['perplexity']:.1f}"


def evicts_nothing(lane, full):
    """Returns whether a lane answers as the full cache, bit for bit: with its buffer it has room for all."""
    return lane is not full and lane["nats_per_token"] == full["nats_per_token"]


def cell_of(source, lane, verdict, full):
    if evicts_nothing(lane, full):
        return "evicts nothing"
    sign = "" if verdict is None else "▲" if verdict[0] else "▼" if verdict[1] else ""
    interval = ([percent(x) for x in lane["accuracy_interval"]] if source.shows == "accuracy"
                else [one_place(x) for x in lane["perplexity_interval"]])
    return "{} ({}..{}){}".format(value_of(source, lane), *interval, sign)


def floor_value(source, floor):
    if source.shows == "perplexity":
        return f"{math.exp(floor['nats_per_token']):.1f}"
    return percent(floor["accuracy"])


def floor_cell(source, floor):
    if floor is None:  # every lane of this budget has a floor of its own form
        return ""
    written = percent if source.shows == "accuracy" else lambda nats: one_place(nats and math.exp(nats))
    return "{} ({}..{})".format(floor_value(source, floor), *(written(x) for x in floor["interval"]))


def table_of(source, presets, budgets, result, samples):
    """Returns the lines of a source's section: a row a preset, a column a budget."""
    lanes = {lane["spec"]: lane for lane in result["lanes"]}
    verdicts = verdicts_of(result)
    floors = {floor["spec"]: floor for floor in result["floors"]}
    lines = [f"## {source.name}", "", f"{source.about} {samples} questions. The full cache: "
             f"{cell_of(source, lanes['full'], None, lanes['full'])}.", "",
             "| looks at | preset | " + " | ".join(f"{b}" for b in budgets) + " |",
             "| --- | --- |" + " --- |" * len(budgets)]

    def row(group, name, cells):
        lines.append(f"| {group} | {name} | " + " | ".join(cells) + " |")

    row("nothing", FLOOR, (floor_cell(source, floors.get(spec_of(FLOOR, b))) for b in budgets))
    for name, _, group, _ in presets:
        specs = [spec_of(name, b) for b in budgets]
        row(group, name,
            (cell_of(source, lanes[spec], verdicts.get(spec), lanes["full"]) for spec in specs))
    oracles = [lanes.get(spec_of(CEILING, b)) for b in budgets]
    if any(oracles):
        row("future", CEILING,
            (cell_of(source, lane, None, lanes["full"]) if lane else "" for lane in oracles))
    return lines + [""]


def unit_of(source):
    return " %" if source.shows == "accuracy" else " of perplexity"


def bound_sentence(name, bounds, budget, parts):
    """Says what the floor or the ceiling has at a budget, of each kind of question that has it."""
    title, help_text = bounds[name]
    said = []
    for source, lanes, _, floors in parts:
        spec = spec_of(name, budget)
        if name == FLOOR and spec in floors:
            said.append(f"{source.name}: {floor_value(source, floors[spec])}{unit_of(source)} at {budget}")
        elif name != FLOOR and spec in lanes:
            said.append(f"{source.name}: {value_of(source, lanes[spec])}{unit_of(source)} at {budget}")
    return f"**{title}.** {help_text}" + (f" {'; '.join(said)}." if said else "")


def sentence_of(title, help_text, name, budgets, parts):
    """Says of each kind of question at which budgets a preset is surely better than random."""
    said = []
    for source, lanes, verdicts, _ in parts:
        sure = {b: verdicts.get(spec_of(name, b), (False, False)) for b in budgets}
        kept_all = [str(b) for b in budgets if evicts_nothing(lanes[spec_of(name, b)], lanes["full"])]
        above = [str(b) for b in budgets if sure[b][0] and str(b) not in kept_all]
        below = [str(b) for b in budgets if sure[b][1] and str(b) not in kept_all]
        largest = next((b for b in reversed(budgets) if str(b) not in kept_all), budgets[-1])
        best = lanes[spec_of(name, largest)]
        one = source.name + (f": above random at {', '.join(above)}" if above else ": nowhere above")
        if below:
            one += f", below at {', '.join(below)}"
        said.append(f"{one}, {value_of(source, best)}{unit_of(source)} at {largest}"
                    + (f"; evicts nothing at {', '.join(kept_all)}" if kept_all else ""))
    return f"**{title}.** {help_text} {'; '.join(said)}."


def command_text():
    """Returns this command as a block of a page, files by their names alone."""
    words = ["tests/bench/field.py"]
    words += [pathlib.Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return textwrap.fill(" ".join(words), 104, initial_indent="    ", subsequent_indent="        ",
                         break_long_words=False, break_on_hyphens=False).replace("\n", " \\\n")


def page_of(args, sources, presets, bounds, lanes, samples):
    """Returns the page; samples: of each source, what all lanes have answered."""
    lines = [
        f"# All presets, between a floor and a ceiling: {pathlib.Path(args.model).stem}", "",
        f"Made by `tests/bench/field.py`; context {args.context} tokens, `eval --bounds {args.seeds}`. A "
        "cell has the right answers in per cent, or the perplexity, with a 95 % interval; ▲ surely better "
        "than random, ▼ surely worse, by question, corrected for all lanes of the table: lanes are compared "
        "on the same questions, so they may differ surely where intervals overlap. Quest keeps every "
        "token and reads so many. The floor is `random` with a lane's budget, `protect`, `evict` and "
        "`buffer`: it evicts once after the prompt where the lane does. The row *random* has the budget "
        "alone. No floor protects the newest or the first tokens, as lanes do by `recent` and `sinks`. "
        "*Evicts nothing*: with its buffer the lane has room for all tokens, so it is the full cache. "
        f"`oracle` stands where the answer is known before. Answers are of {versions_of(args, sources)}; the "
        f"page was made on {time.strftime('%Y-%m-%d')}, on {platform.machine()} with {os.cpu_count()} cores, "
        "by",
        "", command_text(), ""]
    if min(samples.values()) < args.questions:
        lines += [f"{args.questions} questions are wanted. With fewer some differences stay undecided: "
                  "no sign means only that.", ""]
    parts = []
    for source in sources:
        if samples[source.name] == 0:
            continue
        result = measured(args, source, lanes, samples[source.name])
        lines += table_of(source, presets, args.budgets, result, samples[source.name])
        parts.append((source, {lane["spec"]: lane for lane in result["lanes"]}, verdicts_of(result),
                      {floor["spec"]: floor for floor in result["floors"]}))
    lines += ["## One sentence each", "",
              "At which budgets each is surely better or worse than random, and what it has at the largest "
              "that makes it evict; what floor and ceiling have at the largest.", ""]
    sentences = [bound_sentence(FLOOR, bounds, args.budgets[-1], parts)]
    sentences += [sentence_of(title, help_text, name, args.budgets, parts)
                  for name, title, _, help_text in presets]
    sentences.append(bound_sentence(CEILING, bounds, args.budgets[-1], parts))
    lines += ["* " + sentence for sentence in sentences]
    return "\n".join(wrapped(line) for line in lines) + "\n"


def wrapped(line):
    """Returns a line of prose in lines of at most 110 columns; rows of tables and commands stay."""
    if line.startswith(("|", "    ")):
        return line
    return textwrap.fill(line, 110, subsequent_indent="  " if line.startswith("* ") else "",
                         break_long_words=False, break_on_hyphens=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keyhole", default=str(ROOT / "build/release/keyhole"))
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--task", default="needle,needles")
    parser.add_argument("--last-words", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--context", type=int, default=384)
    parser.add_argument("--presets", default="")
    parser.add_argument("--budgets", default=[32, 64, 128, 256],
                        type=lambda text: [int(b) for b in text.split(",")])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--shard", default="")
    parser.add_argument("--page", type=pathlib.Path)
    args = parser.parse_args()
    presets, bounds = presets_of(args.keyhole)
    if args.presets:
        wanted = args.presets.split(",")
        if unknown := set(wanted) - {name for name, *_ in presets}:
            parser.error(f"--presets: no preset {', '.join(sorted(unknown))} on the page")
        presets = [one for one in presets if one[0] in wanted]
    lanes = [spec_of(name, b) for name, _, _, _ in presets for b in args.budgets]
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    sources = sources_of(args)
    samples = {source.name: ask(args, source, lanes, end) for source in sources}
    for name, n in samples.items():
        print(f"{name}: {n} questions are answered by all of {len(lanes) + 1} lanes and their bounds",
              file=sys.stderr)
    if args.page and not args.shard and any(samples.values()):
        args.page.write_text(page_of(args, sources, presets, bounds, lanes, samples), encoding="utf-8")


if __name__ == "__main__":
    main()
