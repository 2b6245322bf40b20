// Next words, measures over the steps, and how the page was made.

const laneNames = () => lanes.map((of, i) => `${i} ${of.paper}`);

function drawNext() {
    const row = place.step;
    const most = Math.max(...lanes.map(of => (of.top[row - firstRow] ?? []).length), 0);
    const rows = [];
    for (let k = 0; k < most; ++k)
        rows.push([String(k + 1), ...lanes.map(of => {
            const its = (of.top[row - firstRow] ?? [])[k];
            return its ? `${(Math.exp(its[1]) * 100).toFixed(1)} % ${shownWord(run.strings[its[0]])}` : "";
        })]);
    const kl = lanes.map((_, lane) => ofStep(lane, "kl", row));
    if (kl.some(value => value !== null))
        rows.push(["KL to lane 0, nats", ...kl.map((value, lane) => lane === 0 ? "" : numberText(value))]);
    rows.push(["entropy, nats", ...lanes.map((_, lane) => numberText(ofStep(lane, "entropy", row)))]);
    rows.push(["tokens a head", ...lanes.map((of, lane) => {
        const stored = ofStep(lane, "stored_tokens", row);
        return stored === null ? "" : numberText(stored / of.nKv);
    })]);
    fill("next", rows.length ? table(`After step ${row}`, ["", ...laneNames()], rows)
        : el("p", {class: "hint"}, "The page has no next words of this step."));
}

const svg = (name, properties, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
    made.append(...children);
    return made;
};

// A curve for each lane. values: [lane][step], null where there is none.
function curve(name, about, values, logarithmic) {
    const all = values.flat().filter(value => value !== null && (!logarithmic || value > 0));
    if (all.length === 0) return null;
    const wide = 720, high = 150, floor = 1e-5, n = lastRow - firstRow;
    const scaled = value => logarithmic ? Math.log10(Math.max(value, floor)) : value;
    const low = logarithmic ? scaled(Math.min(...all)) : 0;
    const top = Math.max(scaled(Math.max(...all)), low + 1e-9);
    const at = (row, value) => [48 + (wide - 56) * (n ? (row - firstRow) / n : 0.5),
        8 + (high - 28) * (1 - (scaled(value) - low) / (top - low))].map(x => x.toFixed(1)).join(",");
    const lines = values.map((of, lane) => {
        const points = of.map((value, i) => value === null ? null : at(firstRow + i, value)).filter(Boolean);
        return points.length === 0 ? null : svg("polyline", {points: points.join(" "), fill: "none",
            stroke: laneColor(lane), "stroke-width": 2,
            "stroke-dasharray": laneLook(run.colors.dashes, lane).join(" ")});
    });
    const text = (x, y, words, anchor = "start") => svg("text", {x, y, "text-anchor": anchor}, words);
    const label = value => numberText(logarithmic ? 10 ** value : value);
    const picture = svg("svg", {viewBox: `0 0 ${wide} ${high}`, "aria-hidden": "true", class: "curve"},
        svg("line", {x1: 48, x2: wide - 8, y1: high - 20, y2: high - 20, class: "axis"}),
        text(44, 14, label(top), "end"), text(44, high - 20, label(low), "end"),
        text(48, high - 4, `step ${firstRow}`), text(wide - 8, high - 4, String(lastRow), "end"),
        ...lines.filter(Boolean));
    const key = el("p", {class: "legend"}, ...lanes.flatMap((of, lane) => lines[lane]
        ? [el("i", {class: "line", style: `--lane:${laneColor(lane)}`}), `${lane} ${of.paper} `] : []));
    const steps = [];
    for (let row = firstRow; row <= lastRow; ++row)
        steps.push([String(row), ...values.map(of => numberText(of[row - firstRow]))]);
    return el("figure", {class: "measure", "data-measure": name}, el("figcaption", {}, about.label,
        el("small", {}, `${about.help} ${about.equation}`)), picture, key,
        el("details", {}, el("summary", {}, "As a table"), el("div", {class: "scroll"},
            table(about.label, ["step", ...laneNames()], steps))));
}

function drawCurves() {
    const figures = Object.entries(run.measures).map(([name, about]) => {
        const values = lanes.map((of, lane) => of.steps[name] && !(about.compares && lane === 0)
            ? of.steps[name] : Array(lastRow - firstRow + 1).fill(null));
        return curve(name, about, values, about.logarithmic);
    });
    fill("curves", ...figures);
    fill("means", table("The numbers that keyhole decode and keyhole replay print",
        ["mean over a lane's steps", ...laneNames()],
        run.means.map(mean => [mean.label, ...mean.values])));
}

