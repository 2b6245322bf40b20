// All heads at once: a thumbnail of each head's attention, or one number.

const atlasKinds = [["attention", "Attention"], ["kept", "Tokens kept"], ["watched", "Words kept"]];
let atlasKind = "attention";
let atlasGrid = {across: nHeads, down: nLayers, side: 40, left: 0, top: 0, layersDown: true};
const thumbnails = new Map();  // by lane, head and theme

// The largest attention in each cell: the prompt in blocks, below it the steps that the page has.
function thumbnail(lane, head) {
    const key = `${lane} ${head} ${isDark()}`;
    if (thumbnails.has(key)) return thumbnails.get(key);
    const of = lanes[lane], image = of.prompt >= 0 ? run.prompts[of.prompt] : null;
    const rows = [];
    for (let row = firstRow; row <= of.last_row; ++row)
        if (attentionRow(lane, row, head)) rows.push(row);
    const wide = image ? Math.ceil(nPositions / image.side) : Math.min(nPositions, 64);
    const each = nPositions / wide;
    const high = (image ? image.blocks : 0) + Math.max(Math.min(rows.length, wide), 1);
    const made = document.createElement("canvas");
    made.width = wide;
    made.height = high;
    const context = made.getContext("2d"), pixels = context.createImageData(wide, high);
    const cells = cellColors(), [low, top] = of.scale[head];
    const scale = {map: "viridis", logarithmic: true, low, high: top};
    const put = (x, y, color) => pixels.data.set([...color, 255], 4 * (y * wide + x));
    for (let y = 0; y < high; ++y) for (let x = 0; x < wide; ++x) put(x, y, cells.future);
    for (let y = 0; image && y < image.blocks; ++y)
        for (let x = 0; x <= y; ++x) put(x, y, colorOf(scale, promptValue(image, head, y, x)));
    rows.slice(0, wide).forEach((row, i) => {
        const values = attentionRow(lane, row, head), y = high - Math.min(rows.length, wide) + i;
        for (let x = 0; x < wide; ++x) {
            const best = blockOf(values, x * each, (x + 1) * each);
            if (best !== null) put(x, y, Number.isNaN(best) ? cells.evicted : colorOf(scale, best));
        }
    });
    context.putImageData(pixels, 0, 0);
    thumbnails.set(key, made);
    return made;
}

// The largest value at positions [from, to): NaN if all were evicted, null if none exists.
function blockOf(values, from, to) {
    let best = null;
    const end = Math.min(Math.max(Math.ceil(to), Math.floor(from) + 1), values.length);
    for (let p = Math.floor(from); p < end; ++p) {
        const value = values[p];
        if (best === null || Number.isNaN(best)) best = Number.isNaN(value) ? NaN : Math.max(value, 0);
        else if (value > best) best = value;
    }
    return best;
}

function atlasNumber(lane, head) {
    const g = kvOf(lane, head), row = place.step;
    if (atlasKind === "kept") return nStored(lane, g, row) / (row + 1);
    let n = 0;
    for (let p = run.words.first; p <= run.words.last; ++p) n += isStored(lane, g, p, row) ? 1 : 0;
    return n / (run.words.last - run.words.first + 1);
}

function drawAtlas() {
    const canvas = byId("atlas"), layersDown = nLayers <= 2 * nHeads;
    const across = layersDown ? nHeads : nLayers, down = layersDown ? nLayers : nHeads;
    const room = canvas.parentElement.clientWidth || 800, left = 30, top = 18;
    const side = Math.max(Math.min(Math.floor((room - left) / across), 104), 18);
    const ratio = window.devicePixelRatio || 1, wide = left + side * across, high = top + side * down;
    canvas.width = wide * ratio;
    canvas.height = high * ratio;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
    atlasGrid = {across, down, side, left, top, layersDown};
    const c = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    c.scale(ratio, ratio);
    c.font = "11px system-ui, sans-serif";
    c.fillStyle = style.getPropertyValue("--soft");
    c.textBaseline = "middle";
    for (let i = 0; i < down; ++i) c.fillText((layersDown ? "L" : "H") + i, 0, top + side * (i + 0.5));
    c.textAlign = "center";
    const step = Math.ceil(16 / side);
    for (let i = 0; i < across; i += step)
        c.fillText((layersDown ? "H" : "L") + i, left + side * (i + 0.5), 8);
    c.imageSmoothingEnabled = false;
    for (let head = 0; head < nAll; ++head) drawSquare(c, head, style);
    canvas.setAttribute("aria-label", `All heads of lane ${place.lane}, ${counted(nLayers, "layer")} of ` +
        `${counted(nHeads, "head")}. In focus: ${headName(place.head)}. The arrow keys move the focus; ` +
        "the table below has the numbers.");
}

