"""Prints assets/lab/handout.html to handout.pdf beside it, by Chromium:

    keyhole check --handout assets/lab/handout.html && python3 tests/page/print_handout.py

The last line of the PDF, behind its end, names the page that it was made from: a test compares them.
"""

import base64
import os
import pathlib

from browsers import Chromium

MARGIN_CM = 1.6


def fnv1a(data):
    digest = 0xcbf29ce484222325
    for byte in data:
        digest = ((digest ^ byte) * 0x100000001b3) & 0xffffffffffffffff
    return digest


def main():
    lab = pathlib.Path(__file__).resolve().parents[2] / "assets" / "lab"
    page = lab / "handout.html"
    browser = Chromium(1000, 1400)
    try:
        browser.go(page.as_uri())
        made = browser.ask("POST", browser.session + "/print", {
            "page": {"width": 21.0, "height": 29.7}, "background": True, "shrinkToFit": True,
            "margin": {side: MARGIN_CM for side in ("top", "bottom", "left", "right")}})
    finally:
        browser.close()
    pdf = base64.b64decode(made).rstrip(b"\n") + f"\n% page {fnv1a(page.read_bytes()):016x}\n".encode()
    part = lab / "handout.pdf.part"
    part.write_bytes(pdf)
    os.replace(part, lab / "handout.pdf")
    print(f"{lab / 'handout.pdf'}: {len(pdf)} bytes")


if __name__ == "__main__":
    main()
