"""Demo 4: what a user wants and about what: two tasks on one encoder, put together in Python."""

import argparse
import json
from pathlib import Path

import palm.compat as palm

ROOT = Path(__file__).parents[2]
VOCAB = ROOT / "data" / "vocab.txt"
SLOT, INTENT = ROOT / "data" / "tagging", ROOT / "data" / "intent"
LENGTH, BATCH_SIZE = 64, 16


def readers(phase: str, file: str) -> tuple[palm.reader.LoadingReader, palm.reader.LoadingReader]:
    """The readers of both tasks, with a file of each loaded."""
    slot = palm.reader.SequenceLabelReader(
        VOCAB, LENGTH, SLOT / "label_map.json", seed=1, do_lower_case=True, phase=phase
    )
    intent = palm.reader.ClassifyReader(
        VOCAB, LENGTH, seed=1, do_lower_case=True, phase=phase, label_map=INTENT / "label_map.json"
    )
    slot.load_data(SLOT / file, file_format="tsv", num_epochs=None, batch_size=BATCH_SIZE)
    intent.load_data(INTENT / file, batch_size=BATCH_SIZE, num_epochs=None)
    return slot, intent


def main(num_epochs: float, save_path: Path) -> None:
    config = json.loads((ROOT / "configs" / "bert_small.json").read_text(encoding="utf-8"))
    width = config["hidden_size"]
    num_labels = len(json.loads((SLOT / "label_map.json").read_text(encoding="utf-8")))
    num_intents = len(json.loads((INTENT / "label_map.json").read_text(encoding="utf-8")))

    slot_reader, intent_reader = readers("train", "train.tsv")
    bert = palm.backbone.BERT.from_config(config)
    slot_reader.register_with(bert)
    intent_reader.register_with(bert)

    slot, intent = palm.Trainer("slot", mix_ratio=1.0), palm.Trainer("intent", mix_ratio=0.5)
    trainer = palm.MultiHeadTrainer([slot, intent])
    slot.build_forward(bert, palm.head.SequenceLabel(num_labels, width, 0.1, learning_rate=1.0))
    intent.build_forward(bert, palm.head.Classify(num_intents, width, 0.1))
    loss_var = trainer.build_forward()

    n_steps = slot_reader.num_examples / BATCH_SIZE * 1.5 * num_epochs
    sched = palm.lr_sched.TriangularSchedualer(int(0.1 * n_steps), n_steps)
    adam = palm.optimizer.Adam(loss_var, 2e-3, sched)
    trainer.build_backward(optimizer=adam, weight_decay=0.01)
    trainer.fit_readers_with_mixratio([slot_reader, intent_reader], "slot", num_epochs)
    trainer.set_saver(save_path=save_path, save_steps=500, save_type="ckpt,predict")
    trainer.train(print_steps=50)

    slot_test, intent_test = readers("predict", "dev.tsv")
    for reader in (slot_test, intent_test):
        reader.register_with(bert)
    slot.build_predict_forward(bert, palm.head.SequenceLabel(num_labels, width, phase="predict"))
    intent.build_predict_forward(bert, palm.head.Classify(num_intents, width, phase="predict"))
    trainer.build_predict_forward()
    trainer.merge_inference_readers([slot_test, intent_test])
    results = trainer.predict(output_dir=save_path / "predict")
    report(results["slot"], results["intent"])


def report(slots: list[list[int]], intents: list[dict]) -> None:
    """Print some requests with what was found in them, and how often it is right."""
    names = {number: name for name, number in json.loads((SLOT / "label_map.json").read_text()).items()}
    lines = (SLOT / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts, true = zip(*(line.split("\t") for line in lines), strict=True)
    predicted = [[names[label] for label in labels[1:-1]] for labels in slots]
    wanted = [
        line.split("\t")[0] for line in (INTENT / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    ]
    for text, labels, intent in list(zip(texts, predicted, intents, strict=True))[:3]:
        words = text.split()
        found = {
            kind: " ".join(words[first : last + 1]) for kind, first, last in palm.metrics.entities(labels)
        }
        print(f"{text}\n  {intent['label_name']} {found}")
    scores = palm.metrics.entity_scores(predicted, [labels.split() for labels in true])
    right = sum(intent["label_name"] == name for intent, name in zip(intents, wanted, strict=True))
    print(f"slots: entity F1 {scores['f1']:.3f}; intents: {right} of {len(wanted)} right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_epochs", type=float, default=10)
    parser.add_argument("--save_path", type=Path, default=Path(__file__).parent / "output_model")
    options = parser.parse_args()
    main(options.num_epochs, options.save_path)
