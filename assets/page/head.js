// The focused head: attention, mask or score over all steps and positions, of one lane, of all, or the
// difference of two.

const rowHigh = () => Math.min(Math.max(Math.floor(360 / (lastRow - firstRow + 1)), 3), 18);
let drawnMaps = [];  // what each canvas shows, for the pointer

// What a map shows of a row, by position: NaN where nothing is stored, null if the page does not have it.
function mapRow(lane, row, head, mode) {
    if (row > lanes[lane].last_row) return null;
    if (mode === "score") return scoreRow(lane, row, kvOf(lane, head));
    if (mode === "attention") return attentionRow(lane, row, head);
    const g = kvOf(lane, head), out = new Float32Array(row + 1);
    // 1: kept; 0.5: seen for the last time; NaN: evicted.
    for (let p = 0; p <= row; ++p)
        out[p] = isStored(lane, g, p, row) ? 1 : isAttended(lane, g, p, row) ? 0.5 : NaN;
    return out;
}
// Lane a minus lane b. Attention that a lane does not give counts as 0.
function differenceRow(a, b, row, head, mode) {
    const of = mapRow(a, row, head, mode), other = mapRow(b, row, head, mode);
    if (!of || !other) return null;
    return of.map((value, p) => {
        const has = mode === "mask" ? value === 1 : value >= 0;
        const its = mode === "mask" ? other[p] === 1 : other[p] >= 0;
        if (!has && !its) return NaN;
        return mode === "mask" ? has - its : (has ? value : 0) - (its ? other[p] : 0);
    });
}

// What the learned sink of a head takes of a row: what its tokens leave. null: the row is not in the page.
function sinkShare(lane, row, head) {
    const values = row > lanes[lane].last_row ? null : attentionRow(lane, row, head);
    return values && Math.max(1 - values.reduce((sum, value) => value > 0 ? sum + value : sum, 0), 0);
}

function largestOf(rows) {
    let largest = 0;
    for (const values of rows)
        if (values) for (const value of values) if (Math.abs(value) > largest) largest = Math.abs(value);
    return largest;
}

function mapOf(lane, other) {
    const {head, mode} = place, rows = [];
    for (let row = firstRow; row <= lastRow; ++row)
        rows.push(other === null ? mapRow(lane, row, head, mode)
            : differenceRow(lane, other, row, head, mode));
    const [low, high] = lanes[lane].scale[head];
    let scale = null;
    if (other !== null) scale = mode === "mask" ? maskDifferenceScale() : differenceScale(largestOf(rows));
    else if (mode === "attention")
        scale = {map: "viridis", logarithmic: true, low, high};
    else if (mode === "score") scale = scoreScale(largestOf(rows));
    return {lane, other, mode, head, rows, scale};
}

// The colour of positions [from, to) of a row: null for the hatch of evicted cells.
function cellColor(map, values, from, to) {
    const cells = cellColors();
    if (!values) return cells.missing;
    let best = NaN, hidden = false, last = false, kept = 0, n = 0;
    const end = Math.min(Math.max(Math.ceil(to), Math.floor(from) + 1), values.length);
    for (let p = Math.floor(from); p < end; ++p, ++n) {
        const value = values[p];
        if (map.mode === "mask" && map.other === null) {
            last ||= value === 0.5;
            kept += value === 1 ? 1 : 0;
        } else if (value === -1 && map.other === null) hidden = true;
        else if (!Number.isNaN(value) && !(Math.abs(value) <= Math.abs(best))) best = value;
    }
    if (n === 0) return cells.future;
    if (map.mode === "mask" && map.other === null)
        return last ? cells.last_seen : kept === 0 ? null : cells.kept.map((c, i) =>
            Math.round(c * kept / n + cells.evicted[i] * (1 - kept / n)));
    if (Number.isNaN(best)) return hidden ? cells.hidden : null;
    return colorOf(map.scale, best);
}

function promptColor(map, image, y, x) {
    if (map.mode !== "attention" || map.other !== null || !image) return cellColors().missing;
    return colorOf(map.scale, promptValue(image, map.head, y, x));
}

