// Opens the page: the answers first, then the numbers are unpacked, then the rest is drawn.

const keys = [
    ["← →", "one step back, forth"], ["Home End", "first, last step"], ["[ ]", "layer"], [", .", "head"],
    ["L", "next lane"], ["M", "mask, attention"], ["D", "difference to lane 0, or none"], ["A", "all lanes"],
    ["Space", "play the steps"], ["?", "these keys"]];

function moveHead(byLayer, byHead) {
    const layer = within(Math.floor(place.head / nHeads) + byLayer, 0, nLayers - 1);
    go({head: layer * nHeads + within(place.head % nHeads + byHead, 0, nHeads - 1)});
}
function showKeys() {
    const part = byId("keys");
    part.hidden = !part.hidden;
    byId("keys-button").setAttribute("aria-expanded", String(!part.hidden));
}

const actions = {
    ArrowLeft: () => go({step: Math.max(place.step - 1, firstRow)}),
    ArrowRight: () => go({step: Math.min(place.step + 1, lastRow)}),
    Home: () => go({step: firstRow}),
    End: () => go({step: lastRow}),
    "[": () => moveHead(-1, 0),
    "]": () => moveHead(1, 0),
    ",": () => moveHead(0, -1),
    ".": () => moveHead(0, 1),
    l: () => go({lane: (place.lane + 1) % lanes.length}),
    m: () => go({mode: place.mode === "mask" ? "attention" : "mask"}),
    d: () => go({with: place.with === "" && place.lane !== 0 ? "0" : ""}),
    a: () => go({with: place.with === "all" ? "" : "all"}),
    " ": play,
    "?": showKeys,
};

function setupKeys() {
    byId("keys").append(el("dl", {}, ...keys.flatMap(([key, does]) =>
        [el("dt", {}, el("kbd", {}, key)), el("dd", {}, does)])));
    byId("keys-button").addEventListener("click", showKeys);
    document.addEventListener("keydown", event => {
        if (event.ctrlKey || event.altKey || event.metaKey) return;
        const own = event.target.closest?.("button, select, input, summary, a, .word");
        // A control keeps the keys that work it.
        if (own && [" ", "Home", "End", "ArrowLeft", "ArrowRight"].includes(event.key)) return;
        if (own && event.target.matches("select")) return;
        const action = actions[event.key];
        if (!action || !numbersAreHere) return;
        event.preventDefault();
        action();
    });
}

function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
    thumbnails.clear();
}
function setupTheme() {
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    setTheme(system.matches ? "dark" : "light");
    system.addEventListener("change", () => redraw(system.matches ? "dark" : "light"));
    byId("theme").addEventListener("click", () => redraw(isDark() ? "light" : "dark"));
    // Paper is light.
    let before = null;
    window.addEventListener("beforeprint", () => {
        before = document.documentElement.dataset.theme;
        redraw("light");
    });
    window.addEventListener("afterprint", () => before && redraw(before));
}

let numbersAreHere = false;
function redraw(theme) {
    setTheme(theme);
    if (!numbersAreHere) return;
    drawAnswers();
    drawCurves();
    for (const draw of drawers) draw({});
}

function setupLinks() {
    byId("copy-link").addEventListener("click", async () => {
        const link = location.href.split("#")[0] + linkOf(place);
        try {
            await navigator.clipboard.writeText(link);
            byId("copy-link").textContent = "Copied";
        } catch {
            byId("copy-link").textContent = "Link is in the address";
        }
        setTimeout(() => byId("copy-link").textContent = "Copy link", 2000);
    });
    window.addEventListener("hashchange", () => {
        if (location.hash.includes("=")) go(readLink(location.hash));
    });
    let wide = window.innerWidth, soon = 0;
    window.addEventListener("resize", () => {
        if (window.innerWidth === wide) return;
        wide = window.innerWidth;
        clearTimeout(soon);
        soon = setTimeout(() => drawers.forEach(draw => draw({})), 150);
    });
}

function fault(words) {
    byId("fault").textContent = words;
    byId("fault").hidden = false;
}

// What stands in the markup is painted before the numbers are unpacked. A hidden page paints nothing, and a
// browser that does not tell of its paints has made one after a second.
const painted = () => new Promise(done => {
    if (document.hidden) return done();
    new PerformanceObserver(done).observe({type: "paint", buffered: true});
    setTimeout(done, 1000);
});

async function open() {
    setupTheme();
    await painted();
    performance.mark("unpack");
    try {
        await unpack();
    } catch (error) {
        return fault("This browser cannot unpack the numbers of this page (" + error.message +
            "). The answers are above; Firefox 113, Chromium 80, Safari 16.4 and later show all of it.");
    }
    numbersAreHere = true;
    setupText();
    setupAtlas();
    setupBar();
    setupKeys();
    setupLinks();
    drawAnswers();
    drawCurves();
    drawAbout();
    Object.assign(place, usualPlace());
    Object.assign(place, location.hash.includes("=") ? readLink(location.hash) : {});
    for (const draw of drawers) draw({});
    document.documentElement.dataset.ready = "yes";
}
open();
