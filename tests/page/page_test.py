"""Reads a page of `--export page` as people do, in each browser that is installed: looks, keyboard, links,
and what a screen reader gets. Run by ctest as Page.InABrowser:

    python3 tests/page/page_test.py PROGRAM SOURCES [FOLDER FOR PICTURES]
"""

import array
import ast
import contextlib
import functools
import http.server
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading

from browsers import browsers_here

N_STEPS = 12
HOSTILE = ("</script><script>window.broken = 1</script><img src=x onerror='window.broken=2'> "
           "\u202eabc\u2066 \U0001f511 <!--<script> &amp; {{run}} ${1} ` The answer is")


def read_npy(path):
    """Returns (shape, values) of an array of float32 or int32."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<H", data[8:10])[0]
    about = ast.literal_eval(data[10:10 + size].decode())
    values = array.array({"<f4": "f", "<i4": "i"}[about["descr"]])
    values.frombytes(data[10 + size:])
    return about["shape"], values


class Numbers:
    """The arrays that `keyhole replay` writes, by lane."""

    def __init__(self, folder, n_lanes):
        with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
            self.run = json.load(file)
        self.first = self.run["first_row"]
        of = functools.partial(os.path.join, folder)
        self.attention = [read_npy(of(f"lane{i}/attention.npy")) for i in range(n_lanes)]
        self.scores = [read_npy(of(f"lane{i}/scores.npy")) for i in range(n_lanes)]
        self.evicted = [read_npy(of(f"lane{i}/evicted_at.npy")) for i in range(n_lanes)]

    def attention_at(self, lane, row, layer, head, position):
        (_, layers, heads, positions), values = self.attention[lane]
        return values[(((row - self.first) * layers + layer) * heads + head) * positions + position]

    def score_at(self, lane, row, kv_head, position):
        (_, kv_heads, positions), values = self.scores[lane]
        return values[((row - self.first) * kv_heads + kv_head) * positions + position]

    def evicted_at(self, lane, kv_head, position):
        (_, positions), values = self.evicted[lane]
        return values[kv_head * positions + position]

    def n_keeping(self, lane, position, row):
        n = self.evicted[lane][0][0]
        return sum(1 for g in range(n) if not 0 <= self.evicted_at(lane, g, position) <= row)


def number_text(value):
    """As the program writes it: 4 digits, or 2 below 0.001."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.1f}"
    return f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.1e}"


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(part) for part in what))


def equal(found, wanted, what=""):
    check(found == wanted, f"{what}: found {found!r}, wanted {wanted!r}")


def table(browser, selector):
    """Returns the texts of a table's cells, by row; the first row has its titles."""
    return browser.run("return [...document.querySelector(arguments[0]).rows]"
                       ".map(row => [...row.cells].map(cell => cell.textContent.trim()))", selector)


def place(browser):
    return browser.run("return {...place}")


# --- what is checked, a function each: (browser, url of the folder, numbers of the run) ------------------


def shows_the_answers(browser, url, numbers):
    browser.open(url + "gate/page.html")
    check("garden gate" in browser.text("#question"), browser.text("#question"))
    check("threw “4821” away" in browser.text("#sentence"), browser.text("#sentence"))
    cards = browser.run("return [...document.querySelectorAll('.lane')].map(card => card.textContent)")
    equal(len(cards), 3, "lanes")
    check("4821" in cards[0] and "✓" in cards[0], cards[0])
    check("3333" in cards[1] and "✗" in cards[1] and "keeps 64 of 370 tokens, 17 %" in cards[1], cards[1])
    first = numbers.first - 1
    words = browser.run("return run.words")
    held = sum(all(not 0 <= numbers.evicted_at(1, g, p) <= first
                   for p in range(words["first"], words["last"] + 1)) for g in range(48))
    check(f"{held} of 48 heads had “4821”" in cards[1], held, cards[1])
    equal(browser.run("return document.querySelectorAll('[data-lane=\"1\"] .squares i.lit').length"), held)


