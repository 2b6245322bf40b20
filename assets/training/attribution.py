"""Writes ATTRIBUTION.md: title, author and licence of every training document, from the text's
MANIFEST.json."""
import argparse
import json
import os

from text import TRAIN_FILES


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    with open(os.path.join(a.data, "MANIFEST.json")) as f:
        documents = [d for d in json.load(f)["documents"] if d["group"] in TRAIN_FILES]
    groups = {}  # (licence, where it comes from): documents
    for d in documents:
        kind, _, notes = d["licence"].partition(" (")
        origin = f"{notes.rstrip(')').split('; ')[-1]}, {d['source']}" if kind == "CC BY" else ""
        groups.setdefault((kind, origin), []).append(d)
    with open(a.out, "w") as out:
        print("# Text this model was trained on\n", file=out)
        print("Changed for training: page marks, pictures, credits, headers and licence texts removed,"
              " lines joined,",
              "quotes and accents folded to ASCII, some paragraphs dropped. None of the named people or"
              " projects",
              "endorse this model.", sep="\n", file=out)
        for (kind, origin), members in groups.items():
            print(f"\n## {kind}{' (' + origin + ')' if origin else ''}\n", file=out)
            for d in members:
                line = f"- {d['title']}. {d['author']}."
                if kind != "CC BY":  # adds source, year and the QA's own terms, which the heading lacks
                    notes = d["licence"].partition("(")[2]
                    for common in ("; header and licence text removed",
                                   "; repository states: all titles from the public domain",
                                   "repository licence); "):
                        notes = notes.replace(common, "")
                    line += f" {notes.replace(');', ';').strip(')')}."
                print(line, file=out)


if __name__ == "__main__":
    main()