function squareAt(head) {
    const layer = Math.floor(head / nHeads), h = head % nHeads, {side, left, top, layersDown} = atlasGrid;
    return [left + side * (layersDown ? h : layer), top + side * (layersDown ? layer : h), side];
}

function drawSquare(c, head, style) {
    const [x, y, side] = squareAt(head), inner = side - 3;
    if (atlasKind === "attention") {
        c.drawImage(thumbnail(place.lane, head), x, y, inner, inner);
    } else {
        const share = atlasNumber(place.lane, head);
        const color = colorOf({map: "viridis", low: 0, high: 1}, share);
        c.fillStyle = rgb(color);
        c.fillRect(x, y, inner, inner);
        c.fillStyle = inkOn(color);
        if (side >= 34) c.fillText(percent(share), x + inner / 2, y + inner / 2);
    }
    if (head !== place.head) return;
    c.strokeStyle = style.getPropertyValue("--warm");
    c.lineWidth = 3;
    c.strokeRect(x - 0.5, y - 0.5, inner + 1, inner + 1);
}

function atlasTable() {
    const rows = [];
    for (let head = 0; head < nAll; ++head) {
        const g = kvOf(place.lane, head), values = attentionRow(place.lane, place.step, head);
        const row = [headName(head), kvName(place.lane, g),
            `${nStored(place.lane, g, place.step)} of ${place.step + 1}`];
        if (isSpan(run.words)) {
            let n = 0, sum = 0;
            for (let p = run.words.first; p <= Math.min(run.words.last, place.step); ++p) {
                n += isStored(place.lane, g, p, place.step) ? 1 : 0;
                sum += values && values[p] > 0 ? values[p] : 0;
            }
            row.push(`${n} of ${run.words.last - run.words.first + 1}`,
                values ? numberText(sum) : "not in this page");
        }
        rows.push(row);
    }
    const titles = ["head", "KV head", "tokens kept"];
    if (isSpan(run.words))
        titles.push(`tokens of “${run.words.text}” kept`, `attention on “${run.words.text}”`);
    return table(`Lane ${place.lane} after step ${place.step}`, titles, rows);
}

function setupAtlas() {
    const canvas = byId("atlas");
    canvas.addEventListener("click", event => {
        const box = canvas.getBoundingClientRect(), {side, left, top, layersDown, across, down} = atlasGrid;
        const x = Math.floor((event.clientX - box.left - left) / side);
        const y = Math.floor((event.clientY - box.top - top) / side);
        if (x < 0 || y < 0 || x >= across || y >= down) return;
        go({head: layersDown ? y * nHeads + x : x * nHeads + y});
    });
    canvas.addEventListener("keydown", event => {
        const {layersDown} = atlasGrid;
        const across = layersDown ? 1 : nHeads, down = layersDown ? nHeads : 1;
        const by = {ArrowLeft: -across, ArrowRight: across, ArrowUp: -down, ArrowDown: down}[event.key];
        if (by === undefined) return;
        event.preventDefault();
        event.stopPropagation();
        const head = place.head + by;
        if (head >= 0 && head < nAll) go({head});
    });
    canvas.closest("section").querySelector("details").addEventListener("toggle", drawAtlasTable);
}
function drawAtlasTable() {
    const part = byId("atlas-table");
    if (part.closest("details").open) part.replaceChildren(atlasTable());
}

drawers.push(before => {
    if (!["lane", "head", "step"].some(name => before[name] !== place[name])) return;
    const kinds = isSpan(run.words) ? atlasKinds : atlasKinds.slice(0, 2);
    drawChoices("atlas-choice", kinds, atlasKind, kind => {
        atlasKind = kind;
        go({});
        drawAtlas();
        drawChoices("atlas-choice", kinds, atlasKind, () => {});
    });
    byId("atlas-hint").textContent = `Lane ${place.lane}, ${lanes[place.lane].paper}. ` + {
        attention: "Each square is a head: across the text, down the steps. A pixel shows the highest " +
            "attention of its cells.",
        kept: `The share of all tokens that each head keeps after step ${place.step}.`,
        watched: `How much of “${run.words?.text}” each head keeps after step ${place.step}.`}[atlasKind];
    drawAtlas();
    drawAtlasTable();
});