def numbers_equal_those_of_replay(browser, url, numbers):
    browser.open(url + "gate/page.html#step=375&lane=1&head=L3.H5&token=80")
    n = 0
    for lane, row, layer, head in ((1, 375, 3, 5), (0, 372, 1, 2), (2, 381, 5, 7)):
        browser.run("go({step: arguments[0], lane: arguments[1], head: arguments[2]})", row, lane,
                    layer * 8 + head)
        browser.run("showsAllOfRow = true; drawRowTable()")
        rows = table(browser, "#row-table table")
        titles = rows[0]
        for cells in rows[1:]:
            position, g = int(cells[0]), layer * 8 + head
            equal(cells[2], number_text(numbers.attention_at(lane, row, layer, head, position)), "attention")
            if "score" in titles:
                equal(cells[3], number_text(numbers.score_at(lane, row, g, position)), "score")
            gone = numbers.evicted_at(lane, g, position)
            equal(cells[-1], "evicted" if 0 <= gone <= row else "kept", (lane, row, position))
            n += 1
    check(n > 400, "cells compared:", n)
    # All cells of the page, not only those of a table.
    for lane in range(3):
        cells = browser.run("""
            const found = [];
            for (let row = firstRow + 1; row <= lastRow; row += 3)
                for (let head = 0; head < nAll; head += 5) {
                    const values = attentionRow(arguments[0], row, head);
                    if (!values) continue;
                    found.push([row, head, [...values].map(v => Number.isNaN(v) ? "" : numberText(v))]);
                }
            return found""", lane)
        check(len(cells) > 12, "rows in the page:", len(cells))
        for row, head, texts in cells:
            for position, text in enumerate(texts):
                value = numbers.attention_at(lane, row, head // 8, head % 8, position)
                equal(text or "0", number_text(value), (lane, row, head, position))
    means = {cells[0].strip(): cells[1:] for cells in table(browser, "#means table")}
    printed = {m.group(1).strip(): m.group(2).split() for m in
               re.finditer(r"^(\S.{27})((?: +\S+){3})$", numbers.printed, re.M)}
    for name in ("KL to lane 0, nats", "Agreement", "Entropy, nats", "Lifetime, steps", "Recent share"):
        equal(means[name], printed[name], name)


def learned_sinks_have_a_column(browser, url, numbers):
    """What a head's tokens leave of a row is its learned sink's, in the column before the first token."""
    browser.open(url + "sink/page.html")
    sinks, head = numbers.sinks, 4
    last = sinks.first + N_STEPS - 2
    browser.run("go({mode: 'attention', with: '', lane: 1, head: arguments[0], step: arguments[1]})", head,
                last)
    check("a learned sink, no token" in browser.text("#legend"), browser.text("#legend"))
    most = 0
    for row in range(sinks.first, last + 1):
        tokens = sum(max(sinks.attention_at(1, row, head // 4, head % 4, p), 0) for p in range(row + 1)
                     if not 0 <= sinks.evicted_at(1, head // 4 * 2 + head % 4 // 2, p) < row)
        shown = browser.run("return sinkShare(1, arguments[0], arguments[1])", row, head)
        check(abs(shown - max(1 - tokens, 0)) < 2e-3, row, shown, 1 - tokens)
        most = max(most, shown)
    check(most > 0.02, "the largest share of the sink:", most)
    text = browser.run("return cellText(drawnMaps[0], arguments[0], -1)", last)
    share = browser.run("return numberText(sinkShare(1, arguments[0], arguments[1]))", last, head)
    check(f"the learned sink, no token: attention {share}" in text, text)
    found, wanted = browser.run("""
        const map = drawnMaps[0], ratio = map.canvas.width / map.canvas.clientWidth;
        const x = (map.left - map.sink + 6) * ratio;
        const y = (map.above + (arguments[0] - firstRow + 0.5) * map.each) * ratio;
        return [[...map.canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3),
            colorOf(map.scale, sinkShare(map.lane, arguments[0], map.head))]""", sinks.first)
    equal(found, wanted, "colour of the sink's cell")
    browser.open(url + "gate/page.html")
    equal(browser.run("return drawnMaps[0].sink"), 0, "a column without a sink")


def words_tell_how_many_heads_keep_them(browser, url, numbers):
    browser.open(url + "gate/page.html#step=381&lane=2")
    kept = browser.run("return [...document.querySelectorAll('.word')]"
                       ".map(w => [w.dataset.kept, w.ariaLabel])")
    equal(len(kept), 382, "words")
    for position in (0, 3, 79, 80, 81, 200, 369, 381):
        n = numbers.n_keeping(2, position, 381)
        equal(int(kept[position][0]), n, position)
        check(kept[position][1].endswith(f"kept by {n} of 48 heads"), kept[position][1])


def words_can_be_picked(browser, url, numbers):
    browser.open(url + "gate/page.html#step=381&lane=1&head=L0.H0")
    browser.click(".word[data-p='79']")
    equal(place(browser)["token"], 79, "picked by the pointer")
    check("position 79" in browser.text("#why"), browser.text("#why"))
    n = numbers.n_keeping(1, 79, 381)
    check(f"After step 381, {n} of 48 heads" in browser.text("#why-sentence"), browser.text("#why-sentence"))
    cells = browser.run("return [...document.querySelectorAll('table.why button')].map(b => b.textContent)")
    equal(len(cells), 48, "a cell for each KV head")
    for g, text in enumerate(cells):
        gone = numbers.evicted_at(1, g, 79)
        check(text.startswith("kept" if gone < 0 else f"× {gone}"), g, text, gone)
    browser.press("ArrowRight", "ArrowRight")  # the word has the focus
    browser.press("Enter")
    equal(place(browser)["token"], 81, "picked by the keyboard")
    browser.click("#why-part button[data-kv='9']")
    equal(place(browser)["head"], 9, "head of a cell")


def slider_moves_the_step(browser, url, numbers):
    browser.open(url + "gate/page.html#step=375&lane=0")
    browser.run("document.getElementById('step').focus()")
    browser.press("ArrowRight", "ArrowRight")
    equal(place(browser)["step"], 377, "two steps on")
    browser.press("Home")
    equal(place(browser)["step"], 369, "the first")
    check("step 369, end of the prompt" in browser.text("#step-text"), browser.text("#step-text"))
    before = browser.run("return document.querySelector('#heads canvas').toDataURL()")
    browser.press("End")
    equal(place(browser)["step"], 381, "the last")
    after = browser.run("return document.querySelector('#heads canvas').toDataURL()")
    check(after != before, "the map stays")
    equal(browser.run("return location.hash").split("&")[0], "#step=381")


def links_lead_to_their_place(browser, url, numbers):
    browser.open(url + "gate/page.html#step=374&lane=2&head=L4.H1&token=79&mode=mask&with=0")
    equal(place(browser),
          {"step": 374, "lane": 2, "head": 33, "token": 79, "mode": "mask", "with": "0"})
    check("Kept tokens of layer 4, KV head 1" == browser.text("#head-title"), browser.text("#head-title"))
    check("minus lane 0" in browser.text("#heads"), browser.text("#heads"))
    browser.run("location.hash = '#step=371&lane=1&head=L1.H7&token=5'")
    browser.run("return new Promise(done => setTimeout(done, 50))")
    equal(place(browser), {"step": 371, "lane": 1, "head": 15, "token": 5, "mode": "attention", "with": ""})
    # What a link names wrongly stays usual.
    browser.open(url + "gate/page.html#step=99999&lane=-1&head=L9.H99&token=x&mode=nosuch&with=7")
    found, usual = place(browser), browser.run("return usualPlace()")
    equal(found, {**usual, "step": 381}, "a wrong link")


def colours_are_those_of_the_program(browser, url, numbers):
    browser.open(url + "gate/page.html#step=381&lane=0&head=L3.H5")
    with open(numbers.colours, encoding="utf-8") as file:
        entries = [tuple(int(n) for n in m) for m in re.findall(r"\{(\d+), (\d+), (\d+)\}",
                   re.search(r"kViridis.*?;", file.read(), re.S).group(0))]
    equal(len(entries), 256, "viridis")
    low, high = browser.run("return lanes[0].scale[place.head]")
    for position in (0, 1, 80, 200, 369):
        value = numbers.attention_at(0, 381, 3, 5, position)
        u = (math.log2(max(value, 1e-30)) - math.log2(low)) / (math.log2(high) - math.log2(low))
        index = min(int(min(max(u, 0), 1) * 256), 255)
        found = browser.run("return colorOf({map: 'viridis', logarithmic: true, low: arguments[0],"
                            "high: arguments[1]}, attentionRow(0, 381, 29)[arguments[2]])",
                            low, high, position)
        check(tuple(found) in entries[max(index - 1, 0):index + 2], position, found, entries[index])


def keyboard_is_enough(browser, url, numbers):
    browser.open(url + "gate/page.html#step=375&lane=1&head=L3.H5&token=80")
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached = []
    for _ in range(90):
        browser.press("Tab")
        reached.append(browser.run("""
            const e = document.activeElement, s = getComputedStyle(e);
            return [e.id || e.className || e.tagName, e.matches(':focus-visible'),
                s.outlineStyle !== 'none' || s.boxShadow !== 'none' || e.matches('select, input')]"""))
        if reached[-1][0] == "play":
            break
    names = [name for name, _, _ in reached]
    for name in ("skip", "copy-link", "theme", "why", "word watched picked", "atlas", "step", "lane", "head",
                 "play"):
        check(name in names, name, "is not reached by Tab:", names)
    check(all(seen for _, visible, seen in reached if visible), "no outline:", reached)
    browser.run("document.activeElement.blur()")
    browser.press("]", ".", "l", "m")
    equal(place(browser), {"step": 375, "lane": 2, "head": 38, "token": 80, "mode": "mask", "with": ""})
    browser.press("d", "ArrowLeft")
    equal((place(browser)["with"], place(browser)["step"]), ("0", 374))
    browser.run("document.getElementById('atlas').focus()")
    browser.press("ArrowUp", "ArrowLeft")
    equal(place(browser)["head"], 29, "the atlas by keys")
    browser.run("document.querySelector('#heads canvas').focus()")
    browser.press("ArrowRight", "ArrowDown", "ArrowRight")
    equal((place(browser)["token"], place(browser)["step"]), (82, 375), "the map by keys")
    check(browser.run("return document.activeElement.matches('#heads canvas')"), "the map loses the focus")


# Names, roles, order of headings, languages, labels, and the contrast of each text to what is behind it.
AUDIT = r"""
    const faults = [];
    const say = (e, what) => faults.push(`${e.tagName.toLowerCase()}#${e.id}.${e.className}: ${what}`);
    const name = e => (e.getAttribute('aria-label') || e.textContent || e.title || '').trim()
        || [...(e.labels ?? [])].map(l => l.textContent).join(' ').trim()
        || (e.getAttribute('aria-labelledby') ?? '').split(' ')
            .map(i => document.getElementById(i)?.textContent ?? '').join('');
    if (!document.documentElement.lang) faults.push('no language');
    if (document.querySelectorAll('h1').length !== 1) faults.push('not one h1');
    let level = 1;
    for (const h of document.querySelectorAll('h1, h2, h3, h4')) {
        const now = Number(h.tagName[1]);
        if (now > level + 1) say(h, 'a heading is left out before it');
        level = now;
        if (!h.textContent.trim()) say(h, 'an empty heading');
    }
    const controls = 'button, select, input, [role=button], [role=img], [role=group], [tabindex="0"]';
    for (const e of document.querySelectorAll(controls))
        if (!name(e)) say(e, 'no name');
    for (const e of document.querySelectorAll('canvas, svg'))
        if (!e.closest('[aria-hidden=true]') && e.getAttribute('role') !== 'img')
            say(e, 'a picture without a role');
    for (const t of document.querySelectorAll('table')) {
        if (!t.caption?.textContent.trim()) say(t, 'a table without a caption');
        if (![...t.querySelectorAll('th')].every(th => th.scope)) say(t, 'a title without a scope');
    }
    for (const attribute of ['aria-labelledby', 'aria-controls', 'for'])
        for (const e of document.querySelectorAll(`[${attribute}]`))
            for (const id of e.getAttribute(attribute).split(' '))
                if (!document.getElementById(id)) say(e, `names ${id}, which is not there`);
    const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
    if (new Set(ids).size !== ids.length) faults.push('an id twice');
    const parse = text => (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    const over = (top, below) => {
        const a = top[3] ?? 1;
        return [0, 1, 2].map(i => top[i] * a + below[i] * (1 - a));
    };
    const behind = e => {
        const layers = [];
        for (let at = e; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
    };
    const light = c => c.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let n = 0;
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const e = node.parentElement;
        if (!node.data.trim() || !e.checkVisibility?.()) continue;
        if (e.closest('script, style, noscript, .unseen, .skip, option')) continue;
        let opacity = 1;
        for (let at = e; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
        const back = behind(e), ink = parse(getComputedStyle(e).color);
        const shown = over([...ink.slice(0, 3), (ink[3] ?? 1) * opacity], back);
        const [a, b] = [light(shown), light(back)].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(getComputedStyle(e).fontSize);
        ++n;
        if (ratio < (size >= 24 ? 3 : 4.5))
            say(e, `contrast ${ratio.toFixed(2)} of “${node.data.trim().slice(0, 30)}”`);
    }
    if (n < 300) faults.push(`only ${n} texts seen`);
    return [...new Set(faults)].slice(0, 20)
"""


def has_names_roles_and_contrast(browser, url, numbers):
    browser.open(url + "gate/page.html#step=376&lane=1&with=all")
    browser.run("for (const part of document.querySelectorAll('details')) part.open = true;"
                "drawAtlasTable(); byId('keys').hidden = false")
    for theme in ("light", "dark"):
        browser.run("redraw(arguments[0]); return new Promise(done => setTimeout(done, 250))", theme)
        browser.run("document.getAnimations().forEach(one => one.finish())")  # a busy machine is late
        equal(browser.run(AUDIT), [], theme)


def fits_a_phone(browser, url, numbers):
    browser.resize(390, 844)
    try:
        browser.open(url + "gate/page.html#step=381&lane=1")
        wide = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        check(wide[0] <= wide[1], "wider than the phone:", wide)
        small = browser.run("""
            return [...document.querySelectorAll('footer button, footer select, .tools button, .why')]
                .map(e => e.getBoundingClientRect()).filter(b => b.height < 24 || b.width < 24).length""")
        equal(small, 0, "controls too small for a finger")
        shown = browser.run("const b = document.getElementById('step').getBoundingClientRect();"
                            "return b.width > 200 && b.bottom <= window.innerHeight")
        check(shown, "the slider has no room")
    finally:
        browser.resize(1280, 900)


def sends_nothing(browser, url, numbers):
    browser.open(url + "gate/page.html")
    equal(browser.run("return performance.getEntriesByType('resource').length"), 0, "requests")
    equal([path for path in numbers.requested if path != "/gate/page.html"], [], "asked of the server")
    page = numbers.page
    equal(re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']*""", page.split("<script")[0]), [], "addresses")


def works_from_disk(browser, url, numbers):
    file = os.path.join(numbers.folder, "gate", "page.html")
    browser.open(f"file://{file}#step=372&lane=2&head=L0.H3")
    equal(place(browser)["step"], 372)
    # The answer is painted before any script: it stands in the markup.
    first = numbers.page.split("<script")[0]
    check("The code of the garden gate is" in first or "garden gate?" in first, "no question in the markup")
    check("threw “4821” away" in first, "no sentence in the markup")
    paint, unpack = browser.run("""
        const at = name => performance.getEntriesByName(name)[0].startTime;
        return [at("first-contentful-paint"), at("unpack")]""")
    check(paint <= unpack, "the first paint comes", paint, "ms after the start, the numbers", unpack)


def hostile_tokens_stay_text(browser, url, numbers):
    browser.open(url + "hostile/page.html")
    equal(browser.run("return window.broken ?? null"), None, "markup of a token ran")
    text = browser.text("#text")
    check("</script><script>window.broken = 1</script>" in text, text)
    # The mark is a token, or three bytes of which each is one.
    check("\u202e" not in text and ("<U+202E>" in text or "<0xE2><0x80><0xAE>" in text), text)
    check("{{run}}" in text and "&amp;" in text, text)
    equal(browser.run("return document.querySelectorAll('main img, main script').length"), 0, "elements")
    with open(os.path.join(numbers.folder, "hostile", "page.html"), "rb") as file:
        data = file.read()
    check("\u202e".encode() not in data, "a mark of direction stands in the file")
    data.decode("utf-8")


def lessons_are_checked_in_the_page(browser, url, numbers):
    browser.open(url + "site/index.html")
    links = browser.run("return [...document.querySelectorAll('main a')].map(a => a.getAttribute('href'))")
    check("09-lost-needle.html" in links and "manual/lessons.html" in links, links)
    for link in links:
        check(os.path.exists(os.path.join(numbers.folder, "site", link)), link, "is not there")
    browser.open(url + "site/09-lost-needle.html")
    equal(browser.run("return forms.length"), 3, "predictions")
    answer = """
        const form = forms[arguments[0]], right = Number(form.dataset.right);
        const choices = form.querySelectorAll('input[type=radio]');
        choices[arguments[1] ? right : (right + 1) % choices.length].checked = true;
        form.requestSubmit();
        const seen = form.closest('.step').querySelector('.seen');
        return [form.querySelector('.verdict').textContent, seen.open]"""
    equal(browser.run(answer, 0, False), ["Not quite. It is: Only one: TOVA", True])
    equal(browser.run(answer, 0, True), ["Your prediction was right. It is: Only one: TOVA", True])
    browser.run(answer, 1, True)
    browser.run(answer, 2, True)
    equal(browser.text("#score"), "You predicted 2 of 3 right.")  # the first try counts
    measured = table(browser, ".seen table:last-of-type")
    check(len(measured) > 1, measured)
    run = browser.run("return document.querySelector('a[href*=run]').getAttribute('href')")
    browser.open(url + "site/" + run)
    check("garden gate" in browser.text("#question"), browser.text("#question"))
    browser.open(url + "site/manual/lessons.html")
    links = browser.run("return [...document.querySelectorAll('main a')].map(a => a.getAttribute('href'))")
    for link in links:
        file = os.path.join(numbers.folder, "site", "manual", link.split("#")[0])
        check(link.startswith("#") or os.path.exists(file), link, "is not there")
    equal([path for path in numbers.requested if not path.startswith("/site/")], [], "asked of the server")


CHECKS = [shows_the_answers, numbers_equal_those_of_replay, learned_sinks_have_a_column,
          words_tell_how_many_heads_keep_them, words_can_be_picked, slider_moves_the_step,
          links_lead_to_their_place, colours_are_those_of_the_program, keyboard_is_enough,
          has_names_roles_and_contrast, fits_a_phone, sends_nothing, works_from_disk,
          hostile_tokens_stay_text, lessons_are_checked_in_the_page]


def take_pictures(browser, url, folder):
    os.makedirs(folder, exist_ok=True)
    for name, width, theme in (("desktop", 1280, "light"), ("dark", 1280, "dark"), ("phone", 390, "light")):
        browser.resize(width, 900)
        browser.open(url + "gate/page.html")
        browser.run("redraw(arguments[0]); return new Promise(done => setTimeout(done, 300))", theme)
        with open(os.path.join(folder, f"{name}-first.png"), "wb") as file:
            file.write(browser.picture())
        with open(os.path.join(folder, f"{name}.png"), "wb") as file:
            file.write(browser.whole_picture())
    browser.resize(1280, 900)
    with open(os.path.join(folder, "print.pdf"), "wb") as file:
        file.write(browser.printed())


def make_pages(program, sources, folder):
    def keyhole(*words):
        made = subprocess.run([program, *words], capture_output=True, text=True, cwd=folder, check=False)
        check(made.returncode == 0, made.stderr)
        return made.stdout
    lanes = ["--lane", "full", "--lane", "h2o:budget=64", "--lane", "tova:budget=64"]
    prompt = os.path.join(sources, "assets", "prompts", "garden-gate.txt")
    keyhole("decode", "--prompt-file", prompt, "--tokens", str(N_STEPS), *lanes, "--save", "gate.keyhole")
    printed = keyhole("replay", "gate.keyhole", "--out", "gate", "--right", "4821", "--export",
                      "page,run,attention,scores,mask-table")
    keyhole("decode", "--prompt", HOSTILE, "--tokens", "4", "--lane", "full", "--lane", "h2o:budget=8",
            "--out", "hostile", "--export", "page")
    keyhole("lesson", "9", "--export", "site", "site")
    keyhole("decode", "--model", os.path.join(sources, "tests", "fixtures", "families", "gpt_oss"),
            "--prompt", "onceuponatimetherewasafox", "--tokens", str(N_STEPS), "--lane", "full", "--lane",
            "h2o:budget=8", "--out", "sink", "--export", "page,run,attention,scores,mask-table",
            "--ignore-eos")
    numbers = Numbers(os.path.join(folder, "gate"), 3)
    numbers.sinks = Numbers(os.path.join(folder, "sink"), 2)
    numbers.printed, numbers.folder, numbers.requested = printed, folder, []
    numbers.colours = os.path.join(sources, "engine", "figure", "colormap_tables.inc")
    with open(os.path.join(folder, "gate", "page.html"), encoding="utf-8") as file:
        numbers.page = file.read()
    check(len(numbers.page.encode()) <= 1_000_000, "bytes of the page:", len(numbers.page.encode()))
    return numbers


@contextlib.contextmanager
def served(folder, requested):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            requested.append(self.path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()


def main(program, sources, pictures=None):
    kinds = browsers_here()
    if not kinds:
        print("skipped: no browser; install chromium and chromium-driver, or firefox-esr")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        numbers = make_pages(program, sources, folder)
        with served(folder, numbers.requested) as url:
            for kind in kinds:
                browser = kind(1280, 900)
                try:
                    for one in CHECKS:
                        numbers.requested.clear()
                        try:
                            one(browser, url, numbers)
                            print(f"ok      {kind.name}: {one.__name__}", flush=True)
                        except AssertionError as error:
                            failed += 1
                            print(f"FAILED  {kind.name}: {one.__name__}: {error}", flush=True)
                    if pictures and kind.name == "Chromium":
                        take_pictures(browser, url, pictures)
                finally:
                    browser.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
