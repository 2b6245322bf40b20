"""Tests assets/python/keyhole.py and runs the example notebook. Run by ctest as Python.ReadsRuns:

    python3 tests/python/python_test.py PROGRAM SOURCES
"""

import importlib.util
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy; install python3-numpy")
    sys.exit(0)

PROGRAM, SOURCES = sys.argv[1:3]
os.environ["KEYHOLE"] = os.path.abspath(PROGRAM)
MODULE = os.path.join(SOURCES, "assets", "python", "keyhole.py")
spec = importlib.util.spec_from_file_location("keyhole", MODULE)
keyhole = importlib.util.module_from_spec(spec)
sys.modules["keyhole"] = keyhole
spec.loader.exec_module(keyhole)

LANES = [{"preset": "full"}, {"preset": "h2o", "budget": 16}, "tova:budget=24"]


class KeyholeModule(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = pathlib.Path(cls.folder.name)
        prompt = os.path.join(SOURCES, "assets", "prompts", "story.txt")
        cls.run_ = keyhole.decode(prompt_file=prompt, lanes=LANES, tokens=6, out=cls.out / "run",
                                  export="attention,scores,mask-table,page",
                                  options=["--save", cls.out / "run.keyhole"])
        cls.trace = keyhole.open_trace(cls.out / "run.keyhole")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_lanes_are_written_as_specs(self):
        self.assertEqual(keyhole.lane_spec({"preset": "full"}), "full")
        self.assertEqual(keyhole.lane_spec({"preset": "h2o", "budget": 64, "alpha@L0": 0.5}),
                         "h2o:budget=64,alpha@L0=0.5")
        self.assertEqual(keyhole.lane_spec({"preset": "keyformer", "tau": "0:1 20:1.4", "shadow": True}),
                         "keyformer:tau=(0:1 20:1.4),shadow=on")
        self.assertEqual(keyhole.lane_spec("tova:budget=8"), "tova:budget=8")
        self.assertEqual(keyhole.lane_spec({"preset": "h2o", "budget": None, "recent": 4}), "h2o:recent=4")
        self.assertEqual(keyhole.lane_spec({"preset": "full", "budget": None}), "full")
        for lane in ({"budget": 3}, {"preset": None}):
            with self.assertRaisesRegex(ValueError, "a lane needs a preset"):
                keyhole.lane_spec(lane)
        for lane in (3, None, ["h2o", 8]):
            with self.assertRaisesRegex(ValueError, "a lane is a text or a dictionary, not "):
                keyhole.lane_spec(lane)

    def test_one_lane_word_or_option_needs_no_list(self):
        for lanes, specs in (("full", ["full"]), ({"preset": "tova", "budget": 8}, ["tova:budget=8"]),
                             (("full", "tova:budget=8"), ["full", "tova:budget=8"])):
            run = keyhole.decode("Once", lanes, tokens=1, export=["next", "mask-table"],
                                 options="--ignore-eos", out=self.out / "one")
            self.assertEqual([lane.spec for lane in run.lanes], specs)
            self.assertEqual(run.lanes[0].array("next").shape[0], 1)

    def test_an_export_has_its_arrays(self):
        run, n = self.run_, len(self.run_.prompt_tokens)
        self.assertEqual(run.first_row, n)
        self.assertEqual([lane.spec for lane in run.lanes],
                         ["full", "h2o:budget=16,recent=8", "tova:budget=24"])
        self.assertEqual(run.lanes[1].attention.shape, (6, 6, 8, n + 6))
        sums = run.lanes[1].attention.sum(axis=-1)
        np.testing.assert_allclose(sums, 1, atol=1e-4)
        last = n + 5
        for lane, kept in zip(run.lanes, (n + 6, 16, 24)):
            self.assertEqual(lane.stored(last).sum(axis=1).tolist(), [kept] * 48)
            self.assertEqual(len(lane.tokens), 6)
        self.assertEqual(run.lanes[1].steps("stored_tokens").tolist(), [16 * 48] * 6)
        self.assertTrue(np.isnan(run.lanes[1].scores[0][~run.lanes[1].stored(n)[:, : n + 1].any()]).all())
        with self.assertRaisesRegex(keyhole.Error, "no logits; export it with --export logits"):
            run.lanes[0].array("logits")

    def test_a_trace_has_the_values_of_the_export(self):
        run, trace = self.run_, self.trace
        self.assertEqual(trace.first_row, run.first_row - 1)
        for lane, other in zip(run.lanes, trace.lanes):
            self.assertEqual(lane.spec, other.spec)
            self.assertEqual(lane.text, other.text)
            np.testing.assert_array_equal(lane.evicted_at, other.evicted_at)
            np.testing.assert_array_equal(lane.attention.astype(np.float16),
                                          other.attention[1:].astype(np.float16))
            np.testing.assert_array_equal(lane.scores, other.scores[1:])
            np.testing.assert_allclose(lane.steps("entropy"), other.steps("entropy")[1:], rtol=1e-6)
        self.assertFalse(np.isnan(trace.lanes[1].steps("kl")[1]))

    def scripted(self):
        """Returns a trace in which lanes come and go, and what `replay` says of it."""
        script, trace = self.out / "script.txt", self.out / "script.keyhole"
        script.write_text("+2 lane 1 h2o:budget=6\n+4 add tova:budget=8\n+5 fork 1 window:budget=9\n"
                          "+6 remove 1\n+9 restore 1 h2o:budget=6\n", "utf-8")
        prompt = os.path.join(SOURCES, "assets", "prompts", "garden-gate.txt")
        keyhole.start("decode", "--prompt-file", prompt, "--tokens", 14, "--lane", "full", "--lane",
                      "h2o:budget=16", "--script", script, "--save", trace, "--ignore-eos")
        return trace, json.loads(keyhole.start("replay", trace, "--json"))["lanes"]

    def test_lanes_that_a_script_changes_have_their_own_text(self):
        trace, known = self.scripted()
        lanes = keyhole.open_trace(trace).lanes
        self.assertEqual(len(known), 4)
        for of in known:
            lane = lanes[of["lane"]]
            self.assertEqual(list(lane.tokens), of["tokens"], of["spec"])
            self.assertEqual(lane.text, of["text"], of["spec"])
            self.assertEqual(lane.spec, of["spec"])

    def test_row_i_is_at_its_place_in_every_lane(self):
        path, _ = self.scripted()
        trace = keyhole.open_trace(path)
        keyhole.start("replay", path, "--out", self.out / "scripted", "--export", "run,attention,scores")
        run = keyhole.open_export(self.out / "scripted")
        first = trace.first_row
        self.assertEqual(trace.rows, range(first, first + 15))
        self.assertEqual(run.rows, trace.rows[1:])
        for lane, gone in zip(trace.lanes, ([], [7, 8, 9], range(5), range(6))):
            other = run.lanes[lane.index]
            there = [row for row in trace.rows if row - first not in gone]
            self.assertEqual(lane.rows.tolist(), there)
            self.assertEqual(other.rows.tolist(), [row for row in there if row != first])
            np.testing.assert_array_equal(lane.attention[1:], other.attention)
            np.testing.assert_array_equal(lane.scores[1:], other.scores)
            np.testing.assert_array_equal(np.isnan(lane.scores).all(axis=(1, 2)),
                                          np.isin(trace.rows, lane.rows, invert=True))
            self.assertFalse(lane.attention[list(gone)].any())
            np.testing.assert_allclose(lane.steps("kl")[1:], other.steps("kl"), rtol=1e-5)
            for name in ("stored_tokens", "sink_share"):
                np.testing.assert_allclose(lane.steps(name)[1:], other.steps(name), rtol=1e-5)
                self.assertEqual(np.flatnonzero(np.isnan(lane.steps(name))).tolist(), list(gone))

    def test_steps_are_those_of_the_rows_of_arrays(self):
        script = self.out / "short.txt"
        script.write_text("+1 add tova:budget=8\n+5 remove 1\n", "utf-8")
        for options, first in ((["--rows", "all"], 0), (["--last-rows", 2], 10)):
            run = keyhole.decode("Once upon a time", LANES[:2], tokens=6, export="scores",
                                 out=self.out / "some",
                                 options=[*options, "--script", script, "--ignore-eos"])
            n = len(run.prompt_tokens)
            self.assertEqual(run.rows, range(first, n + 6))
            for lane in run.lanes:
                held = ~np.isnan(lane.scores).all(axis=(1, 2))
                self.assertEqual(lane.rows.tolist(), np.array(run.rows)[held].tolist())
                steps = lane.steps("row")
                self.assertEqual(len(steps), len(run.rows))
                self.assertEqual(steps[~np.isnan(steps)].tolist(), [row for row in lane.rows if row >= n])

    def test_a_trace_has_the_measures_of_a_shadow(self):
        run = keyhole.decode("Once upon a time", ["h2o:budget=4,shadow=on"], tokens=3, export="run",
                             out=self.out / "shadow", options=["--save", self.out / "shadow.keyhole"])
        trace = keyhole.open_trace(self.out / "shadow.keyhole")
        for name in ("retained_mass", "lost_mass", "cosine_full", "shadow_bytes"):
            self.assertFalse(np.isnan(trace.lanes[0].steps(name)[1:]).any())
            np.testing.assert_allclose(trace.lanes[0].steps(name)[1:], run.lanes[0].steps(name), atol=1e-6)

    def test_what_is_not_there_is_refused(self):
        for of in (self.run_, self.trace):
            lane, last = of.lanes[1], of.rows[-1]
            with self.assertRaisesRegex(keyhole.Error, "no nope; they have agrees, .*entropy, kl, "):
                lane.steps("nope")
            with self.assertRaisesRegex(keyhole.Error, "no nope; .*it has attention, evicted_at, scores"):
                lane.array("nope")
            for row in (-1, last + 1, 999):
                with self.assertRaisesRegex(IndexError, f"lane 1 has no row {row}; its rows are 0 to {last}"):
                    lane.stored(row)
            self.assertEqual(lane.stored(0).shape, (48, 1))
        with self.assertRaisesRegex(keyhole.Error, "steps of this run have no text"):
            self.run_.lanes[0].steps("text")

    def test_a_lane_has_no_sets_after_it_was_removed(self):
        script = self.out / "removed.txt"
        script.write_text("+2 remove 1\n", "utf-8")
        run = keyhole.decode("Once upon a time", LANES[:2], tokens=6, export="run", out=self.out / "removed",
                             options=["--script", script, "--ignore-eos"])
        with self.assertRaisesRegex(IndexError, "lane 1 has no row 8; its rows are 0 to 7"):
            run.lanes[1].stored(8)
        with self.assertRaisesRegex(keyhole.Error, "no evicted_at; export it with --export mask-table"):
            run.lanes[1].stored(7)

    def test_pictures_and_pages_show_inline(self):
        self.assertIn("<iframe srcdoc=", self.run_.page()._repr_html_())
        self.assertIn("&lt;!doctype html&gt;", self.trace.page()._repr_html_())
        self.assertTrue(self.trace.picture("atlas")._repr_png_().startswith(b"\x89PNG"))
        self.assertIn("<svg", self.trace.picture("curve:kl")._repr_svg_())
        with self.assertRaisesRegex(keyhole.Error, "this export has no atlas"):
            self.run_.picture("atlas")

    def test_a_word_gives_its_own_picture(self):
        run = keyhole.decode("Once upon a time", LANES, tokens=2, out=self.out / "pictures",
                             export="curve:kl,curve:jaccard,difference:0-1,difference:0-2,overlap:0-1,"
                                    "watched:1..2,tokens:1+2,gif", options=["--layers", 0, "--heads", 1])
        trace = self.trace
        for word, name in {"curve:kl": "curve_kl.svg", "curve:jaccard": "curve_jaccard.svg",
                           "difference:0-1": "difference_0-1_L0_H1.png",
                           "difference:0-2": "difference_0-2_L0_H1.png", "watched:1..2": "watched_1-2.svg",
                           "tokens:1+2": "tokens_1+2_L0_H1.svg"}.items():
            self.assertEqual(run.picture(word).path.name, name)
            self.assertEqual(trace.picture(word, "--layers", 0, "--heads", 1).path.name, name)
        for word in ("curve:entropy", "curve:k", "difference:1-2", "watched:1..3", "tokens:1+3"):
            with self.assertRaisesRegex(keyhole.Error, f"this export has no {re.escape(word)}"):
                run.picture(word)
        with self.assertRaisesRegex(keyhole.Error, "overlap:0-1 is no picture; read .*overlap_0-1.csv"):
            run.picture("overlap:0-1")
        for of in (run, trace):
            with self.assertRaisesRegex(keyhole.Error, "gif is no picture"):
                of.picture("gif")
        self.assertEqual(trace.picture("mask").path.name, "mask_L0_G0.png")
        with self.assertRaisesRegex(keyhole.Error, "cannot draw curve:kl with options"):
            run.picture("curve:kl", "--width", 500)

    def test_pictures_that_cannot_be_told_apart_are_refused(self):
        run = keyhole.decode("Once upon a time", tokens=1, export="watched:upon,watched:time",
                             out=self.out / "watched")
        with self.assertRaisesRegex(keyhole.Error, "watched:upon, watched:time cannot be told apart"):
            run.picture("watched:time")
        with self.assertRaisesRegex(keyhole.Error, "this export has no watched:Once"):
            run.picture("watched:Once")

    def test_tables_are_columns(self):
        path = self.out / "answers.csv"
        path.write_text('task,right,nats\nneedle,1,0.5\n"a, b",0,\n', "utf-8")
        table = keyhole.read_table(path)
        self.assertEqual(table["task"].tolist(), ["needle", "a, b"])
        self.assertEqual(table["right"].tolist(), [1.0, 0.0])
        self.assertTrue(np.isnan(table["nats"][1]))

    def test_a_prompt_of_any_length_and_form_arrives(self):
        short = ["-", "--help", "\ufeffa", "a\r\n", "a\n\n", "", "a\0b"]
        for most in (keyhole._MOST_ARGUMENT_BYTES, -1):
            with unittest.mock.patch.object(keyhole, "_MOST_ARGUMENT_BYTES", most):
                for prompt in short:
                    run = keyhole.decode(prompt, tokens=1, out=self.out / "prompt", export="run")
                    self.assertEqual(run.prompt, prompt)
        for n in (40_000, 200_000, 3 << 20):
            with self.assertRaisesRegex(keyhole.Error, f"the prompt has {n} bytes"):
                keyhole.decode("a b " * (n // 4), tokens=1, out=self.out / "long")

    def test_refusals_say_what_keyhole_said(self):
        with unittest.mock.patch.dict(os.environ, {"KEYHOLE": "/no/keyhole"}):
            with self.assertRaisesRegex(keyhole.Error, "cannot start /no/keyhole: .*No such file"):
                keyhole.start("--version")
        with self.assertRaisesRegex(keyhole.Error, "did you mean 'h2o'"):
            keyhole.decode("x", ["h2oo"], tokens=1)
        for prompt in (None, b"x", 3):
            with self.assertRaises(ValueError):
                keyhole.decode(prompt)

    def test_wrong_files_are_named(self):
        text, folder = self.out / "text.keyhole", self.out / "wrong"
        text.write_text("no trace", "utf-8")
        cut, other, trace = self.out / "cut.keyhole", self.out / "other.npz", self.out / "run.keyhole"
        cut.write_bytes(trace.read_bytes()[:20_000])
        np.savez(other, a=1)
        array = self.out / "run" / "lane0" / "attention.npy"
        for path in (text, cut, other, array, self.out / "run"):
            with self.assertRaisesRegex(keyhole.Error, f"cannot read {path}: it is no trace, or was cut"):
                keyhole.open_trace(path)
        for path in (self.out / "nowhere", trace):
            with self.assertRaisesRegex(keyhole.Error, f"cannot read {path} as an export: there is no"):
                keyhole.open_export(path)
        folder.mkdir()
        for json_text in ("{", "[]"):
            (folder / "run.json").write_text(json_text, "utf-8")
            with self.assertRaisesRegex(keyhole.Error, "run.json: it is not that of an export"):
                keyhole.open_export(folder)
        with self.assertRaisesRegex(keyhole.Error, f"cannot read {array} as a table: .*give a CSV file"):
            keyhole.read_table(array)

    def test_files_that_are_no_arrays_are_named(self):
        keyhole.decode("Once", tokens=1, export="next", out=self.out / "next")
        path = self.out / "next" / "lane0" / "next.npy"
        whole = path.read_bytes()
        for content in (b"", b"no array", whole[:-8], (self.out / "run.keyhole").read_bytes()):
            path.write_bytes(content)
            lane = keyhole.open_export(self.out / "next").lanes[0]
            with self.assertRaisesRegex(keyhole.Error, f"cannot read {path}: it is no array of an export"):
                lane.array("next")

    def test_a_folder_of_several_runs_names_them(self):
        words = []
        for name in ("one", "two"):
            (self.out / f"{name}.txt").write_text("Once upon", "utf-8")
            words += ["--prompt-file", self.out / f"{name}.txt"]
        keyhole.start("decode", *words, "--tokens", 1, "--out", self.out / "several", "--export", "run")
        with self.assertRaisesRegex(keyhole.Error, "several holds several runs; open one of them: one, two"):
            keyhole.open_export(self.out / "several")

    def test_the_notebook_runs(self):
        with open(os.path.join(SOURCES, "assets", "python", "example.ipynb"), encoding="utf-8") as file:
            cells = json.load(file)["cells"]
        names, shown = {}, []
        before = os.getcwd()
        os.chdir(SOURCES)
        try:
            for cell in cells:
                if cell["cell_type"] != "code":
                    continue
                *lines, last = "".join(cell["source"]).split("\n")
                try:
                    value = compile(last, "cell", "eval")
                except SyntaxError:
                    exec("\n".join([*lines, last]), names)
                    continue
                exec("\n".join(lines), names)
                shown.append(eval(value, names))
        finally:
            os.chdir(before)
        self.assertEqual(list(names["held"].values()), [48, 1, 16])
        self.assertIsNotNone(shown[-2]._repr_png_())
        self.assertIn("<iframe", shown[-1]._repr_html_())


unittest.main(argv=[sys.argv[0]])
