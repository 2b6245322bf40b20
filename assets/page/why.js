// What became of the picked word in the lane in focus: which heads keep it, when the others evicted it, and
// its score against the lowest one that stayed.

function whySentence() {
    const {lane, token, step} = place, of = lanes[lane];
    if (token > step)
        return `“${bareWord(word(lane, token))}” is read at step ${token}, after the shown one.`;
    const n = nKeeping(lane, token, step), gone = [];
    for (let g = 0; g < of.nKv; ++g) {
        const at = evictedAt(lane, g, token);
        if (at >= 0 && at <= step) gone.push(at);
    }
    const begin = token < nPrompt ? "It was read in the prompt."
        : `The lane wrote it; step ${token} read it.`;
    const keep = `After step ${step}, ${n} of ${counted(of.nKv, "head")} ${n === 1 ? "keeps" : "keep"} it.`;
    if (gone.length === 0) return `${begin} ${keep}`;
    const least = Math.min(...gone), most = Math.max(...gone);
    const when = row => row === nPrompt - 1 ? `${row}, the end of the prompt` : String(row);
    return `${begin} ${keep} ${counted(gone.length, "head")} evicted it` + (least === most
        ? ` at step ${when(least)}.` : `, the first at step ${when(least)}, the last at ${when(most)}.`);
}

// Score and threshold of the word in a KV head, when it went or else at the shown step.
function standing(lane, g, p, step) {
    const at = evictedAt(lane, g, p), row = at >= 0 && at <= step ? at : step;
    const scores = row >= firstRow ? scoreRow(lane, row, g) : null;
    return {gone: at >= 0 && at <= step, at, row, score: scores ? scores[p] : NaN,
            least: row >= firstRow ? threshold(lane, row, g) : NaN};
}

function whyCell(lane, g, readers) {
    const its = standing(lane, g, place.token, place.step);
    const text = its.gone ? `× ${its.at}` : "kept";
    const numbers = Number.isNaN(its.score) ? "" : `${numberText(its.score)}`;
    const against = Number.isNaN(its.score) || Number.isNaN(its.least) ? ""
        : `${its.score < its.least ? "<" : "≥"} ${numberText(its.least)}`;
    const part = its.least > 0 ? Math.min(Math.max(its.score / its.least / 2, 0), 1) : NaN;
    const head = readers[0];
    return el("td", {class: (its.gone ? "gone" : "kept") + (readers.includes(place.head) ? " focus" : "")},
        el("button", {type: "button", tabindex: "-1", "data-kv": g,
            title: `${kvName(lane, g)}: show this head`, onclick: () => go({head})},
            el("b", {}, text),
            Number.isNaN(part) ? null : el("span", {class: "meter", "aria-hidden": "true"},
                el("i", {style: `width:${Math.round(part * 100)}%`})),
            numbers ? el("small", {}, numbers, el("br"), against) : null));
}

function whyTable() {
    const {lane} = place, of = lanes[lane], rows = [];
    const readers = of.kv.map(() => []);
    of.kv_of.forEach((g, head) => readers[g].push(head));
    const byLayer = new Map();
    of.kv.forEach(([layer], g) => byLayer.set(layer, [...byLayer.get(layer) ?? [], g]));
    const most = Math.max(...[...byLayer.values()].map(list => list.length));
    for (const [layer, list] of byLayer)
        rows.push(el("tr", {}, el("th", {scope: "row"}, `L${layer}`),
            ...list.map(g => whyCell(lane, g, readers[g]))));
    const titles = [el("td")];
    for (let i = 0; i < most; ++i) titles.push(el("th", {scope: "col"}, String(i)));
    return el("table", {class: "why"},
        el("caption", {}, "A cell for each KV head, a line for each layer. × 369: evicted at step 369. " +
            "Below: the score of the word when it went, or at the shown step, and the lowest score that " +
            "stayed. The bar is the first over the second; its middle is where a word stays."),
        el("thead", {}, el("tr", {}, ...titles)), el("tbody", {}, ...rows));
}

function drawWhy() {
    const {lane, token} = place;
    if (token < 0) return fill("why", el("p", {class: "hint"}, "Pick a word of the text."));
    fill("why",
        el("p", {class: "picked-word"}, el("b", {}, `“${bareWord(word(lane, token))}”`),
            ` at position ${token}, in lane ${lane}, ${lanes[lane].paper}`),
        el("p", {id: "why-sentence"}, whySentence()),
        lanes.length > 1 ? el("div", {class: "choices", role: "group", "aria-label": "Lane"},
            ...lanes.map((of, i) => el("button",
                {type: "button", "aria-pressed": String(i === lane), onclick: () => go({lane: i})},
                `${i} ${of.paper}`))) : null,
        lanes[lane].evicts || nKeeping(lane, token, place.step) < lanes[lane].nKv
            ? el("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": "Heads"}, whyTable())
            : el("p", {class: "hint"}, "This lane evicts nothing."));
}
drawers.push(before => {
    if (["lane", "token", "step", "head"].some(name => before[name] !== place[name])) drawWhy();
});
