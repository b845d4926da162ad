"""Memory and time of predicting large files: peak memory of a process for each number of rows.

    python benchmarks/growth_predict.py --rows 1000 100000 1000000

Short made-up texts through an encoder of one layer that is 32 wide, one thread, `predict_file`; each size in
a process of its own. What is left to the encoder is so little that growth of anything else shows.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from arguments import OWN_PROCESS, new_parser
from speed_cases import DATA

from palm.backbone import BERT
from palm.paradigm import Classify
from palm.predict.inference import InferenceModel
from palm.reader import ClassifyReader
from palm.train.display import memory_bytes


def write_rows(file: Path, count: int) -> None:
    """A table of texts of 4 to 16 words."""
    draw = np.random.default_rng(0)
    words = [word for word in (DATA / "vocab.txt").read_text("utf-8").split("\n") if word.isalpha()]
    with file.open("w", encoding="utf-8") as table:
        table.write("text_a\n")
        for length in draw.integers(4, 17, count).tolist():
            table.write(" ".join(words[place] for place in draw.integers(len(words), size=length)) + "\n")


def measure(file: Path, folder: Path) -> dict[str, float]:
    """Predict a file in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    reader = ClassifyReader(DATA / "vocab.txt", 32, n_classes=3, do_lower_case=True)
    backbone = BERT(**sizes, vocab_size=reader.vocab_size, max_position_embeddings=32)
    model = InferenceModel("cls", reader, backbone, Classify(3, 32), batch_size=64, precision="fp32")
    model.predict(["warm up"])
    before, started = peak(), time.process_time()
    records = model.predict_file(file, folder)
    taken = time.process_time() - started
    assert records[len(records) - 1]["index"] == len(records) - 1
    return {"rows": len(records), "before": before, "peak": peak(), "seconds": taken}


def peak() -> float:
    """Most memory so far, in MiB."""
    return (memory_bytes(torch.device("cpu")) or 0) / 2**20


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    args = parser.parse_args()
    print("| rows | CPU seconds | rows/s | peak before, MiB | peak after, MiB |\n|---|---|---|---|---|")
    for count in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            write_rows(Path(folder) / "rows.tsv", count)
            with ProcessPoolExecutor(1, OWN_PROCESS) as pool:
                found = pool.submit(measure, Path(folder) / "rows.tsv", Path(folder) / "out").result()
        print(
            f"| {found['rows']} | {found['seconds']:.1f} | {found['rows'] / found['seconds']:.0f} "
            f"| {found['before']:.0f} | {found['peak']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
