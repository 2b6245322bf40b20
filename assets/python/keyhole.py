"""Reads what Keyhole writes into arrays, and starts Keyhole. One file; arrays need numpy, the rest nothing.

    import keyhole
    run = keyhole.decode("Once upon a time", [{"preset": "full"}, {"preset": "h2o", "budget": 8}], tokens=12,
                         export="run,attention,scores,mask-table")
    run.lanes[1].attention.shape            # (rows, layers, heads, positions)
    run.page()                              # in a notebook: the run as a page

`run = keyhole.open_export(folder)` reads an export, `keyhole.open_trace("run.keyhole")` a trace,
`keyhole.read_table("answers.csv")` a table. Row i consumed token i; it is at i - `run.first_row` in arrays
and steps of every lane. `lane.rows` are the rows that the lane's arrays have; the others hold nothing.
"""

import collections.abc
import csv
import functools
import html
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import zipfile

__all__ = ["Error", "Lane", "Picture", "Run", "decode", "lane_spec", "open_export", "open_trace", "program",
           "read_table", "start"]


class Error(RuntimeError):
    """Keyhole said no; the text is what it said."""


class _Numpy:
    """numpy, loaded when an array is first needed: starting Keyhole needs none."""

    def __getattr__(self, name):
        try:
            import numpy
        except ImportError:
            raise Error("arrays need numpy: pip install numpy") from None
        return getattr(numpy, name)


np = _Numpy()


def program():
    """Returns the path of the program: KEYHOLE, else the one that pip installed with this module, else
    `keyhole` of the PATH."""
    found = (os.environ.get("KEYHOLE") or shutil.which("keyhole", path=sysconfig.get_path("scripts"))
             or shutil.which("keyhole"))
    if not found:
        raise Error("there is no keyhole on the PATH; install it, or name the program in KEYHOLE")
    return found


