"""Recall tasks: facts placed in narrative and asked for later; dialogues, lists to copy, questions about a
passage.

All words and templates are in ../tasks/words.json, which the program reads too. `keyhole eval --task` makes
exactly the prompts that test_task() makes here from the same seed (engine/eval/tasks.cpp is this file's twin;
a test compares them). Random numbers are Philox4x32-10, counted by (seed, stream, index): question 17 of a
seed does not depend on where, or in which order, it is made.

    words = Words("train")                # or "test": other names and nouns, first templates only
    draw = Draw(seed, stream, index)      # below(n), pick(list), weighted(options), random(), uniform(a, b)
    words.fact(draw, "code")              # Fact: key, statement, ask, answer; an update if the kind has one
    words.facts(draw, "said", 4)          # facts that do not clash; of this kind: the lines of one dialogue
    words.listing(draw)                   # Fact: statement "They counted: ...", ask "Once more:", answer
    test_task("needle", seed, index, context, distance, sentences, passages, count)  # a Task
    Windows(tok).window(rng, text, length, answer, fill)                             # ids and weights

Tasks (TASKS): needle, one code in narrative; fact, one of three facts in words; needles, one of five codes;
latest, the newer of two codes of one thing; dialogue, who of four said it; list, a list to be repeated;
passage, a question about a tale (FairytaleQA). An answer is right when greedy decoding gives all of its
tokens."""
import bisect
import itertools
import json
import pathlib
import re
from dataclasses import dataclass

WORDS = pathlib.Path(__file__).parent.parent / "tasks" / "words.json"
# A task's index is its Philox stream.
TASKS = ["needle", "fact", "needles", "latest", "dialogue", "list", "passage"]
TRAINING_STREAM = 1000
# Weight of a value where it is first stated. The model cannot predict the value, but it can learn its form.
STATED = 0.1


def philox4x32_10(counter, key):
    """Returns one block of Philox4x32-10 (Salmon et al., SC'11); as engine/base/philox.h."""
    a, b, c, d = counter
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & 0xFFFFFFFF, (p >> 32) ^ d ^ k1, p & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


class Draw:
    """Random numbers of one question: words of Philox blocks 0, 1, 2 ... at counter (block, index, stream,
    0)."""

    def __init__(self, seed, stream, index):
        self.seed, self.stream, self.index, self.block, self.left = seed, stream, index, 0, []

    def word(self):
        if not self.left:
            self.left = list(philox4x32_10((self.block, self.index, self.stream, 0), self.seed))[::-1]
            self.block += 1
        return self.left.pop()

    def below(self, n):
        """Returns a number in 0 .. n - 1."""
        return self.word() * n >> 32

    def pick(self, items):
        return items[self.below(len(items))]

    def weighted(self, options):
        """Returns a random value of options()."""
        ends, values = options
        return values[bisect.bisect_right(ends, self.below(ends[-1]))]

    # For training only; the C++ twin has no such functions.
    def random(self):
        return self.word() / 2**32

    def uniform(self, low, high):
        return low + (high - low) * self.random()


def options(pairs):
    """Converts [[weight, value], ...] for Draw.weighted()."""
    pairs = list(pairs)
    return list(itertools.accumulate(w for w, _ in pairs)), [value for _, value in pairs]


@dataclass
class Fact:
    kind: str
    key: str        # different for all facts of one text
    value: str
    statement: str  # without a leading blank
    ask: str        # up to the answer, without a trailing blank
    answer: str     # without a leading blank; a full stop follows
    stated: str = ""        # `statement` with its value in [brackets]
    update: str = ""        # a later statement with another value, in [brackets], where the kind has one
    update_ask: str = ""
    update_answer: str = ""
    slots: dict = None


@dataclass
class Task:
    prompt: str    # ends before the answer, without a blank
    answer: str    # begins with a blank
    distance: int  # tokens between the end of the asked statement and the answer


def split_value(text):
    """Splits 'The code is [4821].' into before, value, after. Drops the blank before the value."""
    before, rest = text.split("[")
    value, after = rest.split("]")
    return before.rstrip(" "), value, after


