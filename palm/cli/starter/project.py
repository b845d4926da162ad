"""The folder of a new project: its configuration, the data of its tasks, and a small encoder."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from palm.cli.starter.start import weights_of
from palm.core.component import did_you_mean, raise_any
from palm.core.errors import ConfigError, StorageError, shortened
from palm.core.io import make_folder, write_atomically, write_text
from palm.train.model_paths import name_problem

if TYPE_CHECKING:
    from palm.cli.starter.table_tasks import TableTasks

TEMPLATES = Path(__file__).with_name("files")
SCRIPT = "run.sh"
WEIGHTS = "encoder/model.safetensors"

KINDS = {
    path.stem: path.read_text(encoding="utf-8").splitlines()[0].partition(": ")[2]
    for path in sorted(TEMPLATES.glob("*.yaml"))
    if path.stem != "config"
}
"""Kinds of tasks of a project, those that have a template -> the meaning in its first line."""

AUXILIARY = "mlm"
"""The kind that is an auxiliary if there are other tasks."""

COMPARING = frozenset({"match", "multiple_choice", "mrc"})
"""Kinds that ask what two texts have in common. If a table has only these, its encoder begins by subtracting
equal words, and the embeddings are frozen: trained on few rows, they lost it. Rankings gain nothing."""

SIZES = {
    "model_type": "bert",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
"""The configuration of the small encoder of a project without pretrained weights."""

OF_TABLE = {**SIZES, "num_hidden_layers": 1, "num_attention_heads": 1}
"""The same for a table: its words have initial vectors, for which one layer is enough."""

OF_WORDS = {**OF_TABLE, "num_attention_heads": 2}
"""The same for labels of words: a head for the word before, and one for the word after."""

RANDOM = (
    """\
backbone: bert
backbone_config_path: encoder/config.json   # a small encoder with random weights
vocab_path: encoder/vocab.txt               # the words of the rows, and letters for all other words
do_lower_case: True
pooling: mean                               # the mean of all tokens: quick to learn from random weights""",
    """\
The encoder starts from random weights, and its vocabulary is the words of these rows. That is enough to see
that everything works, but not for real text. For that, start from pretrained weights, a directory or a model
at Hugging Face: `palm train config.yaml --pretrain google-bert/bert-base-uncased --learning_rate 5e-5
--num_epochs 3`.""",
)
"""The lines about the encoder in the configuration and in README.md."""

FROM_TABLE = (
    """\
backbone: bert
backbone_config_path: encoder/config.json   # a small encoder, made from the words of the table
vocab_path: encoder/vocab.txt               # these words, and letters for all other words
pretrain_path: encoder                      # words that occur together begin with similar vectors
do_lower_case: True
pooling: mean                               # the mean of all tokens, with which few rows are enough""",
    """\
The encoder is small and knows only which words of this table occur together. It learns what single words tell
about the labels. For more, start from pretrained weights, a directory or a model at Hugging Face: `palm train
config.yaml --pretrain google-bert/bert-base-uncased --save_path pretrained`.""",
)

PRETRAINED = (
    """\
backbone: auto                 # architecture, sizes and vocabulary come from pretrain_path
pretrain_path: {pretrain}""",
    "The encoder starts from {pretrain}.",
)

EXAMPLES = """\
To use your own data, replace the rows in `data/`, with the same columns, and the labels in
`label_map.json`."""
TABLE = """\
Every task reads the table that its `train_file` names. A tenth of the rows is its dev_file, and another tenth
its pred_file (`split`). Other rows are predicted with `palm predict config.yaml --task NAME --NAME.pred_file
FILE`."""
"""The lines about data in README.md."""

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


CHOSEN = """\
effort: {effort:22} # quick, normal or best: chooses rate, batch size and length by data and encoder
{rate}
optimizer: adamw"""
FREE_RATE = "#learning_rate: 2e-4           # settings given here take precedence"
RATE_OF_COUNTS = "learning_rate: 1e-3            # a third of the usual, which fits the noise of counts"
"""The line about the rate in such a configuration."""

SLOW = {"cls", "embedding", "mrc"}
"""Kinds which, if they compare texts, a new encoder learns in twice the usual updates."""

RESTING = """
freeze: embeddings             # a comparison of words needs them as they begin"""
"""The line about embeddings in the configuration of a table of `COMPARING` tasks."""

