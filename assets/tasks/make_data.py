#!/usr/bin/env python3
"""Makes two of the files in data/: questions whose instructions stand in several places, and sums that are
written step by step. The same seeds give the same files.

    python assets/tasks/make_data.py
"""
import json
import pathlib
import random

HERE = pathlib.Path(__file__).parent
THINGS = ["garden gate", "cellar door", "old boat", "iron chest", "tower room", "market stall", "mill house",
          "stone bridge"]
SPANS = ["first rule", "second rule", "fact in context", "instruction"]


def paragraphs():
    text = (HERE / "narrative.txt").read_text()
    return [p for p in text.split("\n\n") if 250 < len(p) < 420]


def instructions():
    """One code in each of four places: two rules of a system message, the context, the last instruction."""
    draw = random.Random(20261126)
    told = paragraphs()
    for i in range(24):
        things, codes = draw.sample(THINGS, 4), draw.sample(range(1000, 10000), 4)
        facts = [f"The code of the {thing} is {code}." for thing, code in zip(things, codes)]
        before, after = draw.sample(told, 2)
        asked = i % 4
        yield {"system": f"{facts[0]} {facts[1]}", "context": f"{before} {facts[2]} {after}",
               "prompt": f"{facts[3]} The code of the {things[asked]} is",
               "choices": [str(code) for code in codes], "answer": asked,
               "spans": dict(zip(SPANS, facts)), "asks_for": SPANS[asked]}


def sums():
    """A running sum: each step depends on the one before, and the last number is the result."""
    draw = random.Random(20261127)
    for _ in range(24):
        value, steps = draw.randint(2, 9), [draw.randint(1, 5) for _ in range(4)]
        question = f"Begin with {value}. " + " ".join(f"Add {step}." for step in steps)
        written = []
        for step in steps:
            written.append(f"{value} + {step} = {value + step}.")
            value += step
        yield {"prompt": f"{question} Steps:", "references": [" ".join(written) + f" The result is {value}."]}


for name, lines in (("instructions", instructions()), ("running-sums", sums())):
    (HERE / "data" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
