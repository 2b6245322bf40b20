"use strict";
// Checks predictions in the page; nothing is sent or stored.

function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
}
const system = window.matchMedia("(prefers-color-scheme: dark)");
setTheme(system.matches ? "dark" : "light");
document.getElementById("theme").addEventListener("click", () =>
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
window.addEventListener("beforeprint", () => {
    setTheme("light");
    for (const part of document.querySelectorAll("details")) part.open = true;
});

const forms = [...document.querySelectorAll("form.ask")];

// Whether what was chosen is right: the choice, or a number near enough to the measured one.
function isRight(form) {
    if (form.dataset.right !== undefined)
        return form.querySelector("input:checked")?.value === form.dataset.right;
    const typed = Number(form.querySelector("input").value);
    return Math.abs(typed - Number(form.dataset.value)) <= Number(form.dataset.near);
}

function showScore() {
    const done = forms.filter(form => form.dataset.done);
    if (done.length < forms.length || forms.length === 0) return;
    const n = done.filter(form => form.dataset.done === "right").length;
    document.getElementById("score").textContent = `You predicted ${n} of ${forms.length} right.`;
}

for (const form of forms) {
    const slider = form.querySelector("input[type=range]");
    const tell = () => form.querySelector("output").textContent = Number(Number(slider.value).toPrecision(3));
    if (slider) {
        tell();
        slider.addEventListener("input", tell);
    }
    form.addEventListener("submit", event => {
        event.preventDefault();
        const right = isRight(form), verdict = form.querySelector(".verdict");
        verdict.textContent = `${right ? "Your prediction was right." : "Not quite."} ${form.dataset.truth}`;
        verdict.className = `verdict ${right ? "right" : "wrong"}`;
        form.dataset.done ??= right ? "right" : "wrong";
        form.closest(".step").querySelector("details.seen").open = true;
        showScore();
    });
}
document.documentElement.dataset.ready = "yes";
