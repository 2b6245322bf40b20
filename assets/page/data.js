// Reads what the program wrote: the run as JSON, and its numbers as one compressed block. The functions below
// give them by lane, row (step), head and position, as the program's own do.

const run = JSON.parse(document.getElementById("run").textContent);
const nPrompt = run.n_prompt, firstRow = run.first_row, lastRow = run.last_row, nPositions = lastRow + 1;
const nHeads = run.n_heads, nLayers = run.n_layers, nAll = nLayers * nHeads;
const lanes = run.lanes;

// A number of 16 bits. The table makes a large section quick to read.
const halves = new Float32Array(65536);
for (let bits = 0; bits < 65536; ++bits) {
    const exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const size = exponent === 0 ? mantissa * 2 ** -24
        : exponent < 31 ? (1 + mantissa / 1024) * 2 ** (exponent - 15) : mantissa ? NaN : Infinity;
    halves[bits] = bits & 0x8000 ? -size : size;
}

// The bytes of a section's numbers lie in planes, all lowest bytes first: they compress better so.
function section(bytes, name) {
    const part = run.sections[name];
    if (!part) return null;
    const {at, count, type} = part;
    const types = {i32: Int32Array, f32: Float32Array, u16: Uint16Array, f16: Uint16Array, u8: Uint8Array};
    const Type = types[type];
    const width = Type.BYTES_PER_ELEMENT, out = new Uint8Array(count * width);
    for (let plane = 0; plane < width; ++plane)
        for (let i = 0, from = at + plane * count; i < count; ++i) out[i * width + plane] = bytes[from + i];
    const values = new Type(out.buffer);
    return type === "f16" ? Float32Array.from(values, bits => halves[bits]) : values;
}

// Rows of heads lie one after the other, each with a value for every position up to its own.
function rowsOf(bytes, name, nUnits) {
    const units = section(bytes, name + ".units"), begins = new Map();
    if (!units) return {values: null, begins};
    let at = 0;
    for (let i = 0; i < units.length; i += 2) {
        begins.set(units[i] * nUnits + units[i + 1], at);
        at += units[i] + 1;
    }
    return {values: section(bytes, name), begins};
}

async function unpack() {
    const text = document.getElementById("numbers").textContent.trim();
    const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    lanes.forEach((lane, i) => {
        lane.nKv = lane.kv.length;
        lane.evictedAt = section(bytes, `lane${i}.evicted_at`);
        lane.attention = rowsOf(bytes, `lane${i}.attention`, nAll);
        lane.scores = rowsOf(bytes, `lane${i}.scores`, lane.nKv);
        lane.thresholds = section(bytes, `lane${i}.thresholds`);
    });
    run.prompts = run.prompt_images.map((image, i) => ({...image, codes: section(bytes, `prompt${i}`)}));
}

// What a lane was set to, each with the steps that it was: "H2O to step 372, TOVA from step 373". part: 1 for
// names, 2 for specs.
function settingsText(lane, part) {
    const all = lanes[lane].settings;
    if (all.length === 1) return all[0][part];
    return all.map((one, i) => {
        const from = i === 0 ? "" : ` from step ${one[0]}`;
        return one[part] + from + (i + 1 < all.length ? ` to step ${all[i + 1][0] - 1}` : "");
    }).join(", ");
}

const isSame = (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b));
const headName = head => `L${Math.floor(head / nHeads)}.H${head % nHeads}`;
const kvOf = (lane, head) => lanes[lane].kv_of[head];
const kvName = (lane, g) => `L${lanes[lane].kv[g][0]} KV head ${lanes[lane].kv[g][1]}`;
const word = (lane, p) => p < lanes[lane].tokens.length ? run.strings[lanes[lane].tokens[p]] : "";

const evictedAt = (lane, g, p) => lanes[lane].evictedAt[g * nPositions + p];
function isStored(lane, g, p, row) {
    const at = evictedAt(lane, g, p);
    return p <= row && (at < 0 || at > row);
}
function isAttended(lane, g, p, row) {
    const at = evictedAt(lane, g, p);
    return p <= row && (at < 0 || at >= row);
}
function nKeeping(lane, p, row) {
    let n = 0;
    for (let g = 0; g < lanes[lane].nKv; ++g) n += isStored(lane, g, p, row) ? 1 : 0;
    return n;
}
function nKeepingAll(lane, span, row) {
    let n = 0;
    for (let g = 0; g < lanes[lane].nKv; ++g) {
        let all = 1;
        for (let p = span.first; p <= span.last; ++p) all &= isStored(lane, g, p, row);
        n += all;
    }
    return n;
}
function nStored(lane, g, row) {
    let n = 0;
    for (let p = 0; p <= row; ++p) n += isStored(lane, g, p, row) ? 1 : 0;
    return n;
}

function unit(rows, row, index, nUnits) {
    const at = rows.values ? rows.begins.get(row * nUnits + index) : undefined;
    return at === undefined ? null : rows.values.subarray(at, at + row + 1);
}
// Attention of a row by position: NaN where the position was evicted before it, -1 where it was stored but
// hidden. null: the page does not have the row of this head.
const attentionRow = (lane, row, head) => unit(lanes[lane].attention, row, head, nAll);
// Scores of a row, NaN where nothing competed.
const scoreRow = (lane, row, g) => unit(lanes[lane].scores, row, g, lanes[lane].nKv);
function threshold(lane, row, g) {
    const all = lanes[lane].thresholds;
    return all ? all[(row - firstRow) * lanes[lane].nKv + g] : NaN;
}
// One value of a lane's step, such as kl; null: none.
function ofStep(lane, name, row) {
    const values = lanes[lane].steps[name];
    return values ? values[row - firstRow] : null;
}

// The prompt's attention in blocks: 256 levels on a logarithmic scale from 1e-6 to 1, level 0 for none.
function promptValue(image, head, y, x) {
    const size = image.blocks, triangle = size * (size + 1) / 2;
    const code = image.codes[head * triangle + y * (y + 1) / 2 + x];
    return code === 0 ? 0 : 10 ** (-6 + 6 * (code - 1) / 254);
}

// Returns a number with n digits. A number in the middle of two goes to the even digit, as the program does.
function rounded(value, n) {
    const [digits, exponent] = value.toExponential(60).split("e"), all = digits.replace(/[-.]/g, "");
    if (!/^50*$/.test(all.slice(n)) || Number(all[n - 1]) % 2 === 1) return Number(value.toPrecision(n));
    return Math.sign(value) * Number(`${all[0]}.${all.slice(1, n)}e${exponent}`);
}

// Numbers as the window writes them.
function numberText(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return "NaN";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 100) return rounded(value, Math.floor(Math.log10(size)) + 2).toFixed(1);
    if (size >= 0.001) return String(rounded(value, 4));
    return rounded(value, 2).toExponential(1).replace(/e([+-])(\d)$/, "e$10$2");
}
const percent = share => `${Math.round(share * 100)} %`;
const counted = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;