TOGETHER = """
tasks_per_step: all            # a step trains all tasks; in turn, each would disturb the others"""
"""The line about steps in the configuration of a table with several tasks."""
FIXED = """\
learning_rate: 3e-3
optimizer: adamw
warmup_proportion: 0.1         # the rate rises in the first tenth of the steps and falls afterwards
batch_size: 8                  # rows per step
num_epochs: 40
eval_every_epoch: True         # score dev_file after every epoch and keep the best model"""
"""The lines about training in the configuration: with `effort`, and for the small random encoder."""


def write_project(
    folder: Path,
    tasks: Mapping[str, str],
    pretrain: str | None = None,
    table: TableTasks | None = None,
    effort: str | None = None,
) -> list[str]:
    """Write a project that is ready to train.

    Args:
        folder: must be empty or not exist.
        tasks: name -> kind, in the order of the configuration.
        pretrain: the weights to start from, a directory or the name of a model at Hugging Face; None for a
            small encoder with random weights and its own vocabulary.
        table: the table from which `tasks` were found; None for the example rows of each kind.
        effort: `quick`, `normal` or `best`; None for `normal` with pretrained weights or a table (`best` if
            a table without has several tasks), and for fixed settings without either.

    Returns:
        The written files, relative to the folder.

    Raises:
        ConfigError: there are no tasks, or a name or kind is invalid.
        StorageError: the folder is not empty, or cannot be written.
    """
    raise_any(task_problems(tasks))
    if folder.is_dir() and (there := sorted(path.name for path in folder.iterdir())):
        names = ", ".join(shortened(there, 3))
        raise StorageError(f"{folder} is not empty ({names}) and will not be replaced; give a new folder")
    files = _example_tasks(tasks) if table is None else {f"{n}.yaml": text for n, text in table.files.items()}
    weights: dict[str, Any] = {}
    if pretrain is None:
        data = [text for name, text in files.items() if name.startswith("data/")]
        made, weights = _encoder(_split_into_words(data if table is None else table.texts), table)
        files |= made
    values = {**_values(tasks, pretrain, effort, table), "data": TABLE if table else EXAMPLES}
    files |= {name: _filled(TEMPLATES / name, values) for name in ("config.yaml", "README.md", SCRIPT)}
    for name, text in files.items():
        make_folder((folder / name).parent)
        write_text(folder / name, text)
    (folder / SCRIPT).chmod(0o755)
    if not weights:
        return sorted(files)
    with write_atomically(folder / WEIGHTS) as file:
        file.write(save(weights))
    return sorted([*files, WEIGHTS])


def _encoder(
    texts: Sequence[Sequence[str]], table: TableTasks | None
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the files of a small encoder for these texts, and its weights; {} if they are random."""
    vocabulary = _vocabulary(texts)
    sizes = SIZES if table is None else OF_WORDS if table.has_order else OF_TABLE
    config = {**sizes, "vocab_size": len(vocabulary)}
    files = {
        "encoder/vocab.txt": "\n".join(vocabulary) + "\n",
        "encoder/config.json": json.dumps(config, indent=2) + "\n",
    }
    if table is None:
        return files, {}
    ids = {word: number for number, word in enumerate(vocabulary)}
    numbered = [[ids[word] for word in words] for words in texts]
    separator = SPECIAL.index("[SEP]") if {*table.kinds.values()} <= COMPARING else None
    return files, weights_of(config, numbered, len(SPECIAL), table.compares, table.has_order, separator)


def tasks_of(text: str) -> dict[str, str]:
    """Parse `--tasks`: `cls, slots=seq_label` is {"cls": "cls", "slots": "seq_label"}.

    Raises:
        ConfigError: a name is used twice.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    pairs = [word.partition("=") for word in words]
    names = [name.strip() for name, _, _ in pairs]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"--tasks: {twice[0]!r} is used twice; rename one of them: {twice[0]}2=KIND")
    return {name.strip(): kind.strip() or name.strip() for name, _, kind in pairs}


def task_problems(tasks: Mapping[str, str]) -> Iterator[str]:
    """Check names and kinds of tasks."""
    if not tasks:
        yield f"--tasks: give at least one of {', '.join(KINDS)}"
    for name, kind in tasks.items():
        if kind not in KINDS:
            yield f"--tasks: there is no kind {kind!r}; use {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
        if not re.fullmatch(r"[^\W\d][\w-]*", name):
            yield f"--tasks: a task cannot be called {name!r}; use letters, digits, _ and -"
        elif (problem := name_problem(name)) is not None:
            yield f"--tasks: {problem}"
        elif name == "config":
            yield "--tasks: a task cannot be called 'config', the name of the global file"


