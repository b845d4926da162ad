"""Demo 9: all intents of a message that may have several; dev data decides the threshold of each."""

import json
from itertools import islice
from pathlib import Path

import palm

HERE = Path(__file__).parent
DEV = HERE / "../../data/requests/dev.jsonl"

if __name__ == "__main__":
    controller = palm.Controller(HERE / "config.yaml")
    scores = controller.train().best["requests"].scores

    rows = map(json.loads, DEV.read_text(encoding="utf-8").splitlines())
    for row, record in islice(zip(rows, controller.pred("requests"), strict=True), 5):
        print(f"{row['text']}\n  {', '.join(record['label_names'])} ({', '.join(row['labels'])})")
    print(", ".join(f"{name} {value:.3f}" for name, value in scores.items()))