class Words:
    """Word lists and templates; split: "train" or "test". ask: "question", or "statement": texts end with the
    statement itself up to its value."""

    def __init__(self, split, ask="question"):
        self.data = json.loads(WORDS.read_text())
        self.split = split
        self.ask = ask
        self.rules = {}
        for name, words in self.data["words"].items():
            self.rules[name] = options([1, w] for w in words[split].split())
        for name, rule in self.data["rules"].items():
            self.rules[name] = options(rule[split] if isinstance(rule, dict) else rule)
        self.fact_mix = options(self.data["fact_mix"])

    def expand(self, draw, name):
        """Returns one text of a rule: {rule}, {^rule} with a capital, {#4} four digits, {#2-99} a number."""
        if name[0] == "^":
            text = self.expand(draw, name[1:])
            return text[:1].upper() + text[1:]
        if name[0] == "#":
            low, _, high = name[1:].partition("-")
            if not high:
                return "".join(str(draw.below(10)) for _ in range(int(low)))
            return str(int(low) + draw.below(int(high) - int(low) + 1))
        return self.fill(draw.weighted(self.rules[name]), lambda inner: self.expand(draw, inner))

    @staticmethod
    def fill(text, value_of):
        return re.sub(r"\{([^}]*)\}", lambda m: value_of(m.group(1)), text) if "{" in text else text

    def template(self, draw, templates):
        """Returns a random template in training, the first one in tests."""
        return draw.weighted(options(templates)) if self.split == "train" else templates[0][1]

    def fact(self, draw, kind):
        spec = self.data["facts"][kind]
        slots = {slot: self.expand(draw, rule) for slot, rule in spec["slots"]}
        fill = lambda text: self.fill(text, slots.__getitem__)
        stated = fill(self.template(draw, spec["statements"]))
        question = fill(self.template(draw, spec["questions"]))
        ask, answer, _ = split_value(stated if self.ask == "statement" else question)
        fact = Fact(kind, fill(spec["key"]), slots[spec["value"]], stated.replace("[", "").replace("]", ""),
                    ask, answer, stated, slots=dict(slots))
        if "updates" in spec:
            rule = dict(spec["slots"])[spec["value"]]
            while slots[spec["value"]] == fact.value:
                slots[spec["value"]] = self.expand(draw, rule)
            fact.update = fill(self.template(draw, spec["updates"]))
            question = fill(self.template(draw, spec["questions_now"]))
            fact.update_ask, fact.update_answer, _ = split_value(
                fact.update if self.ask == "statement" else question)
        return fact

    def another_ask(self, draw, fact):
        """Returns another question about a fact: ask and answer."""
        text = self.template(draw, self.data["facts"][fact.kind]["questions"])
        return split_value(self.fill(text, fact.slots.__getitem__))[:2]

    def facts(self, draw, kind, n):
        """Returns facts of one kind with different values whose keys share no word of four letters or
        more."""
        found, used, values = [], set(), set()
        while len(found) < n:
            fact = self.fact(draw, kind)
            words = {w for w in fact.key.split(" ") if len(w) >= 4}
            if words & used or fact.value in values:
                continue
            found.append(fact)
            used |= words
            values.add(fact.value)
        return found

    def listing(self, draw):
        """Returns a list of different items of one rule."""
        low, high = self.data["tasks"]["list"]["sizes"][self.split]
        n = low + draw.below(high - low + 1)
        rule = draw.weighted(self.rules["list_item"])
        items = []
        while len(items) < n:
            item = self.expand(draw, rule)
            if item not in items:
                items.append(item)
        text = ", ".join(items)
        first = self.expand(draw, "list_first")
        again = self.expand(draw, "list_again")
        return Fact("list", first, text, f"{first} {text}.",
                    first if self.ask == "statement" else again, text, f"{first} [{text}].")

# -- test prompts, the twin of engine/eval/tasks.cpp ---------------------------------------------------------

TITLES = {"Mr", "Mrs", "Dr", "St"}
LONGEST_SENTENCE = 300  # bytes


def split_sentences(text):
    """Splits a text into sentences. Each begins with ' ', or with an empty line if it is the first of a
    paragraph. Drops headings."""
    pieces = []
    for paragraph in text.replace("<|endoftext|>", "\n\n").split("\n\n"):
        words = [w for w in re.split(r"[ \t\r\n]+", paragraph) if w]
        if not words or words[-1][-1] not in ".!?\"'":
            continue
        lead, begin = "\n\n", 0
        for i, word in enumerate(words):
            core = word.rstrip("\"')")
            ends = core[-1:] in (".", "!", "?") and core[:-1].lstrip("\"'(") not in TITLES
            if i + 1 < len(words) and not (
                    ends and (words[i + 1][0] in "\"'(" or "A" <= words[i + 1][0] <= "Z")):
                continue
            sentence = " ".join(words[begin:i + 1])
            begin = i + 1
            if len(sentence.encode()) <= LONGEST_SENTENCE:
                pieces.append(lead + sentence)
                lead = " "
    return pieces


def split_passages(text, longest_answer):
    """Returns (passage, question, answer) of FairytaleQA text where the passage contains the answer
    literally."""
    found = []
    for doc in text.split("<|endoftext|>"):
        passage, *rest = doc.strip("\n").split("\n\nQuestion: ")
        for part in rest:
            question, _, answer = part.partition("\nAnswer: ")
            answer = answer.strip("\n")
            if answer and len(answer.encode()) <= longest_answer and answer in passage:
                found.append((passage, question, answer))
    return found


