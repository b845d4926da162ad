"""Write the example rows of `palm init`: `python scripts/make_starter_data.py`.

They are requests to an invented bicycle shop with intents and slots, answers that fit them or do not, and
pages about its branches with questions. The same command writes the same bytes on every machine.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "palm" / "cli" / "starter" / "files" / "data"

REQUESTS = {
    "order_status": [
        "where is my {product}",
        "has my {product} been sent yet",
        "when will the {product} that i ordered on {date} arrive",
        "i ordered a {product} on {date} and it is not here",
    ],
    "return_item": [
        "i want to send the {product} back",
        "the {product} is too small , can i return it",
        "please take back the {product} that i bought in {city}",
        "how do i return a {product}",
    ],
    "opening_hours": [
        "are you open on {date}",
        "when does the shop in {city} close",
        "what are your hours in {city} on {date}",
        "is the shop in {city} open on {date}",
    ],
    "book_repair": [
        "my {product} is broken , can you fix it on {date}",
        "i need a repair of my {product} in {city}",
        "book a repair of a {product} for {date}",
        "can someone in {city} look at my {product}",
    ],
}
SLOTS = {
    "product": [
        "rear light",
        "bike helmet",
        "front wheel",
        "saddle",
        "bike lock",
        "pump",
        "chain",
        "child seat",
    ],
    "date": ["monday", "friday morning", "the third of may", "next tuesday", "saturday", "christmas eve"],
    "city": ["leeds", "york", "bristol", "kendal", "new mills"],
}
ANSWERS = {
    "order_status": [
        "Your parcel left our store and will be with you in two days.",
        "We sent it today; the number of the parcel is in your mail.",
    ],
    "return_item": [
        "Send it back within thirty days and you get your money back.",
        "Bring it with the receipt and we take it back.",
    ],
    "opening_hours": [
        "We are open from nine to six, on Saturdays until two.",
        "The shop closes at six; on holidays it stays closed.",
    ],
    "book_repair": [
        "Our mechanic can look at it; the repair takes a day.",
        "Leave it with the mechanic in the morning, it is ready in the evening.",
    ],
}
SPANS = {
    "i ordered a {product} on {date}": ["product bought_on date"],
    "has the {product} that i ordered on {date} been sent yet": ["product bought_on date"],
    "i want to send the {product} back that i bought in {city}": ["product bought_in city"],
    "is [shop the shop in {city} ] open on {date}": ["shop located_in city", "shop open_on date"],
    "when does [shop the shop in {city} ] close on {date}": ["shop located_in city", "shop open_on date"],
    "on {date} i was in [shop your shop in {city} ]": ["shop located_in city"],
    "i need [repair a repair of my {product} ] on {date}": [
        "repair repair_of product",
        "repair booked_on date",
    ],
    "book [repair a repair of a {product} ] in {city}": ["repair repair_of product", "repair booked_in city"],
    "on {date} i bought a {product} in [shop the shop in {city} ]": [
        *("product bought_on date", "product bought_in shop", "shop located_in city"),
    ],
}
"""Parts of requests with spans in brackets, which may be nested -> their relations."""

NAMES = ["Ada Moss", "Ben Hill", "Cleo Park", "Dan Reed", "Eve Stone", "Finn Wood", "Gus Lane", "Ida Frost"]
TIMES = ["seven", "eight", "nine", "ten"]
YEARS = ["1952", "1968", "1974", "1983", "1991", "2004", "2011", "2019"]
TOWNS = ["Leeds", "York", "Bristol", "Kendal", "Whitby", "Durham", "Ripon", "Buxton"]
FACTS = [
    ("The shop in {town} opens at {time} in the morning.", "when does the shop in {town} open ?", "time"),
    ("{name} runs it.", "who runs the shop in {town} ?", "name"),
    (
        "It was founded in {year} and still has its old sign.",
        "in what year was the shop in {town} founded ?",
        "year",
    ),
]


def requests(rng: random.Random) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return intent and labelled words of different requests, equally many per intent, in random order."""
    found = []
    for intent, patterns in REQUESTS.items():
        of_intent = []
        for pattern in patterns:
            names = re.findall(r"{(\w+)}", pattern)
            every = list(product(*(SLOTS[name] for name in names)))
            for values in rng.sample(every, min(len(every), 5)):
                of_intent.append((intent, list(_labelled(pattern, dict(zip(names, values, strict=True))))))
        found += rng.sample(of_intent, 16)
    rng.shuffle(found)
    return found


