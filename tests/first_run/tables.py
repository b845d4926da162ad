"""Small ordinary tables, drawn by a seed: what a newcomer might have, in the words of the demos' encoder."""

from __future__ import annotations

import math
import random
from typing import Any

TOPICS = {
    "music": "piano violin oboe flute drums orchestra opera songs choirs symphonies guitar viola composer",
    "sea": "ship harbour sailors cargo captain boats lighthouse sail nets masts storm voyage vessel",
    "garden": "roses tulips gardener orchard lilies orchids dahlias plants trees ferns cherry plums apple",
    "railway": "train railway station engine tracks tickets carriages passenger coach engineer steam viaduct",
    "school": "teacher pupils lessons classes schoolbooks notebooks academy college geometry teaching",
}
WORDS = {topic: words.split() for topic, words in TOPICS.items()}

_FILLERS = (
    "the old near a of in after during again often our many some with and behind two every another was were "
    "stands called seen before beside summer winter week morning street house people town there that which"
)
FILLERS = _FILLERS.split()

EFFECTS = {
    "golden": 9, "large": 6, "new": 5, "strong": 3, "used": -4, "small": -5, "broken": -9, "cheap": -7,
    "rare": 7, "narrow": -3,
}  # fmt: skip
FAULTS = ["broken", "lost", "stolen", "late", "cheap"]
PEOPLE = [
    "anna", "carl", "erik", "hanna", "ivan", "jana", "karl", "laura",
    "martin", "nora", "oscar", "paula", "ruth", "sara", "victor", "wanda",
]  # fmt: skip
FAMILIES = ["baker", "carpenter", "gardener", "painter", "sailor", "builder"]
PLACES = [
    "bergen", "selma", "kirholm", "dalby", "valley",
    "lysport", "hulton", "granwick", "felholt", "norstead",
]  # fmt: skip

Row = dict[str, Any]


def sentence(rng: random.Random, *words: str, least: int = 6, most: int = 12) -> str:
    """Return a text of fillers with these words in it, in random places."""
    text = rng.choices(FILLERS, k=rng.randint(least, most))
    for word in words:
        text.insert(rng.randint(0, len(text)), word)
    return " ".join(text)


def about(rng: random.Random, *topics: str, words: int = 2) -> str:
    """Return a text with some words of each topic."""
    return sentence(rng, *(word for topic in topics for word in rng.sample(WORDS[topic], words)))


def topics(rng: random.Random) -> Row:
    """A message and its category; one in twenty is mislabelled."""
    topic = rng.choices([*TOPICS], [5, 4, 3, 2, 1])[0]
    return {"message": about(rng, topic), "category": topic if rng.random() < 0.95 else rng.choice([*TOPICS])}


def pairs(rng: random.Random) -> Row:
    """A request and its answer, and how it ended: the answer's words decide, or else those of the request."""
    angry = rng.sample(["broken", "damaged", "stolen", "failure", "worse", "badly"], rng.randint(0, 1))
    kind = rng.sample(["restore", "offer", "welcome", "praise", "clever", "golden"], rng.randint(0, 1))
    label = "settled" if kind else "open" if angry else "none"
    return {"text_a": sentence(rng, *angry, most=8), "text_b": sentence(rng, *kind, most=8), "label": label}


def reports(rng: random.Random) -> Row:
    """Two reports of a thing and its fault, whether both are of one thing; if not, half share a topic."""
    topic, another = rng.sample([*TOPICS], 2)
    thing = rng.choice(WORDS[topic])
    label = rng.choice(["yes", "no"])
    others = [each for each in WORDS[rng.choice([topic, another])] if each != thing]
    things = [thing, thing if label == "yes" else rng.choice(others)]
    texts = [sentence(rng, each, rng.choice(FAULTS), most=8) for each in things]
    return {"text_a": texts[0], "text_b": texts[1], "label": label}


def several(rng: random.Random) -> Row:
    """A text with up to three topics."""
    found = sorted(topic for topic in TOPICS if rng.random() < 0.3)
    return {"text": about(rng, *found, words=1), "tags": found}