def _example_tasks(tasks: Mapping[str, str]) -> dict[str, str]:
    """Return the file and the data of each task."""
    files: dict[str, str] = {}
    for name, kind in tasks.items():
        rows = sorted((TEMPLATES / "data" / kind).iterdir())
        files |= {f"data/{name}/{file.name}": file.read_text(encoding="utf-8") for file in rows}
        suffix = rows[-1].suffix  # of train
        data = f"data/{name}"
        paths = {"data": data, "train": f"{data}/train{suffix}", "dev": f"{data}/dev{suffix}"}
        files[f"{name}.yaml"] = _filled(TEMPLATES / f"{kind}.yaml", paths)
    return files


def _values(
    tasks: Mapping[str, str], pretrain: str | None, effort: str | None, table: TableTasks | None
) -> dict[str, str]:
    """Return the values of the placeholders in the templates of the project."""
    is_table = table is not None
    targets = [name for name, kind in tasks.items() if kind != AUXILIARY] or list(tasks)
    small = FROM_TABLE if is_table else RANDOM
    encoder, start = small if pretrain is None else PRETRAINED
    named = {"pretrain": json.dumps(pretrain)}
    is_fixed = pretrain is None and effort is None and not is_table
    is_together = is_table and len(tasks) > 1
    # A new encoder learns several tasks, or to compare texts, in twice the updates; a step costs little.
    is_hard = is_together or (table is not None and table.compares and {*tasks.values()} <= SLOW)
    usual = "best" if is_hard and pretrain is None else "normal"
    rate = _rate({*tasks.values()}) if is_table and pretrain is None else FREE_RATE
    tags = ", ".join(str(int(name in targets)) for name in tasks)
    ratios = ", ".join("1.0" if name in targets else "0.5" for name in tasks)
    return {
        "files": ", ".join(f"{name}.yaml" for name in tasks),
        "names": ", ".join(tasks),
        "targets": f"{f'target_tag: {tags}':30} # 1: a target, whose model is saved; 0: an auxiliary task\n"
        f"{f'mix_ratio: {ratios}':30} # how often each task is drawn"
        f"{TOGETHER if is_together else ''}",
        "encoder": _filled(encoder, named),
        "main": targets[0],
        "training": FIXED if is_fixed else CHOSEN.format(effort=effort or usual, rate=rate),
        "predict": "\n".join(f"palm predict config.yaml --task {name}" for name in targets),
        "title": ", ".join(tasks) + (" on one encoder" if len(tasks) > 1 else ""),
        "tasks": _task_list(tasks, targets),
        "first": next(iter(tasks)),
        "start": _filled(start, named),
    }


def _rate(kinds: set[str]) -> str:
    """Return the lines about rates and frozen parts for the new encoder of a table with these kinds."""
    rate = RATE_OF_COUNTS if "count" in kinds else FREE_RATE
    return rate + RESTING if kinds <= COMPARING else rate


def _task_list(tasks: Mapping[str, str], targets: Sequence[str]) -> str:
    listed = "\n".join(f"- `{name}`: {KINDS[kind]}" for name, kind in tasks.items())
    return listed if len(targets) == len(tasks) else f"{listed}\n\nTasks of kind mlm are only auxiliaries."


def _filled(template: Path | str, values: Mapping[str, str]) -> str:
    """Fill the placeholders `{name}` of a template or its file; `${NAME}` of a shell is kept."""
    text = template if isinstance(template, str) else template.read_text(encoding="utf-8")
    return re.sub(r"(?<!\$)\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)


def _split_into_words(texts: Iterable[str]) -> list[list[str]]:
    """Split texts as BERT's tokenizer does: every Chinese character is a word."""
    normalizer = BertNormalizer()
    splitter = BertPreTokenizer()
    return [[word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))] for text in texts]


def _vocabulary(texts: Iterable[Sequence[str]]) -> Sequence[str]:
    """Return the words of all texts, the most frequent first, and characters to spell all other words."""
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    letters = dict.fromkeys(["abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"()-/&%$#@+=*_", *counts])
    characters = list(dict.fromkeys("".join(letters)))
    within = dict.fromkeys(character for word in letters if len(word) > 1 for character in word)
    subwords = [*characters, *(f"##{letter}" for letter in within if letter.isalnum())]
    return list(dict.fromkeys([*SPECIAL, *(word for word, _ in counts.most_common()), *subwords]))
