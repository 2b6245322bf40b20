#!/usr/bin/env python3
"""Writes colormap_tables.inc: 256 entries of 8-bit RGB for each colour table.

viridis and cividis: the CC0 data of matplotlib (lib/matplotlib/_cm_listed.py; pass its path), rounded to \
8 bits.
rdbu: computed here in Oklab, blue (negative) over near-white (zero) to red (positive); lightness is the \
same on both
sides and falls evenly with distance from zero. rdbu_dark: the same hues for a dark ground; zero is grey, \
and lightness rises
with distance from zero. gray: light (small) to black (large), for print.

    python3 colormap_tables.py PATH/_cm_listed.py > colormap_tables.inc
"""
import math
import sys
import types


def listed(path):
    # The file imports matplotlib.colors for objects that are not needed here.
    fake = types.ModuleType("matplotlib.colors")
    fake.ListedColormap = lambda *args, **kwargs: None
    package = types.ModuleType("matplotlib")
    package.colors = fake
    sys.modules.update({"matplotlib": package, "matplotlib.colors": fake})
    source = open(path).read().replace("from .colors", "from matplotlib.colors")
    names = {}
    exec(compile(source, path, "exec"), names)
    return names


def to_linear(c):
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4


def to_srgb(c):
    return 12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055


def oklab(rgb):  # Ottosson 2020
    r, g, b = (to_linear(c) for c in rgb)
    l = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    m = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    s = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
            1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
            0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s)


def rgb_from_oklab(lab):
    L, a, b = lab
    l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3
    m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s = (L - 0.0894841775 * a - 1.2914855480 * b) ** 3
    rgb = (4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
           -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
           -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)
    return tuple(min(1.0, max(0.0, to_srgb(max(0.0, c)))) for c in rgb)


def ramp(stops, t):
    """stops: (t, lab) ascending; straight in Oklab."""
    for (t0, a), (t1, b) in zip(stops, stops[1:]):
        if t <= t1:
            u = (t - t0) / (t1 - t0)
            return tuple(x + u * (y - x) for x, y in zip(a, b))
    return stops[-1][1]


def rdbu():
    return diverging(zero=(0.975, 0.0, 0.0),
                     blue=((0.66, -0.045, -0.105), (0.36, -0.020, -0.115)),
                     red=((0.66, 0.125, 0.070), (0.36, 0.130, 0.050)))


def rdbu_dark():
    return diverging(zero=(0.50, 0.0, 0.0),
                     blue=((0.66, -0.050, -0.130), (0.86, -0.055, -0.065)),
                     red=((0.66, 0.130, 0.085), (0.86, 0.055, 0.075)))


def diverging(zero, blue, red):
    table = []
    for i in range(256):
        # Entries 127 and 128 are both the colour of zero.
        distance = max(0, (127 - i) if i < 128 else (i - 128)) / 127
        middle, end = blue if i < 128 else red
        table.append(rgb_from_oklab(ramp([(0, zero), (0.55, middle), (1, end)], distance)))
    return table


def gray():
    return [rgb_from_oklab((0.97 - 0.97 * i / 255, 0, 0)) for i in range(256)]


def write(name, table):
    assert len(table) == 256
    print(f"constexpr std::array<Rgb8, 256> k{name} = {{{{")
    cells = ["{%d, %d, %d}," % tuple(math.floor(255 * c + 0.5) for c in rgb) for rgb in table]
    for i in range(0, 256, 6):
        print("    " + " ".join(cells[i:i + 6]))
    print("}};")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    data = listed(sys.argv[1])
    print("// Written by colormap_tables.py. viridis, cividis: matplotlib's data, CC0.")
    write("Viridis", data["_viridis_data"])
    write("Cividis", data["_cividis_data"])
    write("Rdbu", rdbu())
    write("RdbuDark", rdbu_dark())
    write("Gray", gray())