function drawMap(canvas, map) {
    const ratio = window.devicePixelRatio || 1, wide = canvas.parentElement.clientWidth || 600;
    const sink = run.has_sinks && map.mode === "attention" && map.other === null ? 22 : 0;
    const left = (wide < 500 ? 40 : 84) + sink, plot = wide - left, each = rowHigh();
    const image = lanes[map.lane].prompt >= 0 ? run.prompts[lanes[map.lane].prompt] : null;
    const withPrompt = image !== null && map.mode === "attention" && map.other === null;
    const above = withPrompt ? Math.round(Math.min(plot * nPrompt / nPositions * 0.36, 230)) : 0;
    const gap = above ? 6 : 0, high = above + gap + each * map.rows.length + 18;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    canvas.style.height = `${high}px`;
    Object.assign(map, {left, plot, sink, above: above + gap, each, canvas});
    const c = canvas.getContext("2d"), cells = cellColors();
    const w = Math.round(plot * ratio), h = Math.round((high - 18) * ratio);
    const pixels = c.createImageData(w, h), data = pixels.data;
    const stripe = 2 * ratio, period = 6 * ratio;
    const put = (x, y, color) => {
        const shown = color ?? ((x + y) % period < stripe ? cells.hatch : cells.evicted);
        const at = 4 * (y * w + x);
        data[at] = shown[0], data[at + 1] = shown[1], data[at + 2] = shown[2], data[at + 3] = 255;
    };
    if (withPrompt)
        for (let y = 0; y < Math.round(above * ratio); ++y) {
            const by = Math.min(Math.floor(y / (above * ratio) * image.blocks), image.blocks - 1);
            for (let x = 0; x < w; ++x) {
                const bx = Math.floor(x / w * nPositions / image.side);
                if (bx <= by) put(x, y, promptColor(map, image, by, bx));
            }
        }
    map.rows.forEach((values, i) => {
        const row = firstRow + i;
        if (row > place.step) return;
        const top = Math.round((above + gap + i * each) * ratio);
        const bottom = Math.round((above + gap + (i + 1) * each) * ratio);
        for (let x = 0; x < w; ++x) {
            const from = x / w * nPositions, to = (x + 1) / w * nPositions;
            if (Math.floor(from) > row) break;
            const color = cellColor(map, values, from, to);
            for (let y = top; y < bottom; ++y) put(x, y, color);
        }
    });
    c.putImageData(pixels, Math.round(left * ratio), 0);
    drawMapMarks(c, map, ratio, high);
}

// The learned sink, no token, has a column of its own before the first token.
function drawSinks(c, map, high) {
    const x = map.left - map.sink;
    map.rows.forEach((_, i) => {
        const row = firstRow + i, share = sinkShare(map.lane, row, map.head);
        if (row > place.step) return;
        c.fillStyle = rgb(share === null ? cellColors().missing : colorOf(map.scale, share));
        c.fillRect(x, map.above + i * map.each, map.sink - 4, map.each);
    });
    c.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--soft");
    c.fillText("sink", x - 2, high - 8);
}

function drawMapMarks(c, map, ratio, high) {
    const style = getComputedStyle(document.documentElement), {left, plot, above, each} = map;
    c.scale(ratio, ratio);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.fillStyle = style.getPropertyValue("--soft");
    const every = Math.ceil(13 / each);
    c.save();
    c.beginPath();
    c.rect(0, 0, left - map.sink - 6, high);
    c.clip();
    for (let i = 0; i < map.rows.length; i += every) {
        const row = firstRow + i;
        c.fillText(`${row} ${left > 50 ? bareWord(word(map.lane, row)) : ""}`, 0, above + (i + 0.5) * each);
    }
    if (above > 20) c.fillText("prompt", 0, above / 2);
    c.restore();
    if (map.sink) drawSinks(c, map, high);
    c.textAlign = "center";
    const apart = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
        .find(d => d / nPositions * plot > 44) ?? 1e4;
    for (let p = 0; p <= lastRow; p += apart)
        c.fillText(String(p), Math.min(left + (p + 0.5) / nPositions * plot, left + plot - 10), high - 8);
    c.strokeStyle = style.getPropertyValue("--warm");
    c.lineWidth = 1.5;
    const x = left + (place.token + 0.5) / nPositions * plot, y = above + (place.step - firstRow) * each;
    if (place.token >= 0) {
        c.beginPath();
        c.moveTo(x, 0);
        c.lineTo(x, high - 18);
        c.globalAlpha = 0.65;
        c.stroke();
        c.globalAlpha = 1;
    }
    c.strokeRect(left, y - 0.5, plot - 1, each + 1);
}

function headTitle(mode) {
    const layer = Math.floor(place.head / nHeads), h = place.head % nHeads, [owner, index] =
        lanes[place.lane].kv[kvOf(place.lane, place.head)];
    if (mode === "attention") return `Attention of layer ${layer}, head ${h}`;
    return `${mode === "mask" ? "Kept tokens" : "Scores"} of layer ${owner}, KV head ${index}`;
}
const laneTitle = lane => `${run.about.model} · lane ${lane}: ${settingsText(lane, 2)}`;

// What the maps are of: [lane, lane to subtract or null].
function shownMaps() {
    if (place.with === "all") return lanes.map((_, lane) => [lane, null]);
    return [[place.lane, place.with === "" ? null : Number(place.with)]];
}

