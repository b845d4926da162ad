"""Demo 7: a label for every word of a request, from which town to which, which song, what time."""

from pathlib import Path

import palm

HERE = Path(__file__).parent
DEV = HERE / "../../data/tagging/dev.tsv"

if __name__ == "__main__":
    controller = palm.Controller(HERE / "config.yaml")
    controller.train()

    controller = palm.Controller(HERE / "config.yaml", for_train=False)
    predicted = [record["labels"] for record in controller.pred("tagging")]

    rows = [line.split("\t") for line in DEV.read_text(encoding="utf-8").splitlines()[1:]]
    words, true = [row[0].split() for row in rows], [row[1].split() for row in rows]
    for text, labels in list(zip(words, predicted, strict=True))[:5]:
        found = palm.metrics.entities(labels)
        print(" ".join(text))
        print("  ", {kind: " ".join(text[first : last + 1]) for kind, first, last in found})
    scores = palm.metrics.entity_scores(predicted, true)
    print(f"entity F1 {scores['f1']:.3f}, label accuracy {scores['accuracy']:.3f} of {len(true)} requests")
