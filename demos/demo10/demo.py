"""Demo 10: spans that nest and the relations between them, two tasks on the same rows in one pass."""

from itertools import islice
from pathlib import Path

import palm

HERE = Path(__file__).parent

if __name__ == "__main__":
    controller = palm.Controller(HERE / "config.yaml")
    result = controller.train()

    # One task finds the spans; the other one, the relations between the spans of the file.
    for ents, rels in islice(zip(controller.pred("ents"), controller.pred("rels"), strict=True), 5):
        print("; ".join(f"{span['text']} ({span['label']})" for span in ents["spans"]))
        for each in rels["relations"]:
            head, tail = (rels["spans"][each[end]]["text"] for end in ("head", "tail"))
            print(f"  {head} -> {each['label']} -> {tail}")
    for task, best in result.best.items():
        print(f"{task}: {', '.join(f'{name} {value:.3f}' for name, value in best.scores.items())}")