function drawAbout() {
    const about = run.about;
    const list = (title, ...parts) => [el("dt", {}, title), ...parts.map(part => el("dd", {}, part))];
    const commands = run.commands.map(({row, text}) => `after step ${row}: ${text}`);
    const branches = run.branches.map(branch =>
        `branch ${branch.id}: from step ${branch.from_row} to ${branch.last_row}` +
        (branch.commands.length ? `, with ${branch.commands.map(c => c.text).join("; ")}` : ""));
    fill("about", el("dl", {},
        ...list("Program", about.program),
        ...(about.command ? list("Command", el("code", {}, about.command)) : []),
        ...list("Model", `${about.model}, hash ${about.model_hash}`),
        ...list("Run", `prompt of ${counted(nPrompt, "token")}, steps ${firstRow} to ${lastRow}, ` +
            `seed ${about.seed}, ` + (about.follow ? "all lanes fed lane 0's words"
                : "each lane with its own words")),
        ...list("Lanes", ...lanes.map((_, i) => el("code", {}, `${i} ${settingsText(i, 2)}`))),
        ...(commands.length ? list("Changes", ...commands) : []),
        ...(branches.length ? list("Other branches", ...branches) : []),
        ...list("What this page leaves out", ...run.notes)),
        el("p", {class: "hint"}, "This page is one file. It loads nothing and sends nothing. Attention is " +
            "no explanation, and one text is an anecdote."));
}

// --- the bar of time -----------------------------------------------------------------------------------

// Evictions by step: bars; commands and branches: lines.
function drawTicks() {
    const canvas = byId("ticks"), ratio = window.devicePixelRatio || 1;
    const wide = canvas.clientWidth || 300, high = 18, n = lastRow - firstRow + 1;
    canvas.width = wide * ratio;
    canvas.height = high * ratio;
    const c = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const counts = Array(n).fill(0);
    for (const at of lanes[place.lane].evictedAt) if (at > firstRow) ++counts[at - firstRow];
    const most = Math.max(...counts, 1), inset = 8, each = (wide - 2 * inset) / Math.max(n - 1, 1);
    c.scale(ratio, ratio);
    c.fillStyle = style.getPropertyValue("--soft");
    counts.forEach((count, i) => {
        const bar = count === 0 ? 0 : Math.max(high * 0.8 * count / most, 2);
        const thick = Math.min(Math.max(each / 2, 1), 5);
        c.fillRect(inset + i * each - thick / 2, high - bar, thick, bar);
    });
    c.fillStyle = style.getPropertyValue("--warm");
    for (const row of [...run.commands.map(one => one.row), ...run.branches.map(one => one.from_row)])
        if (row >= firstRow) c.fillRect(inset + (row - firstRow) * each - 1, 0, 2, high);
    const now = counts[place.step - firstRow];
    const end = place.step === nPrompt - 1 ? ", end of the prompt" : "";
    byId("step-text").textContent = `step ${place.step}${end}, ` +
        `read “${bareWord(word(place.lane, place.step))}”` + (now ? `, ${counted(now, "eviction")}` : "");
}

let playing = null;
function play() {
    if (playing !== null) {
        clearInterval(playing);
        playing = null;
    } else {
        if (place.step === lastRow) go({step: firstRow});
        playing = setInterval(() => place.step < lastRow ? go({step: place.step + 1}) : play(), 700);
    }
    byId("play").textContent = playing === null ? "▶" : "⏸";
    byId("play").setAttribute("aria-label", playing === null ? "Play the steps" : "Stop");
}

function setupBar() {
    const step = byId("step");
    step.min = firstRow;
    step.max = lastRow;
    step.addEventListener("input", () => go({step: Number(step.value)}));
    byId("lane").append(...lanes.map((of, i) => el("option", {value: i}, `${i} ${of.paper}`)));
    byId("lane").addEventListener("change", event => go({lane: Number(event.target.value)}));
    for (let head = 0; head < nAll; ++head) byId("head").append(el("option", {value: head}, headName(head)));
    byId("head").addEventListener("change", event => go({head: Number(event.target.value)}));
    byId("play").addEventListener("click", play);
}
drawers.push(before => {
    byId("step").value = place.step;
    byId("step").setAttribute("aria-valuetext", `step ${place.step} of ${lastRow}`);
    byId("lane").value = place.lane;
    byId("head").value = place.head;
    drawTicks();
    if (before.step !== place.step) drawNext();
});