def _labelled(pattern: str, values: dict[str, str]) -> Iterator[tuple[str, str]]:
    for word in pattern.split():
        slot = word.strip("{}")
        if slot == word:
            yield word, "O"
        else:
            for number, part in enumerate(values[slot].split()):
                yield part, f"{'I' if number else 'B'}-{slot}"


def annotated(rng: random.Random, number: int) -> list[dict[str, Any]]:
    """Return different requests of one or two parts, with spans of words, which may be nested, and relations.

    A part is a pattern of SPANS: `[label text ]` is a span, and so is a slot `{name}`.
    """
    found: dict[str, dict[str, Any]] = {}
    while len(found) < number:
        row: dict[str, Any] = {"text_a": [], "spans": [], "relations": []}
        for k in range(rng.choice([1, 1, 2])):
            row["text_a"] += ["and"] * k
            _add_part(row, rng.choice([*SPANS]), rng)
        found.setdefault(" ".join(row["text_a"]), row)
    return list(found.values())


def _add_part(row: dict[str, Any], pattern: str, rng: random.Random) -> None:
    """Add the words of a pattern, its spans in the order of their ends, and its relations."""
    opened: list[tuple[str, int]] = []
    numbers: dict[str, int] = {}
    for word in re.sub(r"{(\w+)}", lambda m: f"[{m[1]} {rng.choice(SLOTS[m[1]])} ]", pattern).split():
        if word.startswith("["):
            opened.append((word[1:], len(row["text_a"])))
        elif word == "]":
            label, start = opened.pop()
            numbers[label] = len(row["spans"])
            row["spans"].append({"start": start, "end": len(row["text_a"]), "label": label})
        else:
            row["text_a"].append(word)
    for head, label, tail in map(str.split, SPANS[pattern]):
        row["relations"].append({"head": numbers[head], "tail": numbers[tail], "label": label})


def squad(rng: random.Random) -> list[dict[str, Any]]:
    """Return a page about the shop in every town, with a question about each of its facts."""
    pages = []
    for number, town in enumerate(TOWNS):
        values = {"town": town, "name": NAMES[number], "time": TIMES[number % 4], "year": YEARS[number]}
        sentences = [sentence.format(**values) for sentence, _, _ in FACTS]
        rest = sentences[1:]
        rng.shuffle(rest)
        context = " ".join([sentences[0], *rest])
        questions = [
            {
                "id": f"{town.lower()}-{key}",
                "question": question.format(**values),
                "answers": [{"text": values[key], "answer_start": context.index(values[key])}],
            }
            for _, question, key in FACTS
        ]
        pages.append({"title": town, "paragraphs": [{"context": context, "qas": questions}]})
    return pages


