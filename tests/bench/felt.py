#!/usr/bin/env python3
"""How fast the window feels, as ratios: a key to its picture against a window that draws nothing, idle and
while decoding; and decoding beside the window against `keyhole decode`. Times of one machine vary with its
load, so each pair is measured in turn (A B A B ...) on one display of its own.

    python3 tests/bench/felt.py [--keyhole build/release/keyhole] [--rounds 5] [--size 1600x1000]
                                [--model FILE --steps 200]

Needs Xvfb, libX11, libXtst and libglfw.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "assets/models/keyhole-base"
PROMPT = ROOT / "assets/prompts/story.txt"  # nothing ends its continuation
LANES = ["full", "h2o:budget=64", "tova:budget=64"]
FIRST = 20  # the first decoded step that is timed
STEPS = 500  # the steps that are timed: the demo model reads 1,024 tokens
PATIENCE_S = 120


def empty_window(width, height, report):
    """Draws an empty frame for each key, and then writes how many keys it has drawn."""
    glfw = ctypes.CDLL("libglfw.so.3")
    gl = ctypes.CDLL("libGL.so.1")
    glfw.glfwCreateWindow.restype = ctypes.c_void_p
    glfw.glfwInit()
    window = ctypes.c_void_p(glfw.glfwCreateWindow(width, height, b"empty", None, None))
    glfw.glfwMakeContextCurrent(window)
    counts = {"pressed": 0}
    on_key = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int] * 4)

    def pressed(_window, _key, _code, action, _mods):
        counts["pressed"] += action == 1

    callback = on_key(pressed)
    glfw.glfwSetKeyCallback(window, callback)
    drawn = -1
    while not glfw.glfwWindowShouldClose(window):
        if drawn != counts["pressed"]:
            drawn = counts["pressed"]
            gl.glClearColor(ctypes.c_float(0.1), ctypes.c_float(0.1), ctypes.c_float(0.1), ctypes.c_float(1))
            gl.glClear(0x4000)
            glfw.glfwSwapBuffers(window)
            write_report(report, {"input": {"keys": drawn}, "idle": True, "has_run": True})
        glfw.glfwWaitEvents()


def write_report(path, value):
    part = path + ".part"
    pathlib.Path(part).write_text(json.dumps(value))
    os.replace(part, path)


class Display:
    """A display of its own, with a keyboard to press."""

    def __init__(self, folder, width, height):
        reader, writer = os.pipe()
        self.server = subprocess.Popen(
            ["Xvfb", "-displayfd", str(writer), "-screen", "0", f"{width + 200}x{height + 200}x24",
             "-noreset", "-nolisten", "tcp"],
            pass_fds=[writer], stderr=open(folder / "server.txt", "w"))
        os.close(writer)
        number = b""
        while not number.endswith(b"\n"):
            part = os.read(reader, 1)
            if not part:
                sys.exit("no Xvfb")
            number += part
        self.name = ":" + number.decode().strip()
        self.x11, self.xtest = ctypes.CDLL("libX11.so.6"), ctypes.CDLL("libXtst.so.6")
        self.x11.XOpenDisplay.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(self.x11.XOpenDisplay(self.name.encode()))
        self.x11.XStringToKeysym.restype = ctypes.c_ulong

    def press(self, keysym):
        symbol = ctypes.c_ulong(self.x11.XStringToKeysym(keysym.encode()))
        code = self.x11.XKeysymToKeycode(self.handle, symbol)
        for is_press in (1, 0):
            self.xtest.XTestFakeKeyEvent(self.handle, code, is_press, ctypes.c_ulong(0))
        self.x11.XFlush(self.handle)

    def close(self):
        self.server.terminate()
        self.server.wait()


def read_report(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return {}


def wait_for(path, so, process, look_s=0.001):
    """Returns the seconds until the report is so. look_s: seconds between two looks at its time; only a new
    report is read, as reading takes the processor from what is measured."""
    begin, seen = time.perf_counter(), None
    while True:
        written = written_ns(path)
        if written is not None and written != seen:
            seen, now = written, read_report(path)
            if now and so(now):
                return time.perf_counter() - begin
        if process.poll() is not None:
            sys.exit(f"a window ended: {process.args}")
        if time.perf_counter() - begin > PATIENCE_S:
            sys.exit(f"waited {PATIENCE_S} s for {path}")
        time.sleep(look_s)


def written_ns(path):
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


class Window:
    """A window on its own display; the server of another window would draw too."""

    def __init__(self, folder, name, words, size):
        self.folder = folder / name
        self.folder.mkdir()
        self.report = str(self.folder / "report.json")
        self.display = Display(self.folder, *size)
        environment = dict(os.environ, DISPLAY=self.display.name, XDG_STATE_HOME=str(self.folder),
                           XDG_CONFIG_HOME=str(self.folder), XDG_DATA_HOME=str(self.folder))
        self.process = subprocess.Popen([word.replace("REPORT", self.report) for word in words],
                                        env=environment, stdout=open(self.folder / "out.txt", "w"),
                                        stderr=subprocess.STDOUT)
        self.keys = 0
        wait_for(self.report, lambda now: now.get("idle") and now.get("has_run"), self.process)

    def key(self, keysym):
        """Presses a key; returns the seconds until its picture is drawn."""
        self.display.press(keysym)
        self.keys += 1
        return wait_for(self.report, lambda now: now["input"]["keys"] >= self.keys
                        and not now["input"].get("waiting", False), self.process)

    def rows_and_time(self):
        """Returns the decoded steps, and the seconds at which the report of them was written."""
        while True:
            before = written_ns(self.report)
            rows = read_report(self.report)["rows"]
            if written_ns(self.report) == before:
                return rows, before / 1e9

    def close(self):
        self.process.kill()
        self.process.wait()
        self.display.close()


def median_key(window, keysyms, n):
    return statistics.median(window.key(keysyms[i % len(keysyms)]) for i in range(n))


def steps_per_s_beside(window, steps):
    """Returns the steps a second of a run that the window shows."""
    window.key("0")  # no limit of speed
    window.key("space")
    wait_for(window.report, lambda now: now["rows"] >= FIRST, window.process, look_s=0.05)
    rows, begin = window.rows_and_time()
    wait_for(window.report, lambda now: now["rows"] >= FIRST + steps, window.process, look_s=0.05)
    last_rows, end = window.rows_and_time()
    return (last_rows - rows) / (end - begin)


def steps_per_s_alone(keyhole, model, steps):
    """Returns the steps a second of `keyhole decode`, without its start and its prompt."""

    def seconds(tokens):
        begin = time.perf_counter()
        subprocess.run([keyhole, "decode", "--model", model, "--prompt-file", PROMPT, "--tokens", str(tokens),
                        "--ignore-eos", *[word for lane in LANES for word in ("--lane", lane)]],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - begin

    short = seconds(FIRST)
    return steps / (seconds(FIRST + steps) - short)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keyhole", default=str(ROOT / "build/release/keyhole"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="1600x1000")
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--steps", type=int, default=STEPS, help="decoded steps that are timed")
    parser.add_argument("--empty", nargs=1, metavar="REPORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = [int(part) for part in options.size.split("x")]
    if options.empty:
        return empty_window(*size, options.empty[0])
    with tempfile.TemporaryDirectory(prefix="keyhole-felt-") as name:
        measure(options, pathlib.Path(name), size)


def measure(options, folder, size):
    lanes = [word for lane in LANES for word in ("--lane", lane)]
    for which in ("story", "explore"):
        settings = {"arrangement": which, "strips": "off"}
        (folder / f"{which}.json").write_text(json.dumps(settings))
    words = {which: [options.keyhole, "gui", "--report", "REPORT",
                     "--settings", str(folder / f"{which}.json"),
                     "--size", options.size, "--model", options.model, "--prompt-file", str(PROMPT), *lanes]
             for which in ("story", "explore")}
    words["empty"] = [sys.executable, __file__, "--size", options.size, "--empty", "REPORT"]
    windows = {which: Window(folder, which + "-window", words[which], size) for which in words}
    keys = {which: [] for which in words}
    keys["explore, decoding"] = []
    speeds, alone = [], []
    for _ in range(options.rounds):
        for which in words:
            keys[which].append(median_key(windows[which], ["bracketleft", "bracketright"], 16))
        busy = Window(folder, f"busy{len(speeds)}", words["explore"], size)
        speeds.append(steps_per_s_beside(busy, options.steps))
        busy.close()
        alone.append(steps_per_s_alone(options.keyhole, options.model, options.steps))
        busy = Window(folder, f"keys{len(speeds)}", words["explore"], size)
        busy.key("8")  # 35 steps a second: it decodes all the time
        busy.key("space")
        keys["explore, decoding"].append(median_key(busy, ["bracketleft", "bracketright"], 8))
        busy.close()
    for window in windows.values():
        window.close()
    print(f"{options.size}, {options.rounds} rounds in turn; load {os.getloadavg()[0]:.1f} at the end")
    print(f"{'key to picture':<22} {'median ms':>10} {'over empty':>11}   (over the rounds)")
    for which, of in keys.items():
        ratios = [a / b for a, b in zip(of, keys["empty"])]
        print(f"{which:<22} {1000 * statistics.median(of):>10.1f} {statistics.median(ratios):>11.2f}   "
              f"({min(ratios):.2f} .. {max(ratios):.2f})")
    ratios = [a / b for a, b in zip(speeds, alone)]
    print(f"decoding: {statistics.median(speeds):.1f} steps/s beside the window, "
          f"{statistics.median(alone):.1f} alone: {statistics.median(ratios):.2f} "
          f"({min(ratios):.2f} .. {max(ratios):.2f})")


if __name__ == "__main__":
    main()
