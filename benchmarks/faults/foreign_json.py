"""Load directories whose JSON files are mutated: each is read, or is an error of palm in bounded memory.

    python benchmarks/faults/foreign_json.py [--count 2000] [--seed 0]

Values are replaced by values of other types and sizes, removed, moved and nested, and bytes are damaged, in
every JSON file of three sentence encoders: of their encoder, tokenizer, pooling, dense layer and modules.
Prints the outcomes, the most memory beyond that before, and every exception that is not palm's.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from tokenizers import BertWordPieceTokenizer, Tokenizer, normalizers, processors

import palm
from palm.backbone import BERT, RoBERTa
from palm.core.saved import save_tensors
from palm.paradigm import Classify
from palm.pretrained.directory import settings_of_directory
from palm.pretrained.loading import load_backbone, load_pretrain, pretrained_directory
from palm.pretrained.names import from_ours
from palm.reader.tokenizer import load_tokenizer

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghij",
    *(f"##{x}" for x in "abcdefghij"),
    "red",
]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        3,
        10**9,
        2**31,
        2**63,
        10**30,
        1e308,
        -0.5,
        float("nan"),
        float("inf"),
    ),
    *("", "a", "bert", "\x00", "x" * 10_000, "../up", "/etc/passwd", [], {}, [[]], [1, "a"], {"a": {"b": 1}}),
]


def write_directory(folder: Path, with_library: bool) -> list[Path]:
    """Write encoders with all files, one of `transformers` too; return those that are mutated."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        **{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
        **{"vocab_size": len(WORDS), "max_position_embeddings": 16},
    }
    bert = BERT(**sizes)
    weights = from_ours(bert.state_dict(), "huggingface")
    weights |= {"classifier.weight": torch.zeros(2, 8), "classifier.bias": torch.zeros(2)}
    save_tensors(_place(folder, "bert") / "model.safetensors", weights)
    roberta = RoBERTa(**sizes, pad_token_id=0)
    own = from_ours(roberta.state_dict(), "huggingface")
    save_tensors(_place(folder, "roberta") / "model.safetensors", own)
    files = _write_files(folder / "bert", bert.settings) + _write_files(folder / "roberta", roberta.settings)
    _tokenizer(folder / "bert" / "vocab.txt").save(str(folder / "bert" / "tokenizer.json"))
    if with_library:
        from transformers import AutoModel, ModernBertConfig

        ids = {f"{role}_token_id": 0 for role in ("pad", "bos", "eos", "cls", "sep")}
        model = AutoModel.from_config(ModernBertConfig(**sizes, **ids))
        model.save_pretrained(_place(folder, "modernbert"))
        config = json.loads((folder / "modernbert" / "config.json").read_text(encoding="utf-8"))
        files += _write_files(folder / "modernbert", config)
    return [*files, folder / "bert" / "tokenizer.json"]


def _place(folder: Path, name: str) -> Path:
    (folder / name / "1_Pooling").mkdir(parents=True)
    (folder / name / "2_Dense").mkdir()
    return folder / name