def test_task(kind, seed, index, context, distance, sentences, passages, count, split="test"):
    """Returns question `index` of a kind.

    context: largest number of tokens of prompt and answer, with <|endoftext|> in front. distance: (low,
    high), drawn from uniformly; the result is the nearest distance that the ends of sentences allow.
    sentences: split_sentences(); passages: split_passages(), for `passage` only. count(text): number of
    tokens of a piece of text. split: "train", "test" or Words."""
    words = Words(split) if isinstance(split, str) else split
    spec = words.data["tasks"][kind]
    draw = Draw(seed, TASKS.index(kind), index)
    if kind == "passage":
        return passage_task(draw, context, sentences, passages, count)
    old = None
    if kind == "list":
        fact, others = words.listing(draw), []
    else:
        made = words.facts(draw, draw.weighted(options(spec["facts"])), spec["others"] + 1)
        chosen = draw.below(len(made)) if kind == "dialogue" else 0
        fact, others = made[chosen], made[:chosen] + made[chosen + 1:]
    statement, ask, answer = fact.statement, fact.ask, fact.answer
    if kind == "latest":
        old, statement = " " + statement, fact.update.replace("[", "").replace("]", "")
        ask, answer = fact.update_ask, fact.update_answer
    question, answer = " " + ask, " " + answer
    block, tail, spread = " " + statement, 0, [" " + o.statement for o in others]
    if kind == "dialogue":  # one block: the speakers in the order of their facts
        block = "\n\n" + " ".join(f.statement for f in made)
        tail = sum(count(" " + f.statement) for f in made[chosen + 1:])
        spread = []
    sizes = [count(s) for s in spread]
    old_size = count(old) if old else 0
    room = context - 1 - count(question) - count(answer) - count(block) - sum(sizes) - old_size
    filler, edges = narrative(draw, sentences, room, count)
    near = count(question) + tail
    low, high = max(distance[0], near), max(near, min(distance[1], near + edges[-1] + sum(sizes)))
    low = min(low, high)
    wanted = low + draw.below(high - low + 1)
    places = [draw.below(len(edges)) for _ in spread]
    # Chooses the edge that brings the asked block nearest to the wanted distance. Other facts at that edge
    # precede it.
    best = None
    for k, edge in enumerate(edges):
        found = near + edges[-1] - edge + sum(n for n, p in zip(sizes, places) if p > k)
        if best is None or abs(found - wanted) < abs(best[1] - wanted):
            best = (k, found)
    at, found = best
    if old:
        places.append(draw.below(at + 1))
        spread.append(old)
    text = ""
    for k in range(len(edges)):
        text += "".join(s for s, p in zip(spread, places) if p == k)
        if k == at:
            text += block
        if k < len(filler):
            text += filler[k]
    return Task((text + question).lstrip(" \n"), answer, found)


def narrative(draw, sentences, room, count):
    """Returns consecutive sentences that fit into `room` tokens, from a random one on, and the tokens before
    each edge."""
    if room < 0:
        raise ValueError("the question does not fit into the context")
    start, filler, edges = draw.below(len(sentences)), [], [0]
    while True:
        if len(filler) == len(sentences):
            raise ValueError("the narrative is too short for the context")
        sentence = sentences[(start + len(filler)) % len(sentences)]
        n = count(sentence)
        if edges[-1] + n > room:
            return filler, edges
        filler.append(sentence)
        edges.append(edges[-1] + n)


def passage_task(draw, context, sentences, passages, count):
    """Returns a passage and a question about it. Other narrative fills the context before it."""
    for _ in range(1000):
        passage, ask, answer = passages[draw.below(len(passages))]
        block, question, reply = "\n\n" + passage, "\n\nQuestion: " + ask + "\nAnswer:", " " + answer
        room = context - 1 - count(block) - count(question) - count(reply)
        if room >= 0:
            filler, _ = narrative(draw, sentences, room, count)
            after = passage[passage.index(answer) + len(answer):]
            prompt = "".join(filler) + block + question
            return Task(prompt.lstrip(" \n"), reply, count(after) + count(question))
    raise ValueError("no passage fits into the context")


# -- training windows ----------------------------------------------------------------------------------------

