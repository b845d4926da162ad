"""Write invented hotel reviews, the tables of the tutorial; every run writes the same bytes.

`review_data/en.yaml` and `review_data/zh.yaml` have the sentences: `topics` maps a topic to its good and bad
sentences, each with the tag that it earns; `{word}` is one of the words listed under that name.
"""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path
from typing import Any

import yaml

SENTENCES = Path(__file__).with_name("review_data")
DATA = Path(__file__).resolve().parents[1] / "data" / "reviews"
ROWS = 400


def review(rng: random.Random, language: dict[str, Any]) -> dict[str, str]:
    """Return one row: two or three sentences; the topic is that of most of them."""
    topics: dict[str, dict[str, dict[str, list[str]]]] = language["topics"]
    main, other = rng.sample(sorted(topics), 2)
    told = [main, main, other] if rng.random() < 0.4 else [main, main] if rng.random() < 0.5 else [main]
    mood = rng.choice(["good", "good", "bad"])
    kinds = [mood] + [rng.choice([mood, mood, "good", "bad"]) for _ in told[1:]]
    sentences: list[str] = []
    tags: set[str] = set()
    for topic, kind in zip(told, kinds, strict=True):
        tag = rng.choice(sorted(topics[topic][kind]))
        sentence = rng.choice(topics[topic][kind][tag])
        if sentence not in sentences:
            sentences.append(sentence)
            tags.add(tag)
    strong = rng.random() < 0.3
    share = kinds.count("good") / len(kinds)
    stars = 3 if 0 < share < 1 else (5 if strong else 4) if share else (1 if strong else 2)
    if rng.random() < 0.12:  # not everybody counts alike
        stars = min(5, max(1, stars + rng.choice([-1, 1])))
    if strong and share in (0, 1):
        sentences.append(rng.choice(language["strong"][mood]))
    rng.shuffle(sentences)
    filled = (re.sub(r"\{(\w+)\}", lambda name: rng.choice(language[name[1]]), each) for each in sentences)
    text = language["between"].join(each[:1].upper() + each[1:] for each in filled)
    tagged = json.dumps(sorted(tags), ensure_ascii=False)
    return dict(zip(language["columns"], (text, main, str(stars), tagged), strict=True))


def reviews(name: str) -> list[dict[str, str]]:
    """Return the rows of one language, with two mistakes that people make: see the tutorial."""
    language = yaml.safe_load((SENTENCES / f"{name}.yaml").read_text("utf-8"))
    rng = random.Random(name)
    text, topic, stars, _ = language["columns"]
    seen: dict[str, dict[str, str]] = {}
    while len(seen) < ROWS:
        row = review(rng, language)
        seen.setdefault(row[text], row)
    rows = list(seen.values())
    again = rows[40]
    rows[300] = again | {stars: "1" if again[stars] != "1" else "5"}  # the same text with other stars
    rows[120] = rows[120] | {topic: rows[120][topic] + language["slip"]}  # a label that only this row has
    return rows


def main() -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    for name in ("en", "zh"):
        rows = reviews(name)
        with (DATA / f"reviews.{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
