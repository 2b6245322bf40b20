"""Recall tasks: facts dropped into narrative, asked again later; and lists and sentences that are repeated.

A window is a list of token ids with a weight for each: answers (tokens that can be known only by looking back)
count more, values when first stated count nothing, since nobody can know them.
Every piece of text begins with a space or an empty line and ends without one, so pieces that are encoded one by
one and joined give the same tokens as the joined text."""
import numpy as np

NAMES = """Anna Tom Mary Jack Peter Lucy Ben Rose Sam Nell Hugo Clara Will Emma Dick Polly Max Ruth Fred Jane Karl Elsie
Ned Sue Otto Molly Hans Greta Paul Kate Jim Betty Leo Ida Frank Ella Harry Nora Robert Grace Philip May John Alice
Edward Helen Martin Susan Oscar Flora Toby Edith George Bella Henry Marta Simon Daisy Arthur Hilda Rufus Dora Walter
Fanny Ralph Laura Conrad Sally Giles Agnes Roger Lena Victor Amy Felix Maud Luke Eva Adam Julia David Rachel Mark
Tilda Nils Ingrid Ivan Olga Kofi Amina Ravi Mina Juma Sita Tariq Leila Pedro Rosa Diego Carmen
Bruno Hetty Cyril Winnie Basil Myra Gus Thea Abel Vera Colin Esther Miles Judith""".split()
ROOMS = """garden kitchen cellar barn tower castle stable school church mill forest harbour attic bakery palace farm
orchard library village market river north south east west old new little great iron wooden stone green blue red
white black golden silver copper glass round narrow hidden secret broken quiet upper lower inner outer front back
meadow chapel pantry bridge island prison temple wizard king queen
dairy inn laundry nursery brass marble crooked hermit""".split()
THINGS = """gate door shed house box chest room tower safe cupboard wall boat cart lock store well vault drawer hut
cabin wagon trunk desk gateway stair tunnel passage cave ship lodge hall window
hatch locker coach larder pavilion""".split()
ADJECTIVES = """silver golden red blue green white black little big old new brown yellow grey pink round long short heavy
broken shiny wooden iron glass paper soft tiny purple striped painted dusty bright rusty woollen velvet
crooked copper spotted ivory""".split()
OBJECTS = """key ring cup ball kite hat doll book spoon knife lamp coin letter apple drum flute whistle bell clock
mirror shoe scarf glove map rope basket candle needle button feather stone shell nut ribbon crown brush umbrella
comb lantern thimble marble compass""".split()
BOXES = """box bag chest basket drawer jar cupboard sack pot bucket trunk barrel bowl case pocket tin tub hamper
crate kettle satchel""".split()
PLACES = """river mill church lake bridge forest hill sea well market road pond wall orchard station garden meadow
school harbour tower field brook stable
quarry fountain inn chapel""".split()
OWNERS = """miller king farmer baker queen tailor sailor hunter teacher smith doctor prince soldier shepherd widow
cook captain giant witch fisherman gardener princess carpenter merchant
cobbler hermit weaver duke""".split()
ANIMALS = """dog cat horse goat donkey pony bird cow parrot rabbit fox bear mule sheep hen goose lamb pig
monkey owl puppy ox""".split()
PLURALS = """apples eggs sheep hens coins books nuts goats marbles buttons ducks pears stones bells candles plums
beads cows shells cakes
turnips ribbons lambs onions""".split()
COLOURS = "red blue green white black yellow brown grey pink purple orange silver golden scarlet".split()
HELD_OUT = 0.1  # the last tenth of each list is kept for the evaluation

ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t tr v w z".split()
VOWELS = "a e i o u ai ee oo ou".split()
CODAS = ["", "", "l", "n", "r", "s", "m", "ck", "nd", "t", "x", "ll"]


