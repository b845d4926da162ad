"""Demo 6: does a passage answer a question? Trained with components, predicted through the Controller."""

import argparse
import json
from pathlib import Path

import palm.compat as palm

ROOT = Path(__file__).parents[2]
VOCAB, DATA = ROOT / "data" / "vocab.txt", ROOT / "data" / "match4mrqa"
LENGTH, BATCH_SIZE = 192, 16


def main(num_epochs: int, save_path: Path) -> None:
    config = json.loads((ROOT / "configs" / "bert_small.json").read_text(encoding="utf-8"))

    reader = palm.reader.MatchReader(VOCAB, LENGTH, seed=1, do_lower_case=True)
    reader.load_data(DATA / "train.tsv", BATCH_SIZE, num_epochs=num_epochs)
    bert = palm.backbone.BERT.from_config(config)
    reader.register_with(bert)
    trainer = palm.Trainer("match")
    loss_var = trainer.build_forward(bert, palm.head.Match(2, config["hidden_size"], 0.1))
    n_steps = reader.num_examples * num_epochs // BATCH_SIZE
    sched = palm.lr_sched.TriangularSchedualer(int(0.1 * n_steps), n_steps)
    adam = palm.optimizer.Adam(loss_var, 5e-4, sched)
    trainer.build_backward(optimizer=adam, weight_decay=0.01, use_ema=True, ema_decay=0.99)
    trainer.fit_reader(reader)
    trainer.load_pretrain(ROOT / "data" / "encoder")
    trainer.train(print_steps=50)
    trainer.save(save_path / "model", save_type="predict")

    settings = {
        "task_instance": "match",
        "tasks": {"match": {"reader": "match", "paradigm": "match", "pred_file": DATA / "dev.tsv"}},
        "save_path": save_path,
    }
    controller = palm.Controller(settings, for_train=False, argv=[])
    results = controller.pred("match", save_path / "model")
    lines = (DATA / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    right = sum(result["label"] == int(line[0]) for result, line in zip(results, lines, strict=True))
    print(f"accuracy: {right / len(lines):.4f} of {len(lines)} pairs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_epochs", type=int, default=1)
    parser.add_argument("--save_path", type=Path, default=Path(__file__).parent / "output_model")
    options = parser.parse_args()
    main(options.num_epochs, options.save_path)
