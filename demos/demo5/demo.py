"""Demo 5: what kind of answer a question asks for: one task in eight steps, put together in Python."""

import argparse
import json
from pathlib import Path

import palm.compat as palm

ROOT = Path(__file__).parents[2]
VOCAB, DATA = ROOT / "data" / "vocab.txt", ROOT / "data" / "cls4mrqa"
LENGTH, BATCH_SIZE, CLASSES = 64, 16, 4


def main(num_epochs: int, save_path: Path) -> None:
    config = json.loads((ROOT / "configs" / "bert_small.json").read_text(encoding="utf-8"))

    reader = palm.reader.ClassifyReader(VOCAB, LENGTH, seed=1, do_lower_case=True)
    reader.load_data(DATA / "train.tsv", BATCH_SIZE, num_epochs=num_epochs)
    bert = palm.backbone.BERT.from_config(config)
    reader.register_with(bert)
    head = palm.head.Classify(CLASSES, config["hidden_size"], 0.1)
    trainer = palm.Trainer("question_kind")
    loss_var = trainer.build_forward(bert, head)
    n_steps = reader.num_examples * num_epochs // BATCH_SIZE
    sched = palm.lr_sched.TriangularSchedualer(int(0.1 * n_steps), n_steps)
    trainer.build_backward(optimizer=palm.optimizer.Adam(loss_var, 1e-3, sched), weight_decay=0.01)
    trainer.fit_reader(reader)
    trainer.set_saver(save_path=save_path, save_steps=200, save_type="ckpt")
    trainer.train(print_steps=50)

    test = palm.reader.ClassifyReader(VOCAB, LENGTH, do_lower_case=True, phase="predict")
    test.load_data(DATA / "dev.tsv", BATCH_SIZE)
    predict_bert = palm.backbone.BERT.from_config(config, phase="predict")
    test.register_with(predict_bert)
    trainer.build_predict_forward(
        predict_bert, palm.head.Classify(CLASSES, config["hidden_size"], phase="predict")
    )
    trainer.fit_reader(test, phase="predict")
    results = trainer.predict(output_dir=save_path / "predict")
    true = [
        int(line.split("\t")[0]) for line in (DATA / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    ]
    right = sum(result["label"] == label for result, label in zip(results, true, strict=True))
    print(f"accuracy: {right / len(true):.4f} of {len(true)} questions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_epochs", type=int, default=1)
    parser.add_argument("--save_path", type=Path, default=Path(__file__).parent / "output_model")
    options = parser.parse_args()
    main(options.num_epochs, options.save_path)
