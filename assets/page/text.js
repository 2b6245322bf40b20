// The text of the lane in focus: a word is darker where more heads keep it, and can be picked.

let textOf = -1;  // the lane whose words are drawn
let wordSpans = [];

function drawText() {
    textOf = place.lane;
    const of = lanes[place.lane];
    wordSpans = of.tokens.map((index, p) => el("span",
        {class: "word" + (p >= nPrompt ? " made" : ""), role: "button", tabindex: "-1", "data-p": p},
        run.strings[index].replaceAll("↵", "")));
    const parts = [];
    wordSpans.forEach((span, p) => {
        parts.push(span);
        const text = run.strings[of.tokens[p]];
        for (const sign of text) if (sign === "↵") parts.push(el("br"));
        if (text.replaceAll("↵", "") === "") span.append("↵");
    });
    fill("text", ...parts);
}

function colorWords() {
    const nKv = lanes[place.lane].nKv;
    wordSpans.forEach((span, p) => {
        const later = p > place.step, n = later ? 0 : nKeeping(place.lane, p, place.step);
        span.classList.toggle("later", later);
        span.classList.toggle("none", !later && n === 0);
        span.style.setProperty("--share", later ? 0 : n / nKv);
        span.dataset.kept = n;
        span.setAttribute("aria-label", word(place.lane, p) +
            (later ? ", not read yet" : `, kept by ${n} of ${nKv} heads`));
        const watched = isSpan(run.words) && p >= run.words.first && p <= run.words.last;
        span.classList.toggle("watched", watched);
        span.classList.toggle("picked", p === place.token);
        span.setAttribute("aria-pressed", String(p === place.token));
        span.tabIndex = p === Math.max(place.token, 0) ? 0 : -1;
    });
}

function setupText() {
    const text = byId("text");
    text.addEventListener("click", event => {
        const span = event.target.closest(".word");
        if (span) go({token: Number(span.dataset.p)});
    });
    text.addEventListener("keydown", event => {
        const moves = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -12, ArrowDown: 12, Home: -1e9, End: 1e9};
        const by = moves[event.key];
        const at = Number(event.target.dataset?.p);
        if (Number.isNaN(at)) return;
        if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            go({token: at});
            return byId("why-part").scrollIntoView({block: "nearest"});
        }
        if (by === undefined) return;
        event.preventDefault();
        event.stopPropagation();
        const token = Math.min(Math.max(at + by, 0), wordSpans.length - 1);
        go({token});
        wordSpans[token].focus();
    });
    byId("text-legend").replaceChildren("kept by ", el("i", {style: "--share:0"}), "no head ",
        el("i", {style: "--share:0.5"}), "half ", el("i", {style: "--share:1"}), "all heads");
}

drawers.push(before => {
    if (textOf !== place.lane) drawText();
    const of = lanes[place.lane];
    byId("text-hint").textContent = `Lane ${place.lane}, ${of.paper}, after step ${place.step}. ` +
        "The darker a word, the more heads still keep it; a word struck through is gone from all. Pick one.";
    if (["step", "lane", "token"].some(name => before[name] !== place[name])) colorWords();
});