def prices(rng: random.Random) -> Row:
    """A description, and a price between 50 and 90, with a decimal."""
    words = rng.sample([*EFFECTS], rng.randint(1, 4))
    price = min(90.0, max(50.0, 70 + sum(EFFECTS[word] for word in words) + rng.gauss(0, 1.5)))
    return {"description": sentence(rng, *words), "price": round(price, 1)}


def stars(rng: random.Random) -> Row:
    """A review, and its stars from 1 to 5."""
    good = rng.choices(["welcome", "loved", "praise", "golden", "clever", "favourite"], k=rng.randint(0, 3))
    bad = rng.choices(["broken", "damaged", "worse", "failure", "stolen", "badly"], k=rng.randint(0, 3))
    score = 3 + (len(good) - len(bad)) * 0.8 + rng.gauss(0, 0.3)
    return {"review": sentence(rng, *good, *bad), "stars": min(5, max(1, round(score)))}


def people(rng: random.Random) -> Row:
    """Words, and who and where is named in them, in IOB2."""
    words: list[str] = []
    tags: list[str] = []
    for _ in range(rng.randint(1, 3)):
        fillers = rng.choices(FILLERS, k=rng.randint(1, 4))
        words += fillers
        tags += ["O"] * len(fillers)
        if rng.random() < 0.6:
            name = [rng.choice(PEOPLE), *rng.sample(FAMILIES, rng.randint(0, 1))]
            words += name
            tags += ["B-PER", "I-PER"][: len(name)]
        else:
            words += ["at", rng.choice(PLACES)]
            tags += ["O", "B-LOC"]
    return {"words": words, "tags": tags}


def ranked(rng: random.Random) -> Row:
    """A query and four candidates, of which one or two have its topic."""
    topic = rng.choice([*TOPICS])
    relevance = rng.sample([1, 0, 0, rng.randint(0, 1)], 4)
    others = [each for each in TOPICS if each != topic]
    texts = [about(rng, topic if each else rng.choice(others)) for each in relevance]
    return {"query": about(rng, topic), "candidates": texts, "label": relevance}


def choices(rng: random.Random) -> Row:
    """A question and three choices, one of which has its topic."""
    topic = rng.choice([*TOPICS])
    others = rng.sample([each for each in TOPICS if each != topic], 2)
    right = rng.randrange(3)
    texts = [about(rng, each) for each in others]
    texts.insert(right, about(rng, topic))
    return {"question": about(rng, topic), "choices": texts, "label": right}


def questions(rng: random.Random) -> Row:
    """A request and its answer, which share a few rare words."""
    words = rng.sample([word for words in WORDS.values() for word in words], 3)
    return {"request": sentence(rng, *words, most=8), "answer": sentence(rng, *words, most=8)}


def tickets(rng: random.Random) -> Row:
    """A message with a category, an urgency from 1 to 5 and tags, some of which are empty."""
    topic = rng.choice([*TOPICS])
    tags = sorted(rng.sample(FAULTS, rng.randint(0, 2)))
    urgent = rng.random() < 0.3
    row: Row = {"message": f"{about(rng, topic)} {' '.join([*tags, *(['now'] if urgent else [])])}".strip()}
    row["category"] = topic
    row["urgency"] = min(5, 1 + len(tags) + 2 * urgent)
    row["tags"] = tags
    return row


def goods(rng: random.Random) -> Row:
    """A description with a category and a price."""
    topic = rng.choice([*TOPICS])
    row = prices(rng)
    words = [row["description"], *rng.sample(WORDS[topic], 2)]
    return {"description": " ".join(words), "category": topic, "price": row["price"]}


def requests(rng: random.Random) -> Row:
    """Words with tags, and the intent of all of them."""
    row = people(rng)
    intent = rng.choice(["call", "sell", "repair"])
    row["words"].insert(
        0, intent if rng.random() < 0.5 else {"call": "tell", "sell": "offer"}.get(intent, "restore")
    )
    row["tags"].insert(0, "O")
    return {**row, "intent": intent}