function headFigure(lane, other) {
    const words = place.mode === "mask" ? "kept tokens" : place.mode === "score" ? "scores" : "attention";
    const title = other === null ? `Lane ${lane}, ${lanes[lane].paper}`
        : `Difference of ${words}: lane ${lane}, ${lanes[lane].paper}, ` +
            `minus lane ${other}, ${lanes[other].paper}`;
    const canvas = el("canvas", {tabindex: "0", role: "img", "data-lane": lane,
        "aria-label": `${headTitle(place.mode)}, lane ${lane}. Arrow keys move the picked word and the ` +
            "step; the numbers of the step are in the table below."});
    const small = other === null ? laneTitle(lane) : `${laneTitle(lane)} minus ${laneTitle(other)}`;
    return el("figure", {class: "head"}, el("figcaption", {}, title, el("small", {}, small)), canvas);
}

function drawHeads() {
    byId("head-title").textContent = headTitle(place.mode);
    drawChoices("mode-choice", [["attention", "Attention"], ["mask", "Kept tokens"], ["score", "Scores"]],
        place.mode, mode => go({mode}));
    const others = lanes.map((of, i) => [String(i), `minus ${i} ${of.paper}`])
        .filter((_, i) => i !== place.lane);
    drawChoices("with-choice", lanes.length < 2 ? [] : [["", `${place.lane} ${lanes[place.lane].paper}`],
        ["all", "All lanes"], ...others], place.with, other => go({with: other}));
    const figures = shownMaps().map(([lane, other]) => headFigure(lane, other));
    byId("heads").classList.toggle("several", figures.length > 1);
    const focused = document.activeElement?.closest?.("#heads canvas")?.dataset.lane;
    fill("heads", ...figures);
    drawnMaps = shownMaps().map(([lane, other], i) => {
        const map = mapOf(lane, other), canvas = figures[i].querySelector("canvas");
        drawMap(canvas, map);
        listenTo(canvas, map);
        if (focused === String(lane)) canvas.focus({preventScroll: true});
        return map;
    });
    drawLegend(drawnMaps[0]);
}

function drawLegend(map) {
    const cells = cellColors();
    const sign = (color, text) => [el("i", {style: `background:${rgb(color)}`}), text + " "];
    const gone = [el("i", {class: "hatch"}), "evicted "];
    if (map.other !== null && map.mode === "mask")
        return fill("legend", ...sign(colorOf(map.scale, 1), `lane ${map.lane} alone`),
            ...sign(colorOf(map.scale, 0), "both"),
            ...sign(colorOf(map.scale, -1), `lane ${map.other} alone`),
            el("i", {class: "hatch"}), "neither");
    if (map.mode === "mask")
        return fill("legend", ...sign(cells.kept, "kept"),
            ...sign(cells.last_seen, "evicted after the step"), ...gone);
    const canvas = el("canvas", {width: 256, height: 1}), c = canvas.getContext("2d");
    const pixels = c.createImageData(256, 1), entries = tables[map.scale.map];
    for (let i = 0; i < 256; ++i) pixels.data.set([...entries.slice(3 * i, 3 * i + 3), 255], 4 * i);
    c.putImageData(pixels, 0, 0);
    const low = map.scale.diverging ? -map.scale.high : map.scale.low;
    const what = map.other !== null ? "difference" : map.mode === "score" ? "score" : "attention probability";
    fill("legend", numberText(low) + " ", canvas, ` ${numberText(map.scale.high)} ${what} (logarithmic) `,
        ...(map.other === null ? gone : [el("i", {class: "hatch"}), "neither "]),
        ...sign(cells.missing, "not in this page"),
        ...(run.has_sinks && map.mode === "attention" && map.other === null
            ? ["the column sink: a learned sink, no token"] : []));
}

function cellAt(map, event) {
    const box = map.canvas.getBoundingClientRect();
    const p = Math.floor((event.clientX - box.left - map.left) / map.plot * nPositions);
    const i = Math.floor((event.clientY - box.top - map.above) / map.each);
    const isSink = p < 0 && event.clientX - box.left >= map.left - map.sink;
    if (isSink && i >= 0 && i < map.rows.length) return {token: -1, step: firstRow + i};
    return p >= 0 && p <= lastRow && i >= 0 && i < map.rows.length ? {token: p, step: firstRow + i} : null;
}
function listenTo(canvas, map) {
    canvas.addEventListener("pointermove", event => {
        const cell = cellAt(map, event);
        if (cell) byId("readout").textContent = cellText(map, cell.step, cell.token);
    });
    canvas.addEventListener("pointerleave", () => drawReadout());
    canvas.addEventListener("click", event => {
        const cell = cellAt(map, event);
        if (cell) go(cell.token < 0 ? {lane: map.lane, step: cell.step} : {lane: map.lane, ...cell});
    });
    canvas.addEventListener("keydown", event => {
        const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
        if (!move) return;
        event.preventDefault();
        event.stopPropagation();
        go({token: within(Math.max(place.token, 0) + move[0], 0, lastRow),
            step: within(place.step + move[1], firstRow, lastRow)});
    });
}

