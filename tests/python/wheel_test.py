"""Tests the wheel that .cmake/make_wheel.py makes: of a small folder, and the real one where the target
`wheel` was built. Run by ctest as Python.Wheel:

    python3 tests/python/wheel_test.py SOURCES BUILD
"""

import base64
import csv
import hashlib
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCES, BUILD = map(pathlib.Path, sys.argv[1:3])
MODULE = SOURCES / "assets" / "python" / "keyhole.py"
spec = importlib.util.spec_from_file_location("make_wheel", SOURCES / ".cmake" / "make_wheel.py")
make_wheel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_wheel)

PROGRAM = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
echo "program $*"
cat "$here/../share/keyhole/assets/word" "$here/../lib/keyhole/libone.so.1"
"""


def fill(prefix):
    """Fills a folder as an installation does, with a library of three names."""
    for name, text in {"bin/keyhole": PROGRAM, "share/keyhole/assets/word": "asset\n",
                       "lib/keyhole/libone.so.1.2":
                           "\x7fELF GLIBC_2.30\0 GLIBC_2.4\0 libone.so.1\0\n"}.items():
        path = prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (prefix / "bin/keyhole").chmod(0o755)
    (prefix / "lib/keyhole/libone.so.1").symlink_to("libone.so.1.2")
    (prefix / "lib/keyhole/libone.so").symlink_to("libone.so.1")


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        fill(cls.root / "prefix")
        cls.small = make_wheel.make_wheel(cls.root / "prefix", MODULE, "1.2", cls.root / "out")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def wheels(self):
        return [self.small, *(BUILD / "wheel").glob("keyhole-*.whl")]

    def test_its_name_is_of_the_newest_c_library(self):
        machine = os.uname().machine
        self.assertEqual(self.small.name, f"keyhole-1.2-py3-none-manylinux_2_30_{machine}.whl")

    def test_every_member_is_recorded_with_its_hash(self):
        for path in self.wheels():
            with self.subTest(path.name), zipfile.ZipFile(path) as archive:
                self.assertIsNone(archive.testzip())
                version = path.name.split("-")[1]
                record = f"keyhole-{version}.dist-info/RECORD"
                recorded = {}
                for name, digest, size in csv.reader(io.StringIO(archive.read(record).decode())):
                    self.assertNotIn(name, recorded)
                    recorded[name] = (digest, size)
                self.assertEqual(recorded.pop(record), ("", ""))
                self.assertEqual(sorted([*recorded, record]), sorted(archive.namelist()))
                for name, (digest, size) in recorded.items():
                    content = archive.read(name)
                    sha = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                    self.assertEqual((digest, size), (f"sha256={sha}", str(len(content))), name)

    def test_metadata_asks_for_nothing_to_fetch(self):
        for path in self.wheels():
            version, tag = path.name.split("-")[1], path.name[:-4].split("-", 2)[2]
            with self.subTest(path.name), zipfile.ZipFile(path) as archive:
                about = f"keyhole-{version}.dist-info"
                text = archive.read(f"{about}/METADATA").decode()
                self.assertIn(f"Name: keyhole\nVersion: {version}\n", text)
                for line in text.splitlines():
                    if line.startswith("Requires-Dist:"):
                        self.assertIn("extra ==", line)
                wheel = archive.read(f"{about}/WHEEL").decode()
                self.assertIn(f"\nTag: {tag}\n", wheel)
                self.assertIn("Root-Is-Purelib: false\n", wheel)

    def test_a_library_has_the_one_name_that_is_looked_for(self):
        with zipfile.ZipFile(self.small) as archive:
            libraries = [name for name in archive.namelist() if "libone" in name]
        self.assertEqual(libraries, ["keyhole-1.2.data/data/lib/keyhole/libone.so.1"])

    def test_equal_files_make_equal_wheels(self):
        again = make_wheel.make_wheel(self.root / "prefix", MODULE, "1.2", self.root / "again")
        self.assertEqual(again.read_bytes(), self.small.read_bytes())

    def test_pip_puts_program_and_module_into_a_clean_environment(self):
        env = self.root / "env"
        made = subprocess.run([sys.executable, "-m", "venv", env], capture_output=True, check=False)
        if made.returncode != 0:
            self.skipTest("no venv; install python3-venv")
        clean = {key: value for key, value in os.environ.items() if key not in ("KEYHOLE", "PYTHONPATH")}

        def run(*words):
            done = subprocess.run([env / "bin" / words[0], *words[1:]], capture_output=True, text=True,
                                  env={**clean, "PATH": "/usr/bin:/bin"}, cwd=self.root, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        run("pip", "install", "--no-index", "--disable-pip-version-check", self.small)
        said = run("keyhole", "a", "b")
        self.assertTrue(said.startswith("program a b\nasset\n\x7fELF"), said)
        # The module starts the program of its own environment, whatever the PATH, and needs no numpy for it.
        self.assertEqual(run("python", "-c", "import keyhole; print(keyhole.start('info'), end='')"),
                         run("keyhole", "info"))
        self.assertEqual(run("python", "-c", "import keyhole\ntry: keyhole.open_trace('x')\n"
                                             "except keyhole.Error as error: print(error)"),
                         "arrays need numpy: pip install numpy\n")
        run("pip", "uninstall", "--yes", "keyhole")
        self.assertFalse((env / "bin/keyhole").exists() or (env / "share/keyhole/assets/word").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