def start(*words, folder=None, standard_input=None):
    """Runs `keyhole WORDS` and returns what it prints. Raises Error with what it says when it fails.
    standard_input: bytes."""
    command = [program(), *map(str, words)]
    try:
        done = subprocess.run(command, capture_output=True, cwd=folder, check=False, input=standard_input,
                              env={**os.environ, "KEYHOLE_PROGRESS": "off"})
    except OSError as error:
        raise Error(f"cannot start {command[0]}: {error}; check the path, KEYHOLE, and the words") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().removeprefix("keyhole: ")
        raise Error(said or f"keyhole ended with {done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def lane_spec(lane):
    """Returns a lane as text: {"preset": "h2o", "budget": 64, "alpha@L0": 0.5} is
    "h2o:budget=64,alpha@L0=0.5". A setting that is None is left out. Text stays as it is."""
    if isinstance(lane, str):
        return lane
    if not isinstance(lane, collections.abc.Mapping):
        raise ValueError(f"a lane is a text or a dictionary, not {lane!r}")
    rest = {key: of for key, of in lane.items() if of is not None}
    preset = rest.pop("preset", None)
    if preset is None:
        raise ValueError(f"a lane needs a preset: {lane}")

    def value(of):
        if isinstance(of, bool):
            return "on" if of else "off"
        text = str(of)
        return f"({text})" if any(c in text for c in ", ") and not text.startswith("(") else text

    settings = ",".join(f"{key}={value(of)}" for key, of in rest.items())
    return f"{preset}:{settings}" if settings else preset


def decode(prompt=None, lanes=("full",), tokens=12, export="run,attention,scores,mask-table,next",
           prompt_file=None, model=None, out=None, options=()):
    """Decodes a prompt with lanes (dictionaries or specs, or one of them) and returns the run. out: the
    export's folder, else a new one for the time of this process. options: further words for `keyhole
    decode`."""
    if (prompt is None) == (prompt_file is None):
        raise ValueError("give either prompt or prompt_file")
    if not isinstance(prompt, (str, type(None))):
        raise ValueError(f"a prompt is a text, not {type(prompt).__name__}")
    export = ",".join(_listed(export))
    if "run" not in export.split(","):
        export = "run," + export
    folder = pathlib.Path(out) if out is not None else _temporary_folder() / f"run{len(_made)}"
    _made.append(folder)
    words = ["decode", "--tokens", tokens, "--out", folder, "--export", export]
    standard_input = None
    if prompt_file is not None:
        words += ["--prompt-file", prompt_file]
    elif _fits_an_argument(prompt):
        words += ["--prompt", prompt]
    else:
        words += ["--prompt-file", "-"]
        standard_input = _as_file(prompt)
    for lane in _listed(lanes):
        words += ["--lane", lane_spec(lane)]
    if model is not None:
        words += ["--model", model]
    start(*words, *_listed(options), standard_input=standard_input)
    return open_export(folder)


# Linux takes 128 KiB an argument, and less where the stack is small.
_MOST_ARGUMENT_BYTES = 32 << 10


def _fits_an_argument(prompt):
    """Returns whether a prompt can be an argument: the command in run.json then holds it, and can be run. An
    empty one must be: a file that is empty is refused."""
    n_bytes = len(prompt.encode("utf-8", "surrogateescape"))
    return n_bytes == 0 or ("\0" not in prompt and n_bytes <= _MOST_ARGUMENT_BYTES)


def _as_file(prompt):
    """Returns the bytes of a prompt file. Keyhole takes a byte order mark and a line end from it."""
    return b"\xef\xbb\xbf" + prompt.encode("utf-8", "surrogateescape") + b"\r\n"


def _listed(given):
    """Returns a list; a text or a lane by itself would else be read letter by letter, or key by key."""
    return [given] if isinstance(given, (str, collections.abc.Mapping)) else list(given)


_made = []


@functools.cache
def _temporary_folder():
    holder = tempfile.TemporaryDirectory(prefix="keyhole-")
    _temporary_folder.holder = holder  # removed with the process
    return pathlib.Path(holder.name)


# The words of --export that are not the names of their arrays.
_WORDS = {"evicted_at": "mask-table", "q0": "q", "k0": "k", "ideal": "shadow"}


class Lane:
    """A lane of a run. Arrays are read when they are asked for; what was not exported raises Error. `rows`
    are those that the arrays have: a lane that came later, or was removed for a while, has not all."""

    def __init__(self, run, index, about, arrays, rows):
        self._run, self._arrays = run, arrays
        self.rows = np.array(rows, np.int64)
        self.index, self.about = index, about
        self.spec, self.text = about.get("spec", ""), about.get("text", "")
        self.tokens = np.array(about.get("tokens", []), np.int64)
        self._steps = {step["row"]: step for step in about.get("steps", []) if step is not None}

    def __repr__(self):
        return f"<lane {self.index} {self.spec}: {self.text!r}>"

    def array(self, name):
        """Returns an array by its name in the manual, such as "logits"."""
        if name not in self._arrays:
            raise Error(f"this run has no {name}; export it with --export {_WORDS.get(name, name)} (it has "
                        f"{', '.join(sorted(self._arrays)) or 'no arrays'})")
        made = self._arrays[name]
        if callable(made):
            made = self._arrays[name] = made()
        return made

    attention = property(lambda self: self.array("attention"),
                         doc="[rows, layers, heads, positions]; 0: not attended, or no such row")
    scores = property(lambda self: self.array("scores"), doc="[rows, KV heads, positions]; NaN: not stored")
    evicted_at = property(lambda self: self.array("evicted_at"), doc="[KV heads, positions]; -1: never")

    def stored(self, row):
        """Returns [KV heads, positions up to row]: whether each is stored after the row."""
        last = max(self._steps, default=-1)
        if not 0 <= row <= last:
            raise IndexError(f"lane {self.index} has no row {row}; its rows are 0 to {last}")
        at = self.evicted_at[:, : row + 1]
        return (at < 0) | (at > row)

    def steps(self, name):
        """Returns a scalar of every row of the run, such as "kl" or "entropy"; NaN where this lane has none.
        A name that no lane has raises Error."""
        names = self._run.scalars()
        if name not in names:
            raise Error(f"steps of this run have no {name}; they have {', '.join(sorted(names))}")
        values = [self._steps.get(row, {}).get(name) for row in self._run.rows]
        return np.array([np.nan if value is None else value for value in values], float)


class Picture:
    """A file that a notebook shows inline: PNG, SVG, or a page."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def _repr_png_(self):
        return self.path.read_bytes() if self.path.suffix == ".png" else None

    def _repr_svg_(self):
        return self.path.read_text("utf-8") if self.path.suffix == ".svg" else None

    def _repr_html_(self):
        if self.path.suffix != ".html":
            return None
        text = html.escape(self.path.read_text("utf-8"))
        return f'<iframe srcdoc="{text}" style="width:100%;height:720px;border:0"></iframe>'


class Run:
    """A run: `lanes`, `prompt`, `first_row` (of arrays and steps) and `about`, which is run.json."""

    def __init__(self, about, folder=None, trace=None):
        self.about, self.folder, self.trace = about, folder, trace
        self.lanes = []
        self.prompt = about.get("prompt", "")
        self.prompt_tokens = np.array(about.get("prompt_tokens", []), np.int64)
        self.first_row = about.get("first_row", 0)

    def __repr__(self):
        lines = [f"<run of {len(self.prompt_tokens)} prompt tokens, {len(self.lanes)} lanes>"]
        return "\n".join(lines + [repr(lane) for lane in self.lanes])

    @property
    def rows(self):
        """The rows of arrays and steps, as a range."""
        last = max((row for lane in self.lanes for row in lane._steps), default=self.first_row - 1)
        return range(self.first_row, last + 1)

    def scalars(self):
        """Returns the names that `steps` of a lane takes."""
        return {name for lane in self.lanes for step in lane._steps.values() for name, value in step.items()
                if not isinstance(value, (str, list))}

    def picture(self, word, *options):
        """Exports a view, such as "atlas" or "curve:kl", and returns its picture."""
        return Picture(self._export(word, options, (".png", ".svg")))

    def page(self):
        """Exports the run as a page and returns it."""
        return Picture(self._export("page", (), (".html",)))

    def _export(self, word, options, endings):
        if self.trace is not None:
            folder = _temporary_folder() / f"view{len(_made)}"
            _made.append(folder)
            start("replay", self.trace, "--out", folder, "--export", word, *options)
            found = _files_of(word, folder, _about(folder)["files"])
        elif options:
            raise Error(f"an export cannot draw {word} with options; open a trace, or decode with them")
        else:
            found = self._files(word)
        shown = [file for file in found if file.suffix in endings]
        if shown:
            return shown[0]
        if not found and self.trace is None and word not in self._exported():
            raise Error(f"this export has no {word}; decode it with export=\"run,{word}\", or open a trace")
        raise Error(f"{word} is no picture" + (f"; read {found[0]}" if found else ""))

    def _files(self, word):
        """Returns the files of an export's word. Names of `watched` with words do not tell what was asked
        for; the command does."""
        files = _files_of(word, self.folder, self.about.get("files", []))
        kind, _, given = word.partition(":")
        if kind != "watched" or not given or _SPAN.fullmatch(given):
            return files
        alike = [other for other in self._exported() if other.startswith(kind + ":")]
        if word in alike and len(alike) > 1:
            raise Error(f"files of {', '.join(alike)} cannot be told apart; export {word} by itself")
        return files if word in alike else []

    def _exported(self):
        """Returns the words of --export."""
        words = shlex.split(self.about.get("command", ""))
        lists = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--export"]
        lists += [word.removeprefix("--export=") for word in words if word.startswith("--export=")]
        return [word.strip() for some in lists for word in some.split(",")]


_SPAN = re.compile(r"(\d+)\.\.(\d+)")


def _files_of(word, folder, names):
    """Returns those of the names that a word of --export writes: "curve:kl" curve_kl.svg and curve_kl.csv,
    "difference:0-2" difference_0-2_L0_H0.png and so on. A word by itself stands for all of its kind."""
    kind, _, given = word.partition(":")
    given = _SPAN.sub(r"\1-\2", given)
    if kind == "watched" and not re.fullmatch(r"\d+-\d+", given):
        given = ""
    stem = re.escape(f"{kind}_{given}") + r"(_L\d+_H\d+)?" if given else re.escape(kind) + "(_.*)?"
    return [folder / name for name in names if re.fullmatch(stem, pathlib.Path(name).stem)]


def open_export(folder):
    """Returns the run that an export holds. It needs `run` in --export."""
    folder = pathlib.Path(folder)
    about = _about(folder)
    if "lanes" not in about:
        names = [name.removesuffix("/run.json") for name in about.get("files", []) if "/run.json" in name]
        raise Error(f"{folder} holds several runs; open one of them: {', '.join(names)}" if names else
                    f"{folder} was exported without run; add it to --export")
    run = Run(about, folder=folder)
    for i, lane in enumerate(about["lanes"]):
        files = (folder / f"lane{i}").glob("*.npy")
        arrays = {file.stem: functools.partial(_read_array, file) for file in files}
        run.lanes.append(Lane(run, i, lane, arrays, _rows_of_export(about, i)))
    return run


def _rows_of_export(about, index):
    """Returns the rows that a lane has in an export's arrays. Rows of the prompt are not among its steps; the
    lanes of the start have them."""
    first, lanes = about.get("first_row", 0), about["lanes"]
    n_at_start = len(about.get("start", {}).get("lanes", lanes))
    rows = list(range(first, len(about["prompt_tokens"]))) if index < n_at_start else []
    return rows + [step["row"] for step in lanes[index]["steps"] if step is not None and step["row"] >= first]


def _about(folder):
    """Returns the run.json of an export."""
    try:
        about = json.loads((folder / "run.json").read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise Error(f"cannot read {folder} as an export: there is no {folder / 'run.json'}; give the folder "
                    "of --out, or a trace to open_trace") from None
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise Error(f"cannot read {folder / 'run.json'}: it is not that of an export; export the run again")
    return about


def _read_array(file):
    try:
        with open(file, "rb") as stream:
            return np.lib.format.read_array(stream)
    except ValueError:
        raise Error(f"cannot read {file}: it is no array of an export, or was cut; export it again") from None


def open_trace(path):
    """Returns the run of a trace. Its rows begin with the prompt's last one. Attention and scores have a
    place for every row and position, as in an export. Traces of long runs lack rows: see a lane's `rows`."""
    members, about = _read_trace(path)
    of = about["run"]
    steps = about["steps"]
    text = [bytes.fromhex(token) for token in of["token_bytes"]]
    settings = about.get("lane_settings", [])
    # A record names its lane's settings, which name the lane. Lanes are numbered as they come.
    by_step = [{settings[lane["lane"]]["id"]: lane for lane in step["lanes"]} for step in steps]
    ids = list(dict.fromkeys(i for step in by_step for i in step))
    first = {i: next(n for n, step in enumerate(by_step) if i in step) for i in ids}
    forked = {s["id"]: s["forked"]["from"] for s in settings if "from" in s.get("forked", {})}
    lanes = []
    for i in ids:
        records = [step.get(i) for step in by_step]
        tokens = []
        for n in range(1, len(steps)):
            # Before it came a lane read what the lane that it was forked from read, else what lane 0 read,
            # as while it was removed.
            reader = i
            while n < first[reader] and reader in forked:
                reader = forked[reader]
            record = by_step[n].get(reader, by_step[n].get(ids[0]))
            before = by_step[n - 1].get(i)
            if record is None or (before is not None and before.get("ended")):
                break
            tokens.append(record["token"])
        last = next(record for record in reversed(records) if record is not None)
        lanes.append({"spec": settings[last["lane"]].get("effective", ""), "tokens": tokens,
                      "text": b"".join(text[t] for t in tokens).decode("utf-8", "replace"),
                      "steps": [None if record is None else _step_of_trace(step["row"], record)
                                for step, record in zip(steps, records)]})
    run = Run({"prompt": of["prompt"], "prompt_tokens": of["prompt_tokens"], "first_row": steps[0]["row"],
               "lanes": lanes, "model": of["model"]}, trace=os.fspath(path))
    heads = of["config"]["n_layers"], of["config"]["n_heads"]
    for n, i in enumerate(ids):
        kept = {step["row"]: by_id[i].get("rows", 0) for step, by_id in zip(steps, by_step) if i in by_id}
        arrays = _arrays_of_trace(members, f"lane{n}", kept, run.first_row, steps[-1]["row"], heads)
        run.lanes.append(Lane(run, n, lanes[n], arrays, [row for row, parts in kept.items() if parts]))
    return run


def _read_trace(path):
    """Returns the members of a trace and its run.json."""
    load, about = np.load, {}  # a missing numpy is said before a fault of the file
    if not os.path.isdir(path):
        with open(path, "rb") as file:
            is_zip = zipfile.is_zipfile(file)
        members = load(path) if is_zip else {}
        if "run.json" in members:
            about = json.loads(bytes(members["run.json"]))
    if about.get("format") != "keyhole-trace":
        raise Error(f"cannot read {path}: it is no trace, or was cut; give a file of --save, or the folder "
                    "of an export to open_export")
    return members, about


_SCALARS = ("token", "predicted", "log_prob", "entropy", "kl", "agrees", "tau", "stored_tokens",
            "stored_bytes", "allocated_bytes", "attended_tokens", "shadow_bytes")
_MEASURES = ("retained_mass", "cosine_ideal", "cosine_full", "output_similarity", "sink_share",
             "learned_sink")


def _step_of_trace(row, record):
    """Returns the scalars of a trace's record as the steps of an export have them."""
    step = {"row": row} | {name: record[name] for name in _SCALARS if name in record}
    if isinstance(step["kl"], list):
        step["kl"] = step["kl"][0]
    step |= {name: value for name, value in zip(_MEASURES, record.get("measures", [])) if value is not None}
    if "retained_mass" in step:
        step["lost_mass"] = 1 - step["retained_mass"]
    return step


def _arrays_of_trace(members, lane, kept, first, last, heads):
    """Returns what makes the arrays of a lane. kept: of each of its rows, 1 where the trace has attention,
    plus 2 where it has scores."""
    arrays = {"evicted_at": functools.partial(members.__getitem__, lane + "/evicted_at")}
    for part, name, units, nothing in ((1, "attention", heads, 0), (2, "scores", None, np.nan)):
        if f"{lane}/{name}" in members.files:
            rows = [row for row, parts in kept.items() if parts & part]
            arrays[name] = functools.partial(_spread, members, lane, name, rows, range(first, last + 1),
                                             units, nothing)
    return arrays


def _spread(members, lane, name, rows, all_rows, units, nothing):
    """Spreads a trace's flat values over all rows and positions, as exports have them. rows: those that have
    values. units: (layers, heads), or None: the KV heads."""
    gone, flat = members[lane + "/evicted_at"], members[f"{lane}/{name}"]
    if flat.ndim != 1:
        raise Error(f"an older Keyhole saved this trace; export the run to read its {name}")
    n_kv, n_positions = gone.shape
    units = units or (n_kv,)
    count = math.prod(units)
    if count % n_kv:
        raise Error(f"layers of this model share KV heads; export the run to read its {name}")
    out, at = np.full((len(all_rows), count, n_positions), nothing, np.float32), 0
    for row in rows:
        for unit in range(count):
            its = gone[unit // (count // n_kv), : row + 1]
            held = np.flatnonzero((its < 0) | (its >= row))
            out[row - all_rows.start, unit, held] = flat[at : at + len(held)]
            at += len(held)
    if at != len(flat):
        raise Error(f"rows of this trace hide stored tokens; export the run to read its {name}")
    return out.reshape(len(all_rows), *units, n_positions)


def read_table(path):
    """Returns a CSV file, such as answers.csv, as {column: array}: of numbers where all its fields are."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Error(f"cannot read {path} as a table: {error}; give a CSV file of an export") from None
    if not rows:
        return {}

    def column(fields):
        try:
            return np.array([float(field) if field != "" else np.nan for field in fields])
        except ValueError:
            return np.array(fields)

    return {name: column([row[i] if i < len(row) else "" for row in rows[1:]])
            for i, name in enumerate(rows[0])}