function cellText(map, step, p) {
    const name = of => `“${bareWord(word(map.lane, of))}”`;
    if (p < 0)
        return `Step ${step} ${name(step)}, the learned sink, no token: ` +
            `attention ${numberText(sinkShare(map.lane, step, map.head))}`;
    const at = `Step ${step} ${name(step)}, position ${p} ${name(p)}: `;
    if (p > step) return at + "not read yet";
    const value = map.rows[step - firstRow]?.[p], g = kvOf(map.lane, map.head);
    if (map.rows[step - firstRow] === null || value === undefined) return at + "not in this page";
    if (map.other !== null)
        return at + (Number.isNaN(value) ? "neither lane" : `difference ${numberText(value)}`);
    const evicted = evictedAt(map.lane, g, p);
    const kept = isStored(map.lane, g, p, step) ? "kept" : evicted === step ? "evicted after this step"
        : `evicted at step ${evicted}`;
    if (map.mode === "mask") return at + kept;
    if (Number.isNaN(value)) return at + kept;
    return at + (value === -1 ? "hidden" : `${map.mode} ${numberText(value)}, ${kept}`);
}
function drawReadout() {
    byId("readout").textContent = place.token < 0 || !drawnMaps[0] ? "" :
        cellText(drawnMaps.find(map => map.lane === place.lane) ?? drawnMaps[0], place.step, place.token);
}

// The words that the head reads most at the shown step, and all others behind a button.
let showsAllOfRow = false;
function drawRowTable() {
    const {lane, head, step} = place, g = kvOf(lane, head), values = attentionRow(lane, step, head);
    byId("row-summary").textContent = `Step ${step} of ${headName(head)} as a table`;
    if (!values)
        return fill("row-table", el("p", {class: "hint"},
            "The attention of this head at this step is not in this page."));
    const scores = scoreRow(lane, step, g), order = [...values.keys()].filter(p => !Number.isNaN(values[p]));
    order.sort((a, b) => values[b] - values[a] || a - b);
    const few = 12, shown = showsAllOfRow ? order : order.slice(0, few);
    if (!showsAllOfRow && place.token >= 0 && order.includes(place.token) && !shown.includes(place.token))
        shown.push(place.token);
    const titles = ["position", "word", "attention", "after the step"];
    if (scores) titles.splice(3, 0, "score");
    const rows = shown.map(p => {
        const row = [el("button", {type: "button", class: "plain", onclick: () => go({token: p})}, String(p)),
            shownWord(word(lane, p)), values[p] === -1 ? "hidden" : numberText(values[p]),
            isStored(lane, g, p, step) ? "kept" : "evicted"];
        if (scores) row.splice(3, 0, numberText(scores[p]));
        return row;
    });
    const lowest = threshold(lane, step, g);
    fill("row-table", table(`What lane ${lane} reads at step ${step} in ${headName(head)}: ` +
        `${counted(order.length, "token")} stored` +
        (Number.isNaN(lowest) ? "" : `; lowest score that stayed: ${numberText(lowest)}`) +
        (run.has_sinks
            ? `; the learned sink, no token, takes ${numberText(sinkShare(lane, step, head))}` : ""),
        titles, rows),
        order.length > few ? el("button", {type: "button", onclick: () => {
            showsAllOfRow = !showsAllOfRow;
            drawRowTable();
        }}, showsAllOfRow ? "Fewer" : `All ${order.length}`) : null);
}

function drawOverlap() {
    const other = place.with !== "" && place.with !== "all" ? Number(place.with) : place.lane === 0 ? -1 : 0;
    if (other < 0 || lanes.length < 2 || lanes[other].nKv !== lanes[place.lane].nKv)
        return byId("overlap").textContent = "";
    const g = kvOf(place.lane, place.head);
    let both = 0, mine = 0, its = 0, neither = 0;
    for (let p = 0; p <= place.step; ++p) {
        const a = isStored(place.lane, g, p, place.step), b = isStored(other, g, p, place.step);
        both += a && b, mine += a && !b, its += !a && b, neither += !a && !b;
    }
    byId("overlap").textContent = `After step ${place.step} lanes ${place.lane} and ${other} both keep ` +
        `${both} tokens in ${kvName(place.lane, g)}; lane ${place.lane} alone ${mine}, ` +
        `lane ${other} alone ${its}, neither ${neither}. ` +
        `Overlap ${(both / Math.max(both + mine + its, 1)).toFixed(4)}.`;
}
drawers.push(() => {
    drawHeads();
    drawReadout();
    drawRowTable();
    drawOverlap();
});