class Tasks:
    def __init__(self, tok, held_out=False):
        self.tok = tok
        self.cache = {}
        cut = lambda words: words[-max(3, int(len(words) * HELD_OUT)):] if held_out else words[:-max(3, int(len(words) * HELD_OUT))]
        self.names, self.rooms, self.things, self.adjectives = map(cut, (NAMES, ROOMS, THINGS, ADJECTIVES))
        self.objects, self.boxes, self.places, self.owners = map(cut, (OBJECTS, BOXES, PLACES, OWNERS))
        self.animals, self.plurals, self.colours = cut(ANIMALS), cut(PLURALS), COLOURS

    def encode(self, text):
        ids = self.cache.get(text)
        if ids is None:
            ids = self.tok.encode(text, add_special_tokens=False).ids
            if len(self.cache) < 200000:
                self.cache[text] = ids
        return ids

    # -- words ---------------------------------------------------------------------------------------------------

    def name(self, rng):
        if rng.random() < 0.6:
            return rng.choice(self.names)
        return self.invented(rng)

    def invented(self, rng):
        """A name nobody knows: its tokens can only be copied."""
        syllable = lambda: rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
        return "".join(syllable() for _ in range(rng.choice((1, 2, 2, 3)))).capitalize()

    def thing(self, rng):
        r = rng.random()
        if r < 0.7:
            return f"{rng.choice(self.rooms)} {rng.choice(self.things)}"
        if r < 0.85:
            return f"{rng.choice(self.owners)}'s {rng.choice(self.things)}"
        return rng.choice(self.things)

    # -- facts: key, statements, questions -------------------------------------------------------------------------
    # In statements and questions the part in [brackets] is the value. One of each is drawn every time.

    def code(self, rng):
        t, v = self.thing(rng), f"{rng.randrange(10000):04d}"
        if rng.random() < 0.7:
            return ("code", t), [f"The code of the {t} is [{v}]."], [f"What is the code of the {t}? [{v}]."]
        word = rng.choice(("code", "code", "secret code", "number", "secret number"))
        return ((word, t), [
            f"The {word} of the {t} is [{v}].", f"The {word} of the {t} was [{v}].",
            f"The {word} for the {t} is [{v}]."],
            [f"What is the {word} of the {t}? [{v}].", f"What is the {word} for the {t}? [{v}].",
             f"Do you remember the {word} of the {t}? It is [{v}].",
             f"Remember, the {word} of the {t} is [{v}]."])

    def keeps(self, rng):
        n, o = self.name(rng), f"{rng.choice(self.adjectives)} {rng.choice(self.objects)}"
        b = f"{rng.choice(self.adjectives)} {rng.choice(self.boxes)}"
        return (("keeps", o), [f"{n} keeps the {o} in the [{b}].", f"{n} put the {o} in the [{b}]."],
                [f"Where does {n} keep the {o}? In the [{b}].", f"Where is the {o}? In the [{b}].",
                 f"What is in the {b}? The [{o}].", f"Who has the {o}? [{n}]."])

    def named(self, rng):
        a, v = f"{rng.choice(self.owners)}'s {rng.choice(self.animals)}", self.name(rng)
        return (("named", a), [f"The name of the {a} is [{v}].", f"The {a} is called [{v}]."],
                [f"What is the name of the {a}? [{v}].", f"Remember, the name of the {a} is [{v}]."])

    def lives(self, rng):
        n, h = self.name(rng), f"{rng.choice(self.adjectives)} house by the {rng.choice(self.places)}"
        return (("lives", n), [f"{n} lives in the [{h}].", f"{n} lived in the [{h}]."],
                [f"Where does {n} live? In the [{h}].", f"Who lives in the {h}? [{n}]."])

    def counts(self, rng):
        n, v, o = self.name(rng), str(rng.randrange(2, 100)), rng.choice(self.plurals)
        return (("counts", n), [f"{n} has [{v}] {o}.", f"{n} had [{v}] {o}."],
                [f"How many {o} does {n} have? [{v}]."])

    def colour(self, rng):
        t, v = self.thing(rng), rng.choice(self.colours)
        return (("colour", t), [f"The colour of the {t} is [{v}].", f"The {t} was painted [{v}]."],
                [f"What is the colour of the {t}? It is [{v}]."])

    def fact(self, rng):
        r = rng.random()
        make = (self.code if r < 0.5 else self.keeps if r < 0.65 else self.lives if r < 0.78
                else self.named if r < 0.88 else self.counts if r < 0.94 else self.colour)
        return make(rng)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def piece(self, text, weight, lead=" "):
        """'The code is [4821].' -> ids and weights; `weight` is for the bracketed value, the rest counts 1."""
        before, rest = (lead + text).split("[")
        value, after = rest.split("]")
        if before.endswith(" "):  # the space belongs to the value
            before, value = before[:-1], " " + value
        ids, weights = [], []
        for part, w in ((before, 1.0), (value, weight), (after, 1.0)):
            more = self.encode(part)
            ids += more
            weights += [w] * len(more)
        return ids, weights

    def repeat(self, rng, filler, answer):
        """A list, or a sentence of the filler, and then the same once more: (first, second) pieces."""
        r = rng.random()
        if r < 0.35:
            pool = rng.choice((self.names, self.objects, self.animals, self.colours, self.places))
            items = rng.sample(pool, min(len(pool), rng.randrange(4, 12)))
        elif r < 0.55:
            items = [self.invented(rng) for _ in range(rng.randrange(3, 8))]
        elif r < 0.75:
            items = [str(rng.randrange(10 ** rng.choice((1, 2, 4)))) for _ in range(rng.randrange(4, 10))]
        else:
            sentence = rng.choice(filler)[:60].tolist()
            ask = self.encode(rng.choice((" Once more:", " Say it again:", " And again:")))
            return (sentence, [1.0] * len(sentence)), (
                ask + sentence, [1.0] * len(ask) + [1.0] + [answer / 2] * (len(sentence) - 1))
        words = "[" + ", ".join(items) + "]."
        first = rng.choice(("The list is:", "They counted:", "He said:", "These are:"))
        again = rng.choice(("The list again:", "Once more:", "Say it again:", "And again:"))
        return self.piece(f"{first} {words}", 0.0), self.piece(f"{again} {words}", answer / 2)

    # -- windows ---------------------------------------------------------------------------------------------------

    def window(self, rng, text, length, answer, fill):
        """`length` ids and weights; `fill` is the share of plain narrative, which is also what sets distances."""
        narrative = text.filler(rng, int(fill * length) + 8)
        events, used, keys = [], 0, set()  # (position in 0..1, ids, weights)
        while used < (1 - fill) * length:
            far = rng.random() < 0.3  # from the beginning to the end: drawn evenly, long distances would be rare
            at = rng.random() * (0.15 if far else 0.8)
            after = lambda: 1 - rng.random() * 0.2 if far else at + rng.random() * (1 - at)
            if rng.random() < 0.15:
                pair = self.repeat(rng, narrative, answer)
                events.append((at, *pair[0]))
                events.append((after(), *pair[1]))
                used += sum(len(p[0]) for p in pair)
                continue
            key, statements, questions = self.fact(rng)
            if key in keys:
                continue
            keys.add(key)
            lead = lambda: "\n\n" if rng.random() < 0.2 else " "
            events.append((at, *self.piece(rng.choice(statements), 0.0, lead())))
            used += len(events[-1][1])
            for _ in range(rng.choice((1, 1, 2, 3))):
                events.append((after(), *self.piece(rng.choice(questions), answer, lead())))
                used += len(events[-1][1])
        events.sort(key=lambda e: e[0])
        ids, weights = [], []
        slots = len(narrative)
        for i, sentence in enumerate(narrative):
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

    def test(self, rng, narrative, distance, length, kind="code", others=2):
        """A test prompt of exactly `length` ids ending in a question, and the ids of its answer.

        The needle stands `distance` tokens before the end; `others` facts of the same kind stand at other places.
        `narrative(n)` gives a list of n sentences' ids or more."""
        make = getattr(self, kind)
        facts = {}
        while len(facts) < others + 1:
            key, statements, questions = make(rng)
            facts[key] = (statements[0], questions[0])
        (statement, question), *rest = facts.values()
        ask, answer = question.split("[")
        answer = self.encode(" " + answer.split("]")[0])
        ask = self.encode(" " + ask.rstrip(" "))
        needle = self.piece(statement, 0.0)[0]
        between, before = [], []
        total = distance - len(ask)
        room = length - 1 - distance - len(needle)
        rest = [self.piece(s, 0.0)[0] for s, _ in rest]
        for r in rest:
            side, space = (between, total) if rng.random() < total / (total + max(room, 0) + 1) else (before, room)
            if sum(map(len, side)) + len(r) <= space:
                side.append(r)
        for side, space in ((between, total), (before, room)):
            space -= sum(map(len, side))
            sentences = narrative(rng, max(space, 0) + 8)
            flat, cut = [], []
            for s in sentences:
                if len(flat) + len(s) > space:
                    flat += s.tolist()[:space - len(flat)]
                    cut.append(s.tolist())
                    break
                flat += s.tolist()
            # the other facts go to sentence ends near random places
            facts_here = list(side)
            side.clear()
            side.append(flat)
            edges = np.cumsum([len(s) for s in sentences])
            edges = [int(e) for e in edges if e <= len(flat)] or [len(flat)]
            for r in facts_here:
                at = rng.choice(edges)
                side[0] = side[0][:at] + r + side[0][at:]
                edges = [e if e <= at else e + len(r) for e in edges]
        ids = [0] + before[0] + needle + between[0] + ask
        return ids, answer
