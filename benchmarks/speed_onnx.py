"""Prediction beside ONNX Runtime: rows a second, one request, and what rounding does to the answers.

    python benchmarks/speed_onnx.py                 # MiniLM's shape, some five minutes
    python benchmarks/speed_onnx.py --model DIR     # a saved model of a task cls, and texts of yours:
    python benchmarks/speed_onnx.py --model DIR --texts dev.tsv

One thread, CPU seconds of the process. Everybody starts from text, with palm's tokenizer; they take turns.
ONNX Runtime by itself computes what `palm export` writes, in int8 what its `quantize_dynamic` makes of that,
and gets the rows sorted by length, as palm sorts them. Answers are compared with palm's in float32: how many
labels are the same, and the largest difference of a probability.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from arguments import new_parser
from speed import machine
from speed_cases import DATA, SHAPES

from palm import load_model
from palm.backbone import BERT
from palm.export import to_onnx
from palm.paradigm import Classify
from palm.predict.inference import InferenceModel
from palm.predict.onnx import INPUTS
from palm.reader import ClassifyReader

Answer = Callable[[Sequence[str]], np.ndarray]
"""Texts -> probabilities [texts, n_classes]."""


def made_up_model(folder: Path) -> Path:
    """A model that nobody has trained."""
    torch.manual_seed(0)
    shape = SHAPES["minilm"]
    reader = ClassifyReader(DATA / "vocab.txt", 128, n_classes=3, do_lower_case=True)
    InferenceModel("cls", reader, BERT(**shape.settings), Classify(3, shape.hidden_size)).save(folder)
    return folder


def texts_of(file: Path | None, words: int, count: int) -> list[str]:
    """A file's second column; or texts of words of the vocabulary, `words` on the average."""
    if file is not None:
        return [line.split("\t")[1] for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    draw = np.random.default_rng(0)
    vocabulary = [word for word in (DATA / "vocab.txt").read_text("utf-8").split("\n") if word.isalpha()]
    lengths = np.clip(draw.normal(words, words / 3, count), 3, 126).astype(int)
    return [" ".join(draw.choice(vocabulary, length)) for length in lengths]


def of_palm(folder: Path, precision: str, engine: str = "torch") -> Answer:
    """palm as a program uses it."""
    model = load_model(folder, precision=precision, engine=engine)
    return lambda texts: np.array([record["probs"] for record in model.predict(texts)])


def of_session(model: InferenceModel, file: Path, rows: int = 32) -> Answer:
    """ONNX Runtime on the batches that palm's reader makes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def answer(texts: Sequence[str]) -> np.ndarray:
        encoded = model.reader.encode(list(model.reader.parse(texts)), with_targets=False)
        order = np.argsort(encoded.lengths, kind="stable")
        probs = np.empty((len(texts), 0))
        for start in range(0, len(order), rows):
            some = order[start : start + rows]
            batch = model.reader.collate(encoded, some.tolist(), lambda _: np.random.default_rng(0))
            given = {theirs: batch[ours].long().numpy() for ours, theirs in INPUTS.items()}
            logits = torch.from_numpy(session.run(["logits"], given)[0])
            if not probs.size:
                probs = np.empty((len(texts), logits.shape[1]))
            probs[some] = logits.softmax(-1).numpy()
        return probs

    return answer


def everybody(folder: Path, work: Path) -> dict[str, Answer]:
    """Who answers, by name."""
    from onnxruntime.quantization import quantize_dynamic

    to_onnx(folder, work / "onnx")
    quantize_dynamic(work / "onnx" / "model.onnx", work / "int8.onnx")
    model = load_model(folder, precision="fp32")
    return {
        "palm fp32": of_palm(folder, "fp32"),
        "palm bf16": of_palm(folder, "bf16"),
        "palm, engine onnx": of_palm(folder, "fp32", "onnx"),
        "palm, engine onnx, int8": of_palm(folder, "int8", "onnx"),
        "ONNX Runtime fp32": of_session(model, work / "onnx" / "model.onnx"),
        "ONNX Runtime int8": of_session(model, work / "int8.onnx"),
    }


def seconds(
    answers: dict[str, Answer], texts: Sequence[str], turns: int, one_by_one: bool
) -> dict[str, list[float]]:
    """CPU seconds a text of every turn, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in answers}
    for turn in range(turns + 1):
        for name, answer in answers.items():
            started = time.process_time()
            for some in ([text] for text in texts) if one_by_one else [texts]:
                answer(some)
            if turn:
                taken[name].append((time.process_time() - started) / len(texts))
    return taken


def table(answers: dict[str, Answer], texts: Sequence[str], turns: int) -> str:
    """A Markdown table for some texts."""
    together, alone = seconds(answers, texts, turns, False), seconds(answers, texts[:40], turns, True)
    exact = answers["palm fp32"](texts)
    lines = [
        "| | rows/s (least–most) | one request, ms (least–most) | same labels | probabilities within |",
        "|---|---|---|---|---|",
    ]
    for name, answer in answers.items():
        probs = answer(texts)
        same = (probs.argmax(-1) == exact.argmax(-1)).mean()
        rate, request = sorted(1 / s for s in together[name]), sorted(1e3 * s for s in alone[name])
        lines.append(
            f"| {name} | {median(rate):.0f} ({rate[0]:.0f}–{rate[-1]:.0f}) | {median(request):.1f} "
            f"({request[0]:.1f}–{request[-1]:.1f}) | {same:.1%} | {np.abs(probs - exact).max():.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", type=Path, help="a saved model of a task cls; a random one where absent")
    parser.add_argument("--texts", type=Path, help="a data file whose second column is taken")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--count", type=int, default=320, help="made-up texts")
    args: Any = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    with tempfile.TemporaryDirectory() as work:
        folder = args.model or made_up_model(Path(work) / "model")
        answers = everybody(folder, Path(work))
        for words in [0] if args.texts else [14, 80]:
            texts = texts_of(args.texts, words, args.count)
            heading = args.texts or f"{words} words on the average"
            print(f"\n### {heading}\n\n{table(answers, texts, args.turns)}", flush=True)


if __name__ == "__main__":
    main()
