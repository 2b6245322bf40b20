// The program's own colour tables and scales: engine/figure/colormap.h says how a value becomes a colour.

const tables = Object.fromEntries(Object.entries(run.colors.maps).map(([name, hex]) =>
    [name, Uint8Array.from(hex.match(/../g), part => parseInt(part, 16))]));
const isDark = () => document.documentElement.dataset.theme === "dark";
const cellColors = () => run.colors.cells[isDark() ? "dark" : "light"];
const laneLook = (list, lane) => list[run.lanes[lane].look % list.length];
const laneColor = lane => laneLook(run.colors.lanes, lane)[isDark() ? 1 : 0];
const rgb = color => `rgb(${color[0]} ${color[1]} ${color[2]})`;

// Logarithmic, from 1e-4 (or 1e-3 of the largest value when that is lower) to the largest value rounded up to
// 1, 2 or 5 x 10^n.
function attentionScale(largest) {
    if (!(largest > 0) || !Number.isFinite(largest)) largest = 1;
    const power = 10 ** Math.floor(Math.log10(largest));
    const times = [1, 2, 5].find(m => m * power >= largest * 0.999) ?? 10;
    const high = times * power;
    return {map: "viridis", logarithmic: true, low: Math.min(1e-4, high * 1e-3), high};
}
function scoreScale(largest) {
    const high = largest > 0 ? largest : 1;
    return {map: "viridis", logarithmic: true, low: high * 1e-4, high};
}
const differenceMap = () => isDark() ? "rdbu-dark" : "rdbu";
function differenceScale(largest) {
    const high = largest > 0 ? largest : 1;
    return {map: differenceMap(), logarithmic: true, diverging: true, low: high * 1e-3, high};
}
// Of 1, 0 and -1: not to the dark ends, which the hatch would hide.
const maskDifferenceScale = () => ({map: differenceMap(), diverging: true, low: 0, high: 1.5});

// Math.fround: the program computes in 32 bits, so that a value at an edge gets the same colour here.
function colorIndex(scale, value) {
    const f = Math.fround;
    const offset = scale.logarithmic ? f(Math.log2(f(scale.low))) : f(scale.low);
    const factor = f(1 / f((scale.logarithmic ? f(Math.log2(f(scale.high))) : f(scale.high)) - offset));
    const a = scale.diverging ? Math.abs(value) : value;
    let u = scale.logarithmic ? (a > 0 ? f(Math.log2(a)) : offset) : a;
    u = Math.min(Math.max(f(f(u - offset) * factor), 0), 1);
    if (scale.diverging) u = f(0.5 + 0.5 * Math.sign(value) * u);
    return Math.min(Math.floor(u * 256), 255);
}
function colorOf(scale, value) {
    const table = tables[scale.map], at = 3 * colorIndex(scale, value);
    return [table[at], table[at + 1], table[at + 2]];
}
// Black or white, whichever can be read on a colour.
const inkOn = ([r, g, b]) => (r * 299 + g * 587 + b * 114) / 1000 > 140 ? "#111" : "#fff";