class Windows:
    """Makes training windows: lists of token ids with a weight for each id.

    Answers (tokens that only the context determines) have a larger weight. Values when first stated have a
    small one, since nothing determines them. Every piece of text begins with a blank or an empty line and
    ends without one, so pieces that are encoded separately and joined give the same tokens as the joined
    text."""

    def __init__(self, tok, words=None):
        self.tok, self.words, self.cache = tok, words or Words("train"), {}

    def encode(self, text):
        ids = self.cache.get(text)
        if ids is None:
            ids = self.tok.encode(text, add_special_tokens=False).ids
            if len(self.cache) < 200000:
                self.cache[text] = ids
        return ids

    def piece(self, text, weight, lead=" "):
        """Encodes 'The code is [4821].' Returns ids and weights: `weight` for the bracketed value, 1 for the
        rest."""
        before, value, after = split_value(lead + text)
        ids, weights = [], []
        for part, w in ((before, 1.0), (" " + value, weight), (after, 1.0)):  # the blank belongs to the value
            more = self.encode(part)
            ids += more
            weights += [w] * len(more)
        return ids, weights

    def listing(self, draw, ids):
        """Returns a list from the word lists or, half the time, of words from a text, so that copying does
        not depend on known words."""
        items = sorted(set(re.findall(r"\b[A-Za-z]{3,10}\b", self.tok.decode(ids.tolist()))))
        if draw.below(2) or len(items) < 12:
            return self.words.listing(draw)
        first, n = self.words.expand(draw, "list_first"), 4 + draw.below(8)
        chosen = [items.pop(draw.below(len(items))) for _ in range(n)]
        return Fact("list", first, "", "", "", ", ".join(chosen), f"{first} [{', '.join(chosen)}].")

    def repeated(self, draw, filler, answer):
        """Returns a sentence of the filler twice: two pieces."""
        sentence = draw.pick(filler)[:60].tolist()
        known = max(0, len(sentence) - 4)  # no question announces it: the first tokens must be seen
        return ((sentence, [1.0] * len(sentence)),
                (sentence, [1.0] * (len(sentence) - known) + [answer / 2] * known))

    KINDS = ((34, "fact"), (14, "repeat"), (22, "list"), (12, "latest"), (18, "dialogue"))

    def window(self, rng, text, length, answer, fill, kinds=KINDS):
        """Returns `length` ids and weights. fill: share of plain narrative, which also determines the
        distances."""
        draw, words = Draw(rng.getrandbits(63), TRAINING_STREAM, 0), self.words
        filler = text.filler(rng, int(fill * length) + 8)
        kinds, updated = options(kinds), options([[6, "code"], [2, "keeps"], [2, "lives"]])
        events, used, keys = [], 0, set()  # (position in 0..1, ids, weights)
        listed = False  # at most one list: "Once more:" would be ambiguous

        def put(at, piece):
            nonlocal used
            events.append((at, *piece))
            used += len(piece[0])

        lead = lambda: "\n\n" if draw.below(5) == 0 else " "
        while used < (1 - fill) * length:
            far = draw.below(10) < 4  # from beginning to end; uniform draws would make long distances rare
            at, kind = draw.random() * (0.15 if far else 0.8), draw.weighted(kinds)
            after = lambda: 1 - draw.random() * 0.2 if far else at + draw.random() * (1 - at)
            if kind == "list" and not listed:
                listed, fact = True, self.listing(draw, text.window(rng, 200))
                put(at, self.piece(fact.stated, STATED))
                for _ in range(1 + draw.below(2)):
                    when, ask = after() + 1e-6, words.expand(draw, "list_again")
                    put(when, self.piece(f"{ask} [{fact.answer}].", answer / 2))
                continue
            if kind in ("repeat", "list"):
                first, second = self.repeated(draw, filler, answer)
                put(at, first)
                put(after(), second)
                continue
            facts = words.facts(draw, "said", 2 + draw.below(4)) if kind == "dialogue" else [
                words.fact(draw, draw.weighted(updated) if kind == "latest"
                           else draw.weighted(words.fact_mix))]
            if any((f.kind, f.key) in keys for f in facts):
                continue
            keys.update((f.kind, f.key) for f in facts)
            for i, f in enumerate(facts):  # the lines of a dialogue stay together
                put(at + 1e-9 * i, self.piece(
                    f.stated, STATED, lead() if kind != "dialogue" else " " if i else "\n\n"))
            if kind == "latest":
                at += draw.random() * (0.1 if far else 1 - at)
                put(at, self.piece(facts[0].update, STATED, lead()))
            for _ in range((1, 1, 2, 3)[draw.below(4)]):
                f = draw.pick(facts)
                ask, reply = ((f.update_ask, f.update_answer) if kind == "latest"
                              else words.another_ask(draw, f))
                put(after() + 1e-6, self.piece(f"{ask} [{reply}].", answer, lead()))
        events.sort(key=lambda e: e[0])
        ids, weights = [], []
        slots = len(filler)
        for i, sentence in enumerate(filler):
            ids += sentence.tolist()
            weights += [1.0] * len(sentence)
            while events and (events[0][0] * slots < i + 1 or i == slots - 1):
                _, more, w = events.pop(0)
                ids += more
                weights += w
        if len(ids) < length:
            more = text.window(rng, length - len(ids)).tolist()
            ids += more
            weights += [1.0] * len(more)
        return ids[:length], weights[:length]