def groups(
    requested: list[tuple[str, str]], rng: random.Random
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each request with an answer that fits and two answers of other intents."""
    for intent, text in requested:
        others = rng.sample([each for each in REQUESTS if each != intent], 2)
        yield text, rng.choice(ANSWERS[intent]), [rng.choice(ANSWERS[each]) for each in others]


def write_groups(folder: Path, part: str, requested: list[tuple[str, str]]) -> None:
    """Write the rows of multiple_choice, ranking and embedding."""
    rng = random.Random(part)
    choices, rankings, pairs = [], [], []
    for text, right, wrong in groups(requested, rng):
        answers = rng.sample([right, *wrong], 3)
        label = answers.index(right)
        choices.append((str(label), text, json.dumps(answers)))
        rankings.append((json.dumps([int(k == label) for k in range(3)]), text, json.dumps(answers)))
        pairs.append((text, right, wrong[0]))
    write_table(folder / f"multiple_choice/{part}.tsv", "label\ttext_a\tchoices", choices)
    write_table(folder / f"ranking/{part}.tsv", "label\ttext_a\tcandidates", rankings)
    write_table(folder / f"embedding/{part}.tsv", "text_a\ttext_b\tnegative", pairs)


WORDS = ["bad", "poor", "fair", "good", "superb"]
ORDERS = ["please send me {things}", "i would like {things}", "can i have {things}"]
REVIEWS = ["the {product} is {word}", "a {word} {product} from {city}", "i find my {product} {word}"]


def review(stars: int, rng: random.Random) -> str:
    """Return a review with this number of stars, from 0."""
    values = {name: rng.choice(words) for name, words in SLOTS.items()}
    return rng.choice(REVIEWS).format(word=WORDS[stars], **values)


def order(number: int, rng: random.Random) -> str:
    """Return an order of `number` + 1 items."""
    things = " and ".join(f"a {thing}" for thing in rng.sample(SLOTS["product"], number + 1))
    return rng.choice(ORDERS).format(things=things)


def numbered(make: Callable[[int, random.Random], str], first: int) -> dict[str, list[tuple[str, str]]]:
    """Return different texts of five kinds, with labels from `first` on, for training and evaluation."""
    rng = random.Random(2)
    labels: dict[str, str] = {}
    while len(labels) < 80:
        number = len(labels) % 5
        labels.setdefault(make(number, rng), str(number + first))
    rows = [(label, text) for text, label in labels.items()]
    return {"train": rows[:60], "dev": rows[60:]}


def write_table(path: Path, head: str, rows: Iterable[Iterable[str]]) -> None:
    """Write a TSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in [head, *map("\t".join, rows)]), encoding="utf-8")


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write a file with one JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main(folder: Path) -> None:
    """Write all files to a folder."""
    rng = random.Random(0)
    found = requests(rng)
    texts = [" ".join(word for word, _ in words) for _, words in found]
    intents = [intent for intent, _ in found]
    other = [rng.choice([each for each in REQUESTS if each != intent]) for intent in intents]
    parts = {"train": slice(0, 48), "dev": slice(48, 64)}
    for part, rows in parts.items():
        write_table(folder / f"cls/{part}.tsv", "label\ttext_a", zip(intents[rows], texts[rows], strict=True))
        tags = [" ".join(label for _, label in words) for _, words in found[rows]]
        write_table(folder / f"seq_label/{part}.tsv", "text_a\tlabel", zip(texts[rows], tags, strict=True))
        joined = [(k, k + 1 if k % 3 else k) for k in range(len(texts[rows]) - 1)]
        several = [
            (
                ", ".join(sorted({intents[rows][k] for k in each})),
                " and ".join(texts[rows][k] for k in sorted({*each})),
            )
            for each in joined
        ]
        write_table(folder / f"multi_label/{part}.tsv", "label\ttext_a", several)
        pairs = [
            (str(label), text, rng.choice(ANSWERS[intent]))
            for text, right, wrong in zip(texts[rows], intents[rows], other[rows], strict=True)
            for label, intent in ((1, right), (0, wrong))
        ]
        write_table(folder / f"match/{part}.tsv", "label\ttext_a\ttext_b", pairs)
        pages = squad(random.Random(1))
        chosen = pages[:6] if part == "train" else pages[6:]
        write_json(folder / f"mrc/{part}.json", {"version": "1.1", "data": chosen})
        contexts = [page["paragraphs"][0]["context"] for page in chosen]
        write_table(folder / f"mlm/{part}.tsv", "text_a", ([text] for text in [*texts[rows], *contexts]))
        write_groups(folder, part, [*zip(intents[rows], texts[rows], strict=True)])
        write_table(folder / f"ordinal/{part}.tsv", "label\ttext_a", numbered(review, 0)[part])
        write_table(folder / f"count/{part}.tsv", "label\ttext_a", numbered(order, 1)[part])
    for kind in ("cls", "multi_label"):
        numbers = {intent: number for number, intent in enumerate(REQUESTS)}
        write_json(folder / kind / "label_map.json", numbers)
    rows = annotated(random.Random(2), 64)
    for part, chosen in parts.items():
        spans = ({name: row[name] for name in ("text_a", "spans")} for row in rows[chosen])
        write_lines(folder / f"span/{part}.jsonl", spans)
        write_lines(folder / f"relation/{part}.jsonl", rows[chosen])
    kinds = sorted({span["label"] for row in rows for span in row["spans"]})
    of_pairs = sorted({each.split()[1] for part in SPANS.values() for each in part})
    named = {"span/label_map": kinds, "relation/span_label_map": kinds, "relation/label_map": of_pairs}
    for name, names in named.items():
        write_json(folder / f"{name}.json", {label: number for number, label in enumerate(names)})
    labels = ["O", *(f"{kind}-{slot}" for slot in SLOTS for kind in "BI")]
    write_json(folder / "seq_label/label_map.json", {label: number for number, label in enumerate(labels)})


if __name__ == "__main__":
    main(FOLDER)
