"""Demo 8: a training loop of one's own: after every epoch a look at the dev data; the best model is kept."""

import argparse
import json
from pathlib import Path

import palm.compat as palm

ROOT = Path(__file__).parents[2]
VOCAB, DATA = ROOT / "data" / "vocab.txt", ROOT / "data" / "intent"
LENGTH, BATCH_SIZE = 64, 16


def main(num_epochs: int, save_path: Path) -> None:
    config = json.loads((ROOT / "configs" / "bert_small.json").read_text(encoding="utf-8"))
    width, label_map = (
        config["hidden_size"],
        json.loads((DATA / "label_map.json").read_text(encoding="utf-8")),
    )

    reader = palm.reader.ClassifyReader(VOCAB, LENGTH, seed=1, do_lower_case=True, label_map=label_map)
    reader.load_data(DATA / "train.tsv", BATCH_SIZE, num_epochs=num_epochs)
    bert = palm.backbone.BERT.from_config(config)
    reader.register_with(bert)

    trainer = palm.Trainer("intent")
    loss_var = trainer.build_forward(bert, palm.head.Classify(len(label_map), width, 0.1))
    trainer.build_backward(palm.optimizer.Adam(loss_var, 5e-4))

    best = 0.0
    for step, batch in enumerate(trainer.fit_reader(reader), start=1):
        loss = trainer.train_one_step(batch)["intent.loss"].item()
        if step % trainer.steps_pur_epoch == 0:
            trainer.save(save_path / "last", save_type="predict")
            last = palm.load_model(save_path / "last")
            scores = last.evaluate(DATA / "dev.tsv", metrics=["accuracy", "macro_f1", "mcc"])
            told = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
            print(f"epoch {trainer.cur_train_epoch}: loss {loss:.3f}, {told}")
            if scores["accuracy"] > best:
                best = scores["accuracy"]
                trainer.save(save_path / "best", save_type="predict")

    model = palm.load_model(save_path / "best")
    text = "wake me up at half past seven"
    print(f"best accuracy {best:.4f}; {text!r} is {model.predict([text])[0]['label_name']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_epochs", type=int, default=4)
    parser.add_argument("--save_path", type=Path, default=Path(__file__).parent / "output_model")
    options = parser.parse_args()
    main(options.num_epochs, options.save_path)