def spans(rng: random.Random) -> Row:
    """A text with the people and places in it as spans of characters."""
    named = people(rng)
    words = named["words"]
    found: list[dict[str, Any]] = []
    for number, (word, tag) in enumerate(zip(words, named["tags"], strict=True)):
        end = len(" ".join(words[: number + 1]))
        if tag[0] == "B":
            found.append({"start": end - len(word), "end": end, "label": tag[2:]})
        elif tag[0] == "I":
            found[-1]["end"] = end
    return {"text": " ".join(words), "spans": found}


def visits(rng: random.Random) -> Row:
    """A notice and the number of people who came: a count whose mean is multiplied by some of the words."""
    words = rng.sample([*EFFECTS], rng.randint(1, 4))
    mean = 3 * math.exp(sum(EFFECTS[word] for word in words) / 12)
    return {"notice": sentence(rng, *words), "visits": sum(rng.random() < mean / 60 for _ in range(60))}


RELATIONS = {"lives_in": ["lives in", "has a house in"], "works_in": ["works in", "sells boats in"]}


def relations(rng: random.Random) -> Row:
    """Words with people and places, and who lives or works where; some people only pass a place."""
    words: list[str] = []
    found: list[dict[str, Any]] = []
    related: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 2)):
        label = rng.choice([*RELATIONS, None])
        name = [rng.choice(PEOPLE), *rng.sample(FAMILIES, rng.randint(0, 1))]
        words += rng.choices(FILLERS, k=rng.randint(1, 3))
        found.append({"start": len(words), "end": len(words) + len(name), "label": "person"})
        words += [*name, *rng.choice(RELATIONS.get(label or "", ["saw", "sailed to"])).split()]
        found.append({"start": len(words), "end": len(words) + 1, "label": "place"})
        words.append(rng.choice(PLACES))
        if label is not None:
            related.append({"head": len(found) - 2, "tail": len(found) - 1, "label": label})
    return {"words": words, "spans": found, "relations": related}


def answers(rng: random.Random) -> Row:
    """A question about a shop, a text that tells its owner, place and goods, and the words that answer it."""
    owner = " ".join([rng.choice(PEOPLE), *rng.sample(FAMILIES, rng.randint(0, 1))])
    goods = " ".join(rng.sample(WORDS[rng.choice([*WORDS])], rng.randint(1, 2)))
    told = [
        ("who", f"{rng.choice(['belongs to', 'is run by'])} {{}}", owner),
        ("where", f"{rng.choice(['stands in', 'was built at'])} {{}}", rng.choice(PLACES)),
        ("what", f"{rng.choice(['sells', 'has many'])} {{}}", goods),
    ]
    asked, _, answer = rng.choice(told)
    question = {"who": ["who owns", "who runs"], "where": ["where is", "where stands"]}
    rng.shuffle(told)
    context = ""
    start = 0
    for kind, form, value in told:
        before = f"{sentence(rng, least=1, most=3)} it {form.split('{')[0]}"
        context += before
        start = len(context) if kind == asked else start
        context += f"{value} . "
    words = f"{rng.choice(question.get(asked, ['what can i buy in', 'which goods has']))} the shop"
    return {
        "question": words,
        "context": context.strip(),
        "answers": [{"text": answer, "answer_start": start}],
    }


TRADES = dict(zip(FAMILIES, ("bread", "tables", "roses", "walls", "ships", "houses"), strict=True))
SAID = [
    "the {0} {1} sells {2} in {3}",
    "in {3} {1} the {0} has many {2}",
    "{1} of {3} is a {0} and knows {2}",
]


def told(rng: random.Random) -> Row:
    """A text without labels: a person's trade, what belongs to it, and a place."""
    trade = rng.choice(FAMILIES)
    return {"text": rng.choice(SAID).format(trade, rng.choice(PEOPLE), TRADES[trade], rng.choice(PLACES))}


TABLES = {
    make.__name__: make
    for make in [
        topics, pairs, reports, several, prices, stars, people, ranked, choices, questions, tickets, goods,
        requests, spans, visits, relations, answers, told,
    ]
}  # fmt: skip
"""Name -> a row of the table, by a generator of random numbers."""


def rows(name: str, count: int, seed: int) -> list[Row]:
    """Return rows of a table; the same seed gives the same rows."""
    rng = random.Random(f"{name} {seed}")
    return [TABLES[name](rng) for _ in range(count)]
