"""Makes a Python wheel of an installed Keyhole and its module:

    python3 make_wheel.py PREFIX MODULE VERSION OUT

PREFIX is a folder that `cmake --install` filled, with libraries, as the archive has it. pip puts its files
below the environment's own prefix, where the program finds libraries and assets by their place beside its
own. Nothing is compiled or fetched at installation. Equal files make equal wheels.
"""

import base64
import hashlib
import pathlib
import platform
import re
import sys
import zipfile

SUMMARY = "playground for KV-cache eviction in language models"
TIME = (2020, 1, 1, 0, 0, 0)  # of every member, so that equal files make equal wheels


def members_of(prefix):
    """Returns name -> path of the files below a folder. A link stands for its file, which has no other name
    in the wheel: zips that pip reads have no links."""
    found = {path.relative_to(prefix).as_posix(): path
             for path in sorted(prefix.rglob("*")) if path.is_file()}
    targets = {path.resolve() for path in found.values() if path.is_symlink()}
    names = {name: path for name, path in found.items()
             if path.is_symlink() or path.resolve() not in targets}
    # Of a chain of links the last one has the name that the loader looks for.
    by_target = {}
    for name, path in names.items():
        if path.is_symlink():
            by_target.setdefault(path.resolve(), []).append(name)
    for others in by_target.values():
        needed = max(others, key=lambda name: is_soname(prefix / name))
        for name in others:
            if name != needed:
                del names[name]
    return names


def is_soname(path):
    """Returns whether a library calls itself by the name of this path."""
    return path.name.encode() + b"\0" in path.read_bytes()


def platform_tag(paths):
    """Returns "manylinux_2_36_x86_64": the newest version of the C library that the files ask for."""
    minor = 17  # the oldest that pip knows by such a name
    for path in paths:
        content = path.read_bytes()
        if content.startswith(b"\x7fELF"):
            minor = max([minor, *map(int, re.findall(rb"GLIBC_2\.(\d+)\0", content))])
    return f"manylinux_2_{minor}_{platform.machine()}"


def metadata(version):
    return (f"Metadata-Version: 2.1\nName: keyhole\nVersion: {version}\nSummary: {SUMMARY}\n"
            "Requires-Python: >=3.9\nProvides-Extra: arrays\nRequires-Dist: numpy; extra == \"arrays\"\n\n"
            "The program `keyhole`, and the module `keyhole`, which reads what it writes into numpy's\n"
            "arrays, starts it, and shows its pictures in a notebook. `keyhole help` has the manual.\n")


def wheel_text(tag):
    return f"Wheel-Version: 1.0\nGenerator: keyhole\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def make_wheel(prefix, module, version, out):
    """Writes the wheel into the folder and returns its path."""
    files = members_of(prefix)
    if "bin/keyhole" not in files:
        raise SystemExit(f"make_wheel: {prefix} has no bin/keyhole")
    tag = platform_tag(files.values())
    about, data = f"keyhole-{version}.dist-info", f"keyhole-{version}.data"
    contents = {"keyhole.py": module.read_bytes()}
    for name, path in files.items():
        place = f"{data}/scripts/{name[4:]}" if name.startswith("bin/") else f"{data}/data/{name}"
        contents[place] = path.read_bytes()
    contents[f"{about}/METADATA"] = metadata(version).encode()
    contents[f"{about}/WHEEL"] = wheel_text(tag).encode()
    record = f"{about}/RECORD"
    lines = "".join(record_line(name, content) for name, content in contents.items())
    contents[record] = (lines + record + ",,\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("keyhole-*.whl"):
        old.unlink()
    path = out / f"keyhole-{version}-py3-none-{tag}.whl"
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, content in contents.items():
            member = zipfile.ZipInfo(name, TIME)
            member.compress_type = zipfile.ZIP_DEFLATED
            is_program = f"{data}/scripts/" in name
            member.external_attr = (0o100755 if is_program else 0o100644) << 16
            archive.writestr(member, content)
    part.replace(path)
    return path


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    made = make_wheel(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3],
                      pathlib.Path(sys.argv[4]))
    print(f"{made}  {made.stat().st_size / 1e6:.1f} MB")
