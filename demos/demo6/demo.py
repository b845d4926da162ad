"""Demo 6: which of seven wishes does a request express? Pairwise matching lets the right one score higher."""

import argparse
import json
from pathlib import Path

import palm

ROOT = Path(__file__).parents[2]
VOCAB, DATA = ROOT / "data" / "vocab.txt", ROOT / "data" / "intent"
LENGTH, BATCH_SIZE = 64, 16


def requests(file: str) -> list[list[str]]:
    """Wish and text of every request."""
    lines = (DATA / file).read_text(encoding="utf-8").splitlines()[1:]
    return [line.replace("_", " ").split("\t") for line in lines]


def write_pairs(folder: Path, wishes: list[str]) -> None:
    """For training, every request with its wish and each other one; to predict, with every wish."""
    folder.mkdir(parents=True, exist_ok=True)
    train = [
        f"{text}\t{wish}\t{other}"
        for wish, text in requests("train.tsv")
        for other in wishes
        if other != wish
    ]
    test = [f"{text}\t{wish}" for _, text in requests("dev.tsv") for wish in wishes]
    for name, header, lines in (
        ("train", "text_a\ttext_b\ttext_b_neg", train),
        ("test", "text_a\ttext_b", test),
    ):
        (folder / f"{name}.tsv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


def main(num_epochs: int, save_path: Path) -> None:
    config = json.loads((ROOT / "configs" / "bert_small.json").read_text(encoding="utf-8"))
    wishes = [
        name.replace("_", " ") for name in json.loads((DATA / "label_map.json").read_text(encoding="utf-8"))
    ]
    write_pairs(save_path / "pairs", wishes)

    reader = palm.reader.MatchReader(VOCAB, LENGTH, seed=1, do_lower_case=True, learning_strategy="pairwise")
    reader.load_data(save_path / "pairs" / "train.tsv", BATCH_SIZE, num_epochs=num_epochs)
    bert = palm.backbone.BERT.from_config(config)
    reader.register_with(bert)
    trainer = palm.Trainer("wish")
    head = palm.head.Match(2, config["hidden_size"], 0.1, learning_strategy="pairwise", margin=0.5)
    loss_var = trainer.build_forward(bert, head)
    n_steps = reader.num_examples * num_epochs // BATCH_SIZE
    sched = palm.lr_sched.TriangularSchedualer(int(0.1 * n_steps), n_steps)
    trainer.build_backward(optimizer=palm.optimizer.Adam(loss_var, 5e-4, sched), weight_decay=0.01)
    trainer.fit_reader(reader)
    trainer.train(print_steps=50)

    test = reader.clone(phase="predict")
    test.load_data(save_path / "pairs" / "test.tsv", 64)
    test.register_with(bert)
    trainer.build_predict_forward(bert, head)
    trainer.fit_reader(test, phase="predict")
    scores = [result["probs"] for result in trainer.predict(output_dir=save_path / "predict")]
    right = 0
    for number, (wish, _) in enumerate(requests("dev.tsv")):
        own = scores[number * len(wishes) : (number + 1) * len(wishes)]
        right += wishes[own.index(max(own))] == wish
    print(f"the right wish scores highest for {right} of {len(requests('dev.tsv'))} requests")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_epochs", type=int, default=2)
    parser.add_argument("--save_path", type=Path, default=Path(__file__).parent / "output_model")
    options = parser.parse_args()
    main(options.num_epochs, options.save_path)