def _write_files(place: Path, config: Mapping[str, Any]) -> list[Path]:
    """Write the JSON files of a sentence encoder, and a vocabulary."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    if place.name == "modernbert":  # whose pooler is no dense layer
        del kinds["2_Dense"]
    contents = {
        "config.json": {
            **{"model_type": place.name, "architectures": [f"{place.name.title()}ForSequenceClassification"]},
            **config,
            "id2label": {"0": "x", "1": "y"},
        },
        "tokenizer_config.json": {
            **{"tokenizer_class": "BertTokenizer", "do_lower_case": True, "pad_token": "[PAD]"},
            **{"added_tokens_decoder": {"30": {"content": "[E]", "special": True}}},
        },
        "special_tokens_map.json": {
            "additional_special_tokens": ["[E]"],
            "mask_token": {"content": "[MASK]"},
        },
        "added_tokens.json": {"[F]": 31},
        "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": True},
        "1_Pooling/config.json": {"pooling_mode": "cls", "word_embedding_dimension": 8},
        "2_Dense/config.json": {
            **{"in_features": 8, "out_features": 8, "bias": True},
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
        "modules.json": [
            {"idx": k, "name": str(k), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for k, (path, kind) in enumerate(kinds.items())
        ],
    }
    for name, content in contents.items():
        (place / name).write_text(json.dumps(content, default=str), encoding="utf-8")
    dense = {"linear.weight": torch.eye(8), "linear.bias": torch.zeros(8)}
    save_tensors(place / "2_Dense" / "model.safetensors", dense)
    (place / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    return [place / name for name in contents]


def _tokenizer(vocabulary: Path) -> Tokenizer:
    made = Tokenizer.from_str(BertWordPieceTokenizer(str(vocabulary), lowercase=True).to_str())
    made.normalizer = normalizers.Sequence(
        [made.normalizer, normalizers.Replace("x", "a"), normalizers.NFC()]
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.enable_padding(length=16)
    made.enable_truncation(8)
    return made


def mutated(content: Any, draw: random.Random) -> bytes:
    """Mutate one to three places of a JSON value, and sometimes the bytes of its text."""
    content = copy.deepcopy(content)
    for _ in range(draw.randrange(1, 4)):
        places = list(_places(content))
        if not places:
            break
        owner, key = draw.choice(places)
        change = draw.randrange(5)
        if change == 0:
            del owner[key]
        elif change == 1:
            owner[key] = [owner[key]] if draw.random() < 0.5 else {"a": owner[key]}
        elif change == 2:
            other, name = draw.choice(places)
            owner[key] = copy.deepcopy(other[name])
        else:
            owner[key] = copy.deepcopy(draw.choice(VALUES))
    data = json.dumps(content).encode()
    if draw.random() < 0.2:
        at = draw.randrange(len(data))
        wrong = draw.choice([b"9" * 30, b"[" * 5000, b"\xff", b'"a": 1,', b""])
        data = data[:at] + wrong + data[at + draw.randrange(3) :]
    return data


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all members of objects and arrays, with their owner and key; few of a long one."""
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    for key in keys[:40]:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def load(folder: Path) -> None:
    """Use a directory as a run does: its settings, its tokenizer and its encoder."""
    told = settings_of_directory(pretrained_directory(folder))
    tokenizer = load_tokenizer(Path(told["vocab_path"]), told["do_lower_case"])
    ids = tokenizer.row(*tokenizer.encode(["a red bad cab", "x" * 1000]))[:8]
    backbone = load_backbone(folder)
    if isinstance(backbone, BERT):
        load_pretrain(BERT(**backbone.settings), folder, [("task", Classify(2, 8), ["x", "y"])])
    if max(ids) < len(WORDS):
        tokens = torch.tensor([ids])
        batch = dict.fromkeys(("token_ids", "segment_ids", "position_ids", "task_ids"), tokens.clamp(max=1))
        backbone({**batch, "token_ids": tokens, "input_mask": torch.ones_like(tokens, dtype=torch.bool)})


def peak() -> int:
    """The most memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def trials(folder: Path, count: int, seed: int, with_library: bool) -> tuple[Counter[str], list[str], int]:
    """Load mutated directories; return the outcomes, other exceptions, and the memory beyond that before."""
    draw = random.Random(seed)
    files = write_directory(folder, with_library)
    places = [file.parent for file in files if file.name == "added_tokens.json"]
    for place in places:
        load(place)
    before = peak()
    outcomes: Counter[str] = Counter()
    wrong = []
    for number in range(count):
        file = draw.choice(files)
        whole = file.read_bytes()
        file.write_bytes(mutated(json.loads(whole), draw))
        try:
            load(next(place for place in places if place in file.parents))
            outcomes["read"] += 1
        except palm.PalmError:
            outcomes["refused"] += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also panics of Rust; none should happen
            outcomes["other"] += 1
            text = file.read_text(encoding="utf-8", errors="replace")[:200]
            wrong.append(f"{number}: {file.relative_to(folder)}: {type(error).__name__}: {error}: {text}")
        finally:
            file.write_bytes(whole)
    return outcomes, wrong, peak() - before


def main() -> int:
    """Run the trials that the command line asks for; 0 if all are good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        outcomes, wrong, memory = trials(folder, options.count, options.seed, with_library=True)
    finally:
        shutil.rmtree(folder)
    print(dict(outcomes), f"{memory} MiB more", *wrong[:20], sep="\n")
    return 1 if wrong or memory > 1024 else 0


if __name__ == "__main__":
    sys.exit(main())
