// The place that the page shows, which a link names: #step=327&lane=1&head=L4.H1&token=80&mode=mask&with=2.

const modes = ["attention", "mask", "score"];
const place = {step: lastRow, lane: 0, head: 0, token: -1, mode: "attention", with: ""};

const within = (value, low, high) => Number.isInteger(value) ? Math.min(Math.max(value, low), high) : low;

function usualPlace() {
    const words = run.words;
    return {step: lastRow, lane: run.focus.lane, head: run.focus.layer * nHeads + run.focus.head,
            token: words ? words.first : -1, mode: "attention", with: ""};
}

// Reads a link. What it does not name, or names wrongly, stays usual.
function readLink(hash) {
    const words = new URLSearchParams(hash.replace(/^#/, "")), to = usualPlace();
    const number = name => /^\d+$/.test(words.get(name) ?? "") ? Number(words.get(name)) : null;
    if (number("step") !== null) to.step = within(number("step"), firstRow, lastRow);
    if (number("lane") !== null) to.lane = within(number("lane"), 0, lanes.length - 1);
    if (number("token") !== null) to.token = within(number("token"), 0, lastRow);
    const head = /^L(\d+)\.H(\d+)$/.exec(words.get("head") ?? "");
    if (head && Number(head[1]) < nLayers && Number(head[2]) < nHeads)
        to.head = Number(head[1]) * nHeads + Number(head[2]);
    if (modes.includes(words.get("mode"))) to.mode = words.get("mode");
    const other = words.get("with") ?? "";
    if (other === "all" || (/^\d+$/.test(other) && Number(other) < lanes.length)) to.with = other;
    return to;
}
function linkOf(at) {
    const words = [`step=${at.step}`, `lane=${at.lane}`, `head=${headName(at.head)}`];
    if (at.token >= 0) words.push(`token=${at.token}`);
    if (at.mode !== "attention") words.push(`mode=${at.mode}`);
    if (at.with !== "") words.push(`with=${at.with}`);
    return "#" + words.join("&");
}

// What draws the page again. Each is called with the place before.
const drawers = [];
function go(change) {
    const before = {...place};
    Object.assign(place, change);
    if (place.with === String(place.lane)) place.with = "";
    // Not one entry of the history for each step of a moved slider.
    try {
        history.replaceState(null, "", linkOf(place));
    } catch {
        // Some viewers of local files allow no history. The link can still be copied.
    }
    for (const draw of drawers) draw(before);
}

// Makes an element. Text is always set as text: tokens are nobody's markup.
function el(name, properties = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
        if (value === undefined || value === null || value === false) continue;
        if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
        else if (key === "style") made.style.cssText = value;
        else made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.filter(child => child !== null && child !== undefined));
    return made;
}
const byId = id => document.getElementById(id);
const fill = (id, ...children) => byId(id).replaceChildren(...children.filter(Boolean));

// A table with titles over its columns. Rows: lists of texts or elements; the first names the row.
function table(caption, titles, rows) {
    return el("table", {}, el("caption", {}, caption),
        el("thead", {}, el("tr", {}, ...titles.map(title => el("th", {scope: "col"}, title)))),
        el("tbody", {}, ...rows.map(row => el("tr", {}, ...row.map((cell, i) =>
            i === 0 ? el("th", {scope: "row"}, cell) : el("td", {}, cell))))));
}

// Buttons of which one is chosen. choices: [value, label].
function drawChoices(id, choices, now, choose) {
    fill(id, ...choices.map(([value, label]) => el("button",
        {type: "button", "aria-pressed": String(value === now), "data-value": value,
         onclick: () => {
             choose(value);
             byId(id).querySelector(`[data-value="${value}"]`)?.focus();
         }}, label)));
}

// Words with their blanks and line ends made visible.
const shownWord = text => text === "" ? "∅" : text.replace(/^ | $/g, "␣");
const bareWord = text => text.trim() === "" ? shownWord(text) : text.trim();
