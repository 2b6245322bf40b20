// The answers of the lanes, and what each head in focus reads while they answer.

const isSpan = span => span && span.last >= span.first;

function answerParts(answer) {
    const parts = answer.parts.map(([text, differs], i) => {
        const shown = i === 0 ? text.trimStart() : text;
        return differs && shown ? el("mark", {}, shown) : shown;
    });
    const mark = {right: ["✓", "right"], wrong: ["✗", "wrong"]}[answer.mark];
    return [
        mark ? el("span", {class: `sign ${answer.mark}`, role: "img", "aria-label": `${mark[1]}:`}, mark[0])
            : null,
        el("span", {class: "said"}, ...parts),
        answer.note ? el("span", {class: "soft"}, " " + answer.note) : null].filter(Boolean);
}

// A square for each KV head: lit if it held all of the words when the lane began to answer. A line for each
// layer, or a column where layers are many.
function headSquares(lane) {
    const of = lanes[lane], row = run.story.first_row, nKv = of.nKv;
    const heads = Math.max(Math.round(nKv / nLayers), 1), tall = nLayers > 2 * heads;
    const side = Math.min(Math.max(Math.floor(210 / (tall ? nLayers : heads)) - 2, 4), 11);
    const squares = [];
    for (let g = 0; g < nKv; ++g) {
        let all = true;
        for (let p = run.words.first; p <= run.words.last; ++p) all = all && isStored(lane, g, p, row);
        squares.push(el("i", {class: all ? "lit" : "",
            title: `${kvName(lane, g)} ${all ? "held" : "had lost"} it`}));
    }
    const n = nKeepingAll(lane, run.words, row);
    return el("div", {class: "held"},
        el("p", {}, `${n} of ${counted(nKv, "head")} had “${run.words.text}”`),
        el("div", {class: tall ? "squares tall" : "squares", style: `--heads:${heads};--side:${side}px`,
            "aria-hidden": "true"}, ...squares));
}

function answerCard(lane) {
    const of = lanes[lane], answer = of.answer;
    const why = el("button", {type: "button", class: "why", onclick: () => showWhy(lane)}, "Why?");
    why.setAttribute("aria-label", `Why? ${of.title}`);
    return el("article", {class: "lane", "data-lane": lane, style: `--lane:${laneColor(lane)}`, "aria-labelledby": `lane-title-${lane}`},
        el("h2", {id: `lane-title-${lane}`}, `${lane} ${of.paper}`),
        el("p", {class: "soft"}, of.failure ? of.failure : "keeps " + of.keeps),
        of.settings.length > 1 ? el("p", {class: "soft settings"}, settingsText(lane, 1)) : null,
        el("p", {class: "answer"}, ...(answer ? answerParts(answer) : [el("span", {class: "soft"}, "–")])),
        isSpan(run.words) && run.words.last <= run.story.first_row ? headSquares(lane) : null,
        run.words ? why : null);
}

// The word that explains most: the first of the watched ones that the lane has lost in the most heads.
function showWhy(lane) {
    let token = run.words.first, least = Infinity;
    for (let p = run.words.first; p <= run.words.last; ++p) {
        const n = nKeeping(lane, p, place.step);
        if (n < least) least = n, token = p;
    }
    go({lane, token});
    byId("why-title").scrollIntoView();
    byId("why-title").setAttribute("tabindex", "-1");
    byId("why-title").focus({preventScroll: true});
}

function drawAnswers() {
    fill("answers", ...lanes.map((_, lane) => answerCard(lane)));
}

// --- the story map -------------------------------------------------------------------------------------

// The width of a lane's map.
function mapWidth() {
    const width = byId("maps").clientWidth || 1000;
    return width < 700 ? width : (width - 40) / Math.min(Math.max(lanes.length, 2), 3);
}

// The columns around the words: as many as have room with a word each.
function storyColumns() {
    const token = Math.max(place.token, 0);
    const words = isSpan(run.words) ? run.words : {first: token, last: token};
    const room = Math.floor((mapWidth() - 90) / 17);
    const around = Math.min(Math.max(Math.floor((room - (words.last - words.first + 1)) / 2), 3), 14);
    return {first: Math.max(words.first - around, 0), last: Math.min(words.last + around, lastRow)};
}

function storyCell(lane, row, p, values, scale) {
    const picked = place.token === p ? " picked" : "";
    if (p > row) return el("td", {class: "future"});
    if (values === null) return el("td", {class: "missing" + picked, title: "not in this page"});
    const value = values[p];
    const unseen = text => el("span", {class: "unseen"}, text);
    if (Number.isNaN(value)) return el("td", {class: "gone" + picked}, unseen("evicted"));
    if (value === -1) return el("td", {class: "hidden" + picked}, unseen("hidden"));
    return el("td", {class: picked, style: `background:${rgb(colorOf(scale, value))}`, "data-value": value,
                     title: `${numberText(value)} of “${word(lane, p)}” at step ${row}`},
        unseen(numberText(value)));
}

function storyMap(lane) {
    const {first, last} = storyColumns(), of = lanes[lane];
    const [low, high] = of.scale[place.head], scale = {map: "viridis", logarithmic: true, low, high};
    const head = [el("td")], body = [];
    for (let p = first; p <= last; ++p) {
        const watched = isSpan(run.words) && p >= run.words.first && p <= run.words.last;
        const name = el("button", {type: "button", tabindex: "-1", onclick: () => go({lane, token: p})},
                        bareWord(word(lane, p)));
        head.push(el("th", {scope: "col", class: watched ? "watched" : ""}, name));
    }
    for (let i = 0; i < run.story.n_rows; ++i) {
        const row = run.story.first_row + i;
        if (row > lastRow) break;
        const values = row <= of.last_row ? attentionRow(lane, row, place.head) : null, cells = [];
        for (let p = first; p <= last; ++p) cells.push(storyCell(lane, row, p, values, scale));
        const chosen = of.rows[i] === undefined || of.rows[i] < 0 ? "" : run.strings[of.rows[i]];
        body.push(el("tr", {class: row === place.step ? "now" : ""},
            el("th", {scope: "row"}, el("button", {type: "button", tabindex: "-1",
                onclick: () => go({lane, step: row})}, bareWord(chosen))), ...cells));
    }
    const cell = Math.min(Math.max(Math.floor((mapWidth() - 90) / (last - first + 1)) - 1, 16), 28);
    return el("figure", {class: "map", style: `--lane:${laneColor(lane)};--cell:${cell}px`},
        el("figcaption", {}, `${lane} ${of.paper}`),
        el("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": `Map of lane ${lane}`},
            el("table", {class: "cells"},
                el("caption", {class: "unseen"}, `Attention of ${headName(place.head)} in lane ${lane}, by ` +
                    "step (rows: the word that it chose) and position (columns: the words of the text)"),
                el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body))));
}

function drawMaps() {
    byId("map-hint").textContent = `Head ${headName(place.head)}. Down: the words of the answer, in order. ` +
        "Across: words of the text. Bright: the head reads that word. Hatched: the word was evicted from it.";
    fill("maps", ...lanes.map((_, lane) => storyMap(lane)));
}
drawers.push(before => {
    if (["head", "token", "step"].some(name => before[name] !== place[name])) drawMaps();
});
