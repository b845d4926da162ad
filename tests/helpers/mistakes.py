"""Mistakes that new users make, each with what palm has to say about it: place, cause, remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import palm
from helpers import tiny
from palm.backbone import BACKBONES
from palm.check import check
from palm.cli import main
from palm.compat.head import Classify
from palm.config.conversion import type_name
from palm.config.foreign import FOREIGN
from palm.config.printing import listed
from palm.config.schema import Parameter
from palm.controller.controller import Controller
from palm.controller.plan import HELP, NO_SETTINGS
from palm.core.registry import Registry
from palm.lr_sched import LR_SCHEDULES
from palm.mixing import MIXINGS
from palm.mixing.balance import BALANCES
from palm.optimizer import OPTIMIZERS
from palm.paradigm import HEADS
from palm.reader import READERS


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Args:
        kind: the row of the table in the documentation that counts it.
        title: what the user did.
        act: does it, in a folder with the files of a tiny run, which is the working directory.
        told: what the message has to contain.
    """

    kind: str
    title: str
    act: Callable[[Path], Any]
    told: tuple[str, ...]


OF_WORDS_OR_SEVERAL = ("seq_label", "multi_label")
"""Tasks whose labels have names; the tiny run has none."""

OF_SEVERAL_TEXTS = ("embedding", "multiple_choice", "ranking")
"""Tasks of which the tiny run has no data."""


def controller(folder: Path, change: dict[str, Any], task: str = "cls", **own: Any) -> Controller:
    """A Controller of one task, from files; `own` are settings of the task's file, None takes one away."""
    others = (*OF_WORDS_OR_SEVERAL, *OF_SEVERAL_TEXTS)
    config = tiny.config(folder, "cls" if task in others else task) | change
    (settings,) = config.pop("tasks").values()
    if task in OF_WORDS_OR_SEVERAL:
        settings |= {"reader": task, "paradigm": task, "n_classes": 2, "label_map": {"O": 0, "B": 1}}
    if task in OF_SEVERAL_TEXTS:
        settings |= {"reader": task, "paradigm": task, "n_classes": None}
    settings = {name: value for name, value in {**settings, **own}.items() if value is not None}
    config = {name: value for name, value in config.items() if value is not None}
    config["task_instance"] = change.get("task_instance", task)
    for name, content in (("config", config), (task, settings)):
        # A line a setting, as people write them, so that every message has its line.
        lines = [f"{key}: {v if isinstance(v, str) else json.dumps(v)}\n" for key, v in content.items()]
        (folder / f"{name}.yaml").write_text("".join(lines), encoding="utf-8")
    return Controller("config.yaml", argv=[])


def in_config(
    kind: str, change: dict[str, Any], *told: str, task: str = "cls", title: str | None = None
) -> Mistake:
    """A setting of the global file."""
    what = ", ".join(f"{name}: {value!r}" for name, value in change.items())
    return Mistake(
        kind, title or what, lambda folder: controller(folder, change, task), ("config.yaml", *told)
    )


def in_task(kind: str, own: dict[str, Any], *told: str, task: str = "cls") -> Mistake:
    """A setting of the task's file."""
    what = ", ".join(f"{name}: {value!r}" for name, value in own.items())
    return Mistake(kind, f"{task}.yaml, {what}", lambda folder: controller(folder, {}, task, **own), told)


WRONG = {"mapping": 7, "list of": {"a": 1}, "true or": "perhaps", "one of": "neither", "whole number": 2.5}
"""What the name of a type begins with -> a value of another type."""


def wrong_value(parameter: Parameter) -> Any:
    kind = type_name(parameter.annotation)
    if kind == "number" or kind == "whole number or number":
        return "many"
    if "one of" in kind:
        return "neither"
    return next((value for start, value in WRONG.items() if kind.startswith(start)), [[1]])


def settings() -> Iterator[tuple[Parameter, dict[str, Any], str]]:
    """Every setting once, with what makes it count: global settings and a task."""
    seen = set()
    for heading, consumers in HELP.items():
        for parameter in listed(consumers, NO_SETTINGS):
            if parameter.name not in seen:
                seen.add(parameter.name)
                yield parameter, *_place_of(parameter.name, heading)


def _place_of(name: str, heading: str) -> tuple[dict[str, Any], str]:
    chosen: dict[str, Any] = {}
    defaults: dict[str, tuple[Registry[Any], str]] = {
        "optimizer": (OPTIMIZERS, "adam"),
        "lr_scheduler": (LR_SCHEDULES, "linear_warmup_decay"),
        "mixing": (MIXINGS, "mix_ratio"),
        "backbone": (BACKBONES, "bert"),
        "balance": (BALANCES, ""),
    }
    for key, (registry, default) in defaults.items():
        if owners := _owners(registry, name):
            chosen |= {} if default in owners else {key: owners[0]}
    tasks = [*_owners(READERS, name), *_owners(HEADS, name)] if heading in ("readers", "paradigms") else []
    return chosen, "cls" if not tasks or "cls" in tasks else tasks[0]


def _owners(registry: Registry[Any], name: str) -> list[str]:
    return [key for key in registry if any(p.name == name for p in listed([registry[key]], NO_SETTINGS))]


def types() -> Iterator[Mistake]:
    for parameter, chosen, task in settings():
        name, value = parameter.name, wrong_value(parameter)
        if name in ("reader", "paradigm"):
            yield in_task("a value of another type", {name: value}, f"{name} should be a string, not [[1]]")
        elif name not in ("label_map", "vocab_path"):
            yield in_config(
                "a value of another type",
                {**chosen, name: value},
                f"{name} should be ",
                type_name(parameter.annotation),
                f"not {value!r}",
                task=task,
            )


def misspellings() -> Iterator[Mistake]:
    for parameter, chosen, task in settings():
        name = parameter.name
        wrong = name[: len(name) // 2] + name[len(name) // 2 + 1 :]
        told = (f"nothing uses {wrong!r}", f"did you mean {name!r}?")
        yield in_config("a misspelt setting", {**chosen, wrong: 1}, *told, task=task)


def ranges() -> Iterator[Mistake]:
    kind = "a value out of its range"
    for change, *told in (
        ({"num_epochs": 0}, "num_epochs should be above 0, not 0"),
        *(
            ({name: value}, f"{name} should be 1 or more", f"not {value}")
            for name in (
                *("print_every_n_steps", "save_every_n_steps", "save_infermodel_every_n_steps"),
                *("eval_every_n_steps", "early_stopping_patience", "keep_last_n"),
            )
            for value in (0, -5)
        ),
        ({"num_epochs": -3}, "num_epochs should be above 0, not -3"),
        ({"num_epochs": ".inf"}, "num_epochs should be above 0, not inf"),
        ({"warmup_proportion": 1}, "warmup_proportion should be at least 0 and below 1, not 1.0"),
        ({"warmup_proportion": -0.1}, "warmup_proportion should be at least 0 and below 1, not -0.1"),
        ({"ema_decay": 1, "use_ema": True}, "ema_decay should be at least 0 and below 1, not 1.0"),
        ({"early_stopping_by": "run"}, "early_stopping_by should be one of 'task', 'all', not 'run'"),
        ({"early_stopping_patience": 3}, "early_stopping_patience needs a task with a dev_file"),
        ({"keep_last_n": 0}, "keep_last_n should be 1 or more, or -1 for all, not 0"),
        ({"num_devices": 0}, "num_devices should be 1 or more, or auto, not 0"),
        ({"process_group_timeout": 0}, "process_group_timeout should be above 0, not 0.0"),
        ({"random_seed": 10**30}, "random_seed should be a whole number of at most 64 bits"),
        ({"random_seed": -(10**30)}, "random_seed should be a whole number of at most 64 bits"),
        ({"learning_rate": 0}, "learning_rate: 0.0"),
        ({"learning_rate": -1}, "learning_rate: -1.0"),
        ({"learning_rate": ".nan"}, "learning_rate should be a number, not .nan"),
        ({"weight_decay": -1}, "weight_decay: -1.0"),
        ({"grad_clip": 0}, "grad_clip: 0.0"),
        ({"beta1": 1}, "beta1: 1.0"),
        ({"beta2": 1.5}, "beta2: 1.5"),
        ({"epsilon": 0}, "epsilon: 0.0"),
        ({"optimizer": "adamwdl", "layerwise_decay": 2}, "layerwise_decay should be above 0 and at most 1"),
        ({"backbone_learning_rate": 0}, "backbone_learning_rate: 0.0", "freeze"),
        ({"freeze": 0}, "freeze should be embeddings, backbone or a number of layers, not 0"),
        ({"freeze": 3}, "freeze: there are 2 layers, not 3"),
        ({"parameter_learning_rates": {"*.nowhere": 1}}, "parameter_learning_rates: '*.nowhere'"),
        ({"mix_ratio": [1, 1]}, "mix_ratio has 2 entries for 1 tasks (cls)"),
        ({"mix_ratio": [0]}, "mix_ratio of task 'cls' should be above 0 for a target task, not 0.0"),
        ({"mix_ratio": [-1]}, "mix_ratio of task 'cls' should be above 0 for a target task, not -1.0"),
        ({"mix_ratio": [".nan"]}, "mix_ratio should be a list of numbers"),
        ({"target_tag": [0]}, "target_tag has no target task; give at least one task the tag 1"),
        ({"target_tag": [2]}, "target_tag should be 1 (target) or 0 (auxiliary) for each task, not [2]"),
        ({"target_tag": [1, 0]}, "target_tag has 2 entries for 1 tasks (cls)"),
        ({"task_reuse_tag": ["a", "b"]}, "task_reuse_tag has 2 entries for 1 tasks (cls)"),
        ({"best_by": ["cls"]}, "best_by names cls; tasks with a dev_file: none"),
        ({"mixing": "dev_score"}, "mixing: dev_score uses dev scores; give a task a dev_file"),
        ({"dropout_prob": 1}, "dropout_prob: 1.0 should be a probability, from 0 to below 1"),
        ({"dropout_prob": -1}, "dropout_prob: -1.0 should be a probability, from 0 to below 1"),
        ({"hidden_dropout_prob": 2}, "hidden_dropout_prob: 2.0 should be a probability, from 0 to below 1"),
        ({"attention_probs_dropout_prob": 1}, "attention_probs_dropout_prob: 1.0 should be a probability"),
        ({"initializer_range": 0}, "initializer_range: 0.0 should be a number above 0"),
        ({"layer_norm_eps": 0}, "layer_norm_eps: 0.0 should be a number above 0"),
        ({"hidden_size": 0}, "hidden_size: 0 should be a whole number, 1 or more"),
        (
            {"num_attention_heads": 5},
            "num_attention_heads: 5 heads cannot share hidden_size 32",
            "multiple of",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads: 0 should be a whole number, 1 or more"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0 should be a whole number, 1 or more"),
        ({"vocab_size": 0}, "vocab_size: 0 should be a whole number, 1 or more"),
        ({"intermediate_size": 0}, "intermediate_size: 0 should be a whole number, 1 or more"),
        ({"hidden_act": "swish"}, "hidden_act", "'swish'"),
        ({"max_seq_len": 2}, "max_seq_len should be at least 3, not 2"),
        ({"max_seq_len": 65}, "max_seq_len is 65", "set max_seq_len to 64 or less"),
        ({"batch_size": 0}, "batch_size: 0 should be a whole number, 1 or more"),
        ({"batch_size": -4}, "batch_size: -4 should be a whole number, 1 or more"),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch: 0 should be a whole number, 1 or more"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps: 0 should be a whole number"),
        ({"loss_weight": 0}, "loss_weight: 0.0 should be a number above 0"),
        ({"learning_rate_factor": -1}, "learning_rate_factor: -1.0 should be a number above 0"),
        ({"head_learning_rate": 0}, "head_learning_rate: 0.0 should be a number above 0"),
    ):
        yield in_config(kind, change, *told)
    for task, own, *words in (
        ("cls", {"n_classes": 0}, "cls.yaml:5", "n_classes: 0 should be a whole number, 2 or more"),
        ("cls", {"n_classes": 1}, "cls.yaml:5", "n_classes: 1 should be a whole number, 2 or more"),
        (
            "cls",
            {"label_type": "float"},
            "cls.yaml",
            "label_type: 'float' should be one of class, soft",
        ),
        ("cls", {"label_map": {"a": 7}}, "the id 7 of 'a' does not fit n_classes 4"),
        ("cls", {"label_map": {"a": "x"}}, "label_map should be a file or mapping"),
        ("cls", {"label_map": {"a": 0, "b": 0}}, "'a' and 'b' have the same id 0"),
        ("cls", {"label_map": {}}, "expected a mapping from label to id, like {'no': 0, 'yes': 1}"),
        ("match", {"learning_strategy": "triple"}, "learning_strategy: 'triple' should be one of pointwise"),
        ("match", {"margin": 0, "learning_strategy": "pairwise"}, "margin: 0.0 should be a number above 0"),
        ("mrc", {"max_query_len": 0}, "mrc.yaml:5", "max_query_len", "0"),
        ("mrc", {"doc_stride": 0}, "mrc.yaml:6", "doc_stride", "0"),
        ("mrc", {"n_best_size": 0}, "mrc.yaml", "n_best_size"),
        ("mrc", {"max_answer_len": 0}, "max_answer_len"),
        ("mrc", {"max_query_len": 24}, "leaves no room for a context: it should be at least 28"),
        (
            "seq_label",
            {"n_classes": 3},
            "label_map: no label has the id 2",
            "n_classes 3",
        ),
    ):
        yield in_task(kind, own, *words, task=task)


def owners() -> Iterator[Mistake]:
    kind = "a setting of another component"
    for name, value, owner, task in (
        ("doc_stride", 8, "reader mrc", "cls"),
        ("max_query_len", 8, "reader mrc", "cls"),
        ("remove_noanswer", False, "reader mrc", "cls"),
        ("max_answer_len", 8, "paradigm mrc", "cls"),
        ("with_negative", True, "paradigm mrc", "cls"),
        ("use_crf", True, "paradigm seq_label", "cls"),
        ("margin", 1, "paradigm match", "cls"),
        ("learning_strategy", "pairwise", "reader match and paradigm embedding, match, ranking", "cls"),
        ("label_map", {"a": 0}, "reader cls, match, multi_label, multiple_choice, span", "mrc"),
        ("n_classes", 2, "reader cls, match, multi_label, span", "mrc"),
        ("label_type", "real", "reader cls, embedding, match", "mrc"),
        ("doc_stride", 8, "reader mrc", "match"),
        ("max_answer_len", 8, "paradigm mrc", "mlm"),
        ("use_crf", True, "paradigm seq_label", "mrc"),
    ):
        told = (f"{task}.yaml:", f"{name} belongs to {owner}", f"; task {task!r} has ")
        yield in_task(kind, {name: value}, *told, task=task)
    for name, owner, run in (
        ("layerwise_decay", "optimizer adamwdl", "optimizer adam"),
        ("set_param_lr_fun", "optimizer adamwdl", "optimizer adam"),
        ("lr_power", "lr_scheduler polynomial", "lr_scheduler linear_warmup_decay"),
        ("lr_end_factor", "lr_scheduler ", "lr_scheduler linear_warmup_decay"),
        ("mixing_temperature", "mixing temperature", "mixing mix_ratio"),
        ("mixing_cap", "mixing temperature", "mixing mix_ratio"),
        ("mixing_decay", "mixing annealed", "mixing mix_ratio"),
        ("mixing_references", "mixing dev_score", "mixing mix_ratio"),
        ("mixing_floor", "mixing dev_score", "mixing mix_ratio"),
        ("use_task_id", "backbone ernie", "backbone bert"),
        ("sent_type_vocab_size", "backbone ernie", "backbone bert"),
        ("pad_token_id", "backbone roberta", "backbone bert"),
        ("doc_stride", "reader mrc", "reader cls"),
        ("use_crf", "paradigm seq_label", "paradigm cls"),
    ):
        yield in_config(kind, {name: 1}, f"{name} belongs to {owner}", f"this run has {run}")
    for name in ("learning_rate", "num_epochs", "save_path", "optimizer", "random_seed", "mix_ratio"):
        told = (f"cls.yaml:6: {name!r} is a setting of the whole run", "it belongs in config.yaml")
        yield in_task(kind, {name: 1}, *told)


def components() -> Iterator[Mistake]:
    kind = "a component that does not exist, or is missing"
    for key, value, *told in (
        ("backbone", "bart", "no backbone is called 'bart'; known: bert", "did you mean 'bert'?"),
        ("backbone", "gpt", "no backbone is called 'gpt'; known: bert", "auto, with pretrain_path"),
        ("backbone", "nowhere.Bert", "the backbone 'nowhere.Bert' cannot be imported"),
        ("backbone", "json.JSONDecoder", "the backbone 'json.JSONDecoder'", "palm.backbone.base.Backbone"),
        ("optimizer", "sgd", "no optimizer is called 'sgd'; known: adam"),
        ("optimizer", "adan", "no optimizer is called 'adan'", "did you mean 'adam'?"),
        ("lr_scheduler", "cosin", "no learning-rate schedule is called 'cosin'", "did you mean 'cosine'?"),
        ("lr_scheduler", "step", "no learning-rate schedule is called 'step'; known: "),
        ("mixing", "mixratio", "no mixing strategy is called 'mixratio'", "did you mean 'mix_ratio'?"),
        ("mixing", "json.loads", "the mixing strategy 'json.loads'", "palm.mixing.base"),
        ("save_path", None, "save_path is missing (the folder for checkpoints and the targets' models)"),
        ("learning_rate", None, "learning_rate is missing (base learning rate"),
        ("num_epochs", None, "num_epochs is missing (passes over the main task's training data"),
        ("backbone", None, "backbone is missing (the encoder: bert"),
        ("vocab_path", None, "vocab_path is missing (the vocabulary: "),
        ("max_seq_len", None, "max_seq_len is missing (the longest row in tokens"),
        ("backbone_config_path", None, "hidden_size is missing"),
        ("backbone_config_path", "nowhere.json", "backbone_config_path: no such file", "nowhere.json"),
        ("vocab_path", "nowhere.txt", "vocab_path: no such file", "(written as 'nowhere.txt')"),
        ("batch_size", None, "neither batch_size (rows per step) nor max_tokens_per_batch"),
        (
            "task_instance",
            ["clss"],
            "task_instance names 'clss', but there is no file",
            "did you mean 'cls'?",
        ),
        ("task_instance", ["cls", "cls"], "task_instance names 'cls' twice"),
        ("task_instance", ["backbone"], "a task cannot be called 'backbone'"),
        ("task_instance", [], "task_instance names no task"),
        ("mrqa.max_seq_len", 3, "there is no task 'mrqa'"),
        ("backbone", "auto", "'auto' needs pretrain_path"),
    ):
        act = lambda folder, change={key: value}: controller(folder, change)  # noqa: E731
        title = f"no {key}" if value is None else f"{key}: {value!r}"
        yield Mistake(kind, title, act, ("" if value is None else "config.yaml", *told))
    for key, value, *told in (
        ("reader", "clss", "reader: no reader is called 'clss'", "did you mean 'cls'?"),
        ("reader", "tsv", "reader: no reader is called 'tsv'; known: cls"),
        ("reader", "json.JSONDecoder", "the reader 'json.JSONDecoder'", "palm.reader.base"),
        ("reader", "nowhere.Reader", "the reader 'nowhere.Reader' cannot be imported: ", "PYTHONPATH"),
        ("reader", None, "reader is missing (reads its data: cls, embedding, match, m"),
        ("paradigm", "clas", "paradigm: no head is called 'clas'", "did you mean 'cls'?"),
        ("paradigm", "ner", "paradigm: no head is called 'ner'; known: cls"),
        (
            "paradigm",
            "palm.reader.ClassifyReader",
            "the head 'palm.reader.ClassifyReader'",
            "palm.paradigm.base",
        ),
        ("paradigm", None, "paradigm is missing (its head: cls, count, embedding, match"),
        ("paradigm", "mlm", "task 'cls': the head needs 'mask_pos' as int64[masks]"),
        ("paradigm", "mrc", "task 'cls': the head's loss needs 'start_positions' as int64[batch]"),
        ("paradigm", "seq_label", "task 'cls': the head needs 'word_mask'"),
        ("reader", "mrc", "max_query_len is missing ("),
        ("reader", "seq_label", "label_map is missing (label name -> id"),
        ("n_classes", None, "n_classes is missing (number of labels"),
        ("train_file", None, "task 'cls' has no train_file; name its training data in cls.yaml"),
        ("train_file", "nowhere.tsv", "train_file: no such file"),
        ("dev_file", "nowhere.tsv", "dev_file: no such file"),
        ("dev_file", "/dev/null", "dev_file: not a regular file: "),
        ("dev_file", "..", "dev_file: no table in this folder: "),
        ("label_map", "nowhere.json", "label_map: no such file"),
    ):
        yield in_task(kind, {key: value}, *told)


def data() -> Iterator[Mistake]:
    kind = "data that cannot be used"
    head = {"cls": "label\ttext_a\n", "match": "label\ttext_a\ttext_b\n", "mlm": "text_a\n"}
    head["seq_label"] = "label\ttext_a\n"
    rows: list[tuple[str, str, tuple[str, ...]]] = []
    for task, header in head.items():
        names = header.strip().replace("\t", ", ")
        some = header.strip().split("\t")
        good = "\t".join("0" if name == "label" and task != "seq_label" else "O" for name in some) + "\n"
        rows += [
            (task, POINTER, ("Git LFS", "git lfs pull")),
            (task, "", (":1: expected a header that names the columns",)),
            (task, header, (f"only a header ({names})",)),
            (task, header.replace("text_a", "texts"), (":1: the header lacks 'text_a'", "rename 'texts' to")),
            (task, header.replace("\n", "\ttext_a\n") + good, (":1: the header names 'text_a' twice",)),
            (task, header + good + "a\tb\tc\td\te\n", (f":3: 5 columns, expected {len(some)} ({names})",)),
            (task, header + "\n" + good, (":2: a blank line", "remove it")),
            (
                task,
                header + good.replace("O\n", " \n") + good,
                (":2: ", "remove it" if task == "mlm" else "is empty"),
            ),
            (task, header + good + "\udcff\n", (":3: byte 1 of line 3, b'\\xff', is not UTF-8",)),
        ]
    rows += [
        (
            "cls",
            head["cls"] + "x\tred\n",
            (":2: the label 'x' is not a whole number from 0 to 3", "label_map"),
        ),
        ("cls", head["cls"] + "4\tred\n", (":2: the label '4' should be a whole number from 0 to 3",)),
        ("cls", head["cls"] + "-1\tred\n", (":2: the label '-1' should be a whole number from 0 to 3",)),
        ("cls", head["cls"] + "1.0\tred\n", (":2: the label '1.0' is not a whole number from 0 to 3",)),
        ("cls", "label,text_a\n0,red\n", (":1: the header lacks", "tabs", ".csv")),
        ("cls", '{"label": 0}\n', (":1: the header lacks", ".jsonl")),
        ("cls", head["cls"] + "\tred\n", ("cls.bad: none of the 1 rows",)),
        (
            "cls",
            head["cls"] + "0\tred\n",
            ("1 training rows do not fill one batch", "set batch_size (now 4)"),
        ),
        (
            "match",
            head["match"] + "2\tred\tred\n",
            (":2: the label '2' should be a whole number from 0 to 1",),
        ),
        ("match", head["match"] + "0\tred\t\n", (":2: text_b is empty",)),
        ("match", head["cls"] + "0\tred\n", (":1: the header lacks 'text_b'",)),
        ("seq_label", head["seq_label"] + "O O\tred\n", (":2: 2 labels for 1 word", "needs one label")),
        ("seq_label", head["seq_label"] + "O\tred door\n", (":2: 1 label for 2 words", "needs one label")),
        ("seq_label", head["seq_label"] + "X\tred\n", (":2: the label 'X' is not in the label_map (O, B)",)),
    ]
    question = {"id": "q", "question": "what", "answers": [{"text": "red", "answer_start": 0}]}
    for change, *told in (
        ({"id": None}, "'id' should be a string, not None"),
        ({"question": ""}, "question 'q'", "the question is empty"),
        ({"question": 7}, "'question' should be a string, not 7"),
        ({"answers": []}, "question 'q'", "no answers", "remove_noanswer: False"),
        ({"answers": {}}, "'answers' should be a list, not {}"),
        ({"answers": [7]}, "expected an object with 'text', not 7"),
        ({"answers": [{"text": "red"}]}, "'red'", "answer_start", "at 0"),
        ({"answers": [{"text": "red", "answer_start": "0"}]}, "'answer_start' should be a whole number"),
        ({"answers": [{"text": "red", "answer_start": 2}]}, "at 2", "at 0"),
        ({"answers": [{"text": "blue", "answer_start": 0}]}, "the context does not contain it"),
    ):
        paragraph = {"context": "red door", "qas": [question | change]}
        rows.append(("mrc", json.dumps({"data": [{"paragraphs": [paragraph]}]}), tuple(told)))
    for text, *told in (
        (POINTER, "Git LFS", "git lfs pull"),
        ('{"data": []}\n{"data": []}', ":2:1:", ".jsonl"),
        ("", "mrc.bad"),
        ("{", "mrc.bad"),
        ("[]", "mrc.bad"),
        ('{"data": []}', "at least one question", "data, paragraphs, qas"),
        ('{"data": [7]}', "article 1: expected an object with 'paragraphs', not 7"),
        ('{"data": [{}]}', "article 1: no 'paragraphs'; found nothing"),
        ('{"data": [{"paragraphs": 7}]}', "'paragraphs' should be a list, not 7"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "paragraph 1: no 'context'; found 'qas'"),
        ('{"data": [{"paragraphs": [{"context": "a"}]}]}', "paragraph 1: no 'qas'; found 'context'"),
        (
            '{"data": [{"paragraphs": [{"context": "", "qas": [{"id": 1, "question": "who"}]}]}]}',
            "mrc.bad: question '1'",
            "context",
            "empty",
        ),
    ):
        rows.append(("mrc", text, tuple(told)))
    for task, text, told in rows:

        def act(folder: Path, task: str = task, text: str = text) -> None:
            (folder / f"{task}.bad").write_bytes(text.encode("utf-8", "surrogateescape"))
            controller(folder, {"use_data_cache": False}, task, train_file=f"{task}.bad").train()

        yield Mistake(kind, f"{task}, {text[-40:]!r}", act, (task, *told))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
"""What Git LFS puts in the place of a file that was not fetched."""


def files() -> Iterator[Mistake]:
    kind = "a configuration that cannot be read"

    def written(name: str, content: str, *told: str) -> Mistake:
        def act(folder: Path) -> None:
            controller(folder, {})  # writes the other files of the run
            (folder / name).write_bytes(content.encode("utf-8", "surrogateescape"))
            try:
                Controller("config.yaml", argv=[])
            finally:
                tiny.write_files(folder)

        return Mistake(kind, f"{name}, {content[:40]!r}", act, (name, *told))

    for name in ("config.yaml", "cls.yaml"):
        yield written(name, "a: [1, 2\n", ":1: not YAML", "expected ',' or ']'")
        yield written(name, "a: 1\nb:2\nc: 3\n", ":2: not YAML", "'b:2'")
        yield written(name, 'a: 1\nb: "2\nc: 3\n', ":2: not YAML", "not closed")
        yield written(name, "a: 1\n\tb: 2\n", ":2: not YAML", "indent with spaces, not tabs")
        yield written(name, "- a\n- b\n", "'name: value'")
        yield written(name, "just text\n", "'name: value'")
        yield written(name, "a: 1\na: 2\n", ":2: 'a' is set twice, first in line 1")
        yield written(name, "a: \udcff\n", ":1: not UTF-8 text; save the file as UTF-8")
        yield written(name, "a: !python/name:os.system x\n", "the tag")
    for name in ("config.yaml", "vocab.txt", "backbone.json"):
        yield written(name, POINTER, "Git LFS", "git lfs pull")
    yield written("backbone.json", "{", "backbone.json:1:", "not JSON")
    yield written("backbone.json", "[]", "JSON object, {...}")
    yield written("backbone.json", "{}", "is missing")
    yield written("vocab.txt", "red\n", "the vocabulary lacks [PAD], [UNK], [CLS], [SEP], [MASK]")
    yield written("vocab.txt", "[PAD]\n[PAD]\n", ":2: ", "'[PAD]'", "line 1")
    yield written("vocab.txt", "a\tb\tc\n", ":1: expected 'token' or 'token<TAB>id'")
    yield written("vocab.txt", "a\t1\nb\t1\n", ":2: id 1", "line 1")


def shell() -> Iterator[Mistake]:
    kind = "a command with other words"

    def said(words: list[str], *told: str) -> Mistake:
        def act(folder: Path) -> int:
            controller(folder, {})
            return main(words)

        return Mistake(kind, f"palm {' '.join(words)}", act, told)

    run = ["config.yaml"]
    yield said([], "usage: palm", "required: command")
    yield said(["trian"], "usage: palm", "invalid choice: 'trian'")
    yield said(["--batch_size", "8"], "usage: palm")
    for command in ("train", "convert", "export", "inspect"):
        yield said([command], f"usage: palm {command}", "required")
    for command in ("train", "predict", "evaluate"):
        yield said([command, "nowhere.yaml"], "nowhere.yaml: cannot be read: No such file or directory")
        yield said(
            [command, *run, "--batch_sise", "8"], "--batch_sise: nothing uses", "did you mean 'batch_size'?"
        )
        yield said(
            [command, *run, "--batch_size", "many"], "--batch_size should be a whole number, not 'many'"
        )
        yield said(
            [command, *run, "--batch_size"], "--batch_size should be a whole number, not an option without"
        )
        yield said([command, *run, "--mrqa.batch_size", "8"], "--mrqa.batch_size: there is no task 'mrqa'")
        yield said(
            [command, *run, "--task_dir", "nowhere"], "task_instance names 'cls', but there is no file"
        )
    yield said(["train", *run, "more.yaml"], "usage: palm train", "unrecognized arguments: more.yaml")
    yield said(["train", *run, "--resume", "nowhere"], "--resume", "'nowhere'", "auto")
    yield said(["train", *run, "--pretrain_path", "nowhere"], "no weights at", "nowhere: it does not exist")
    yield said(["train", *run, "--pretrain", "nowhere"], "--pretrain: no weights at", "it does not exist")
    yield said(["train", *run, "--learning_rate", "-1"], "--learning_rate", "learning_rate: -1.0")
    yield said(
        ["train", *run, "--batch_size", "64"], "40 training rows do not fill one batch; set batch_size"
    )
    yield said(
        ["train", *run, "--save_path", "cls.tsv"],
        "cls.tsv: Not a directory",
        "give a folder that can be written",
    )
    yield said(["predict", *run, "--task", "clss"], "no task is called 'clss'; known: cls")
    yield said(
        ["predict", *run, "--task", "cls"], "task 'cls' has no model at", "it is not trained yet; train first"
    )
    yield said(["predict", *run, "--cls.pred_file", "no.tsv"], "task 'cls' needs a pred_file; no such file")
    yield said(["predict", *run, "--trust", "x"], "--trust", "--model")
    yield said(
        ["predict", *run, "--inference_model_dir", "no"],
        "no is not a directory that palm saved",
        "train first",
    )
    yield said(["predict", *run, "--input", "cls.tsv"], "--input", "--model")
    yield said(["predict", *run, "--output", "x", "--task", "a", "--task", "b"], "--output", "a, b")
    yield said(["convert", ".", "--output", "converted"], "no weights at")
    yield said(["init", "new", "--tasks", "a=cls,a=mlm"], "'a'", "a2=KIND")
    yield said(["predict"], "palm predict needs CONFIG, or --model, --input and --output; missing: --model")
    yield said(["predict", "--model", "x"], "missing: --input, --output")
    yield said(["predict", "--model", "x", "--input", "y"], "missing: --output")
    yield said(
        ["predict", "--model", "x", "--input", "y", "--output", "z"], "x is not a directory that palm saved"
    )
    yield said(["predict", "--modle", "x"], "palm predict needs CONFIG", "unknown: --modle=x")
    yield said(["evaluate", *run], "no target has a dev_file; name the data")
    yield said(["evaluate", *run, "--task", "cls"], "task 'cls' needs a dev_file; it has none")
    yield said(["evaluate", *run, "--task", "clss"], "no task is called 'clss'; known: cls")
    yield said(["evaluate"], "palm evaluate needs CONFIG, or --model and --input; missing: --model, --input")
    yield said(["evaluate", "--model", "x"], "missing: --input")
    yield said(["evaluate", "--model", "x", "--input", "y"], "x is not a directory that palm saved")
    yield said(["evaluate", "--metrics", "mcc"], "palm evaluate needs CONFIG", "unknown: --metrics=mcc")
    yield said(["export", "x", "--output", "y"], "usage: palm export", "required: --to")
    yield said(["export", "x", "--output", "y", "--to", "tf"], "invalid choice: 'tf'")
    yield said(["export", "x", "--output", "y", "--to", "hf", "--all_heads"], "--all_heads", "--to onnx")
    yield said(["export", "x", "--output", "y", "--to", "hf"], "x")
    yield said(["convert", "nowhere", "--output", "converted"], "no weights at nowhere: it does not exist")
    yield said(["inspect", "nowhere"], "nowhere")
    yield said(["inspect", "nowhere", "--jsn"], "palm inspect", "--jsn")
    yield said(["download", "--lst"], "palm download", "--lst")
    yield said(["download", "nothing-of-this-name"], "nothing-of-this-name")


def tried() -> Iterator[Mistake]:
    """The lines of `mistakes.jsonl`: settings, options, small tables and calls, one mistake a line."""

    def run(folder: Path, kind: str, what: Any) -> int | None:
        if kind == "shell":
            for task in ("cls", "match", "mrc", "span"):
                if any(f"trained_{task}" in word for word in what):
                    model(folder, task)
            controller(folder, {})
            return main(what)
        if kind == "python":
            eval(
                what,
                {**vars(palm), "palm": palm, "folder": folder, "tiny": tiny, "model": partial(model, folder)},
            )
        elif kind == "data":
            task, name, text, own = what
            for file, content in (text if isinstance(text, dict) else {name: text}).items():
                (folder / file).write_bytes(content.encode("utf-8", "surrogateescape"))
            small = {"use_data_cache": False, "batch_size": 1, "max_steps": 1}
            controller(folder, small, task, train_file=name, **own).train()
        elif kind == "config":
            controller(folder, {"max_steps": 1, **what}).train()
        else:
            controller(folder, {"max_steps": 1}, kind.removeprefix("task:"), **what).train()
        return None

    for line in Path(__file__).with_name("mistakes.jsonl").read_text(encoding="utf-8").splitlines():
        kind, what, told = json.loads(line)
        act = lambda folder, k=kind, w=what: run(folder, k, w)  # noqa: E731
        yield Mistake(f"tried, {kind}", json.dumps(what)[:80], act, tuple(told))


def model(folder: Path, task: str = "cls") -> Any:
    """A model of one task, trained where no mistake before has needed it."""
    place = folder / f"trained_{task}"
    if not place.exists():
        controller(folder, {"save_path": place.name, "max_steps": 2, "save_every_n_steps": 1}, task).train()
    return palm.load_model(place / task)


def called(title: str, act: Callable[[Path], Any], *told: str) -> Mistake:
    return Mistake("a call from Python", title, act, told)


def controllers() -> Iterator[Mistake]:
    for value in (None, 7, ["config.yaml"], True):
        told = ("config should be", f"not {value!r}")
        yield called(f"Controller({value!r})", lambda _, v=value: Controller(v, argv=[]), *told)
    yield called("Controller('')", lambda _: Controller("", argv=[]), "cannot be read")
    yield called("a folder", lambda f: Controller(f, argv=[]), "cannot be read")
    yield called("{}", lambda _: Controller({}, argv=[]), "config: task_instance is missing (the names of")
    yield called(
        "task_dir=None", lambda f: Controller(tiny.config(f), None, argv=[]), "task_dir should be a folder"
    )
    for argv in ("--batch_size 8", 8, ["--batch_size", 8]):
        yield called(f"argv={argv!r}", lambda f, a=argv: Controller(tiny.config(f), argv=a), "argv should")
    for name in ("tsk_dir", "config_file", "for_training", "batch_size"):
        told = (f"unexpected keyword argument '{name}'",)
        yield called(f"Controller({name}=)", lambda f, n=name: Controller(tiny.config(f), **{n: 1}), *told)
    yield called(
        "Controller()", lambda _: Controller(), "missing a required argument: 'config'", "it takes config"
    )  # type: ignore[call-arg]
    for tasks in (7, "cls", [None], [palm.reader]):
        yield called(
            f"tasks={tasks!r}", lambda f, t=tasks: Controller(tiny.config(f), argv=[], tasks=t), "palm.Task"
        )


def calls_of_controllers() -> Iterator[Mistake]:
    def predicting(f: Path) -> Controller:
        return Controller(tiny.config(f, "cls"), for_train=False, argv=[])

    yield called(
        "train() to predict", lambda f: predicting(f).train(), "for_train=False", "for_train=True to train"
    )
    yield called(
        "pred() of no task", lambda f: predicting(f).pred("clss"), "no task is called 'clss'; known: cls"
    )
    yield called("pred() untrained", lambda f: predicting(f).pred("cls"), "is not trained yet; train first")
    yield called(
        "evaluate() without data", lambda f: predicting(f).evaluate("cls"), "needs a dev_file; it has none"
    )
    yield called(
        "load_pretrain()", lambda f: controller(f, {}).load_pretrain(), "load_pretrain needs a directory"
    )
    for path in ("nowhere", "a/b/c", "owner/name"):
        yield called(
            f"load_model({path!r})",
            lambda _, p=path: palm.load_model(p),
            "is not a directory that palm saved",
        )
    yield called("load_model(run)", lambda f: palm.load_model(f), "it has no manifest.json; give the folder")
    yield called("load_backbone('nowhere')", lambda _: palm.load_backbone("nowhere"), "no weights at nowhere")


def foreign_names() -> Iterator[Mistake]:
    """Settings as other programs call them."""
    for name, ours in FOREIGN.items():
        if name == "tasks":  # which `controller` takes for itself
            continue
        own = ours.split()[0].rstrip(",:")
        yield in_config("a setting's name elsewhere", {name: 1}, f"'{name}'", own)


def wrong_types() -> Iterator[Mistake]:
    """Values of other types than a call takes."""
    trainer = palm.Trainer
    bert = palm.backbone.BERT
    reader = palm.reader.ClassifyReader
    for name in (None, 3, "", " ", "../../zz", "a/b", ".hidden", "best", "step_4"):
        yield called(f"Trainer({name!r})", lambda _, n=name: trainer(n), repr(name))
    for ratio in ("1.0", None, [1]):
        act = lambda _, r=ratio: trainer("c", mix_ratio=r)  # noqa: E731
        yield called(f"mix_ratio={ratio!r}", act, "mix_ratio", repr(ratio))
    for trainers in (["a", "b"], "ab", None, [None], 3):
        told = "trainers should be"
        yield called(f"MultiHeadTrainer({trainers!r})", lambda _, t=trainers: palm.MultiHeadTrainer(t), told)
    for vocab in (None, 3, [], {}):
        yield called(
            f"ClassifyReader({vocab!r}, 16)", lambda _, v=vocab: reader(v, 16), "vocab_path", repr(vocab)
        )
    for length in ("16", None, 2.5, True, [16]):
        act = lambda f, n=length: reader(f / "vocab.txt", n)  # noqa: E731
        yield called(f"ClassifyReader(…, {length!r})", act, "max_seq_len", repr(length))
    for path in (None, 3, [], True):
        yield called(
            f"load_data({path!r})", lambda f, p=path: _reader(f).load_data(p, 4), "input_file", repr(path)
        )
        yield called(f"load_model({path!r})", lambda _, p=path: palm.load_model(p), "folder", repr(path))
    for config in ("bert.json", None, 3, [1]):
        told = ("config", repr(config))
        yield called(f"BERT.from_config({config!r})", lambda _, c=config: bert.from_config(c), *told)
    for config in (None, 3, [1], True):
        yield called(f"check({config!r})", lambda _, c=config: check(c), "config", repr(config))
    for pair in ((None, None), ("bert", "cls"), (Classify(2, 8), Classify(2, 8)), (3, {})):
        act = lambda _, p=pair: trainer("t").build_forward(*p)  # noqa: E731
        yield called(f"build_forward({type(pair[0]).__name__})", act, "backbone should be")


def wrong_watching() -> Iterator[Mistake]:
    """Arguments of the calls that train, of other types."""
    trainer = palm.Trainer
    for name, value in (
        *(("print_steps", each) for each in ("5", None, 2.5, [5])),
        *(("progress", each) for each in ("foo", None, 3)),
        *(("callbacks", each) for each in (print, None, [3], "print")),
    ):
        act = lambda _, n=name, v=value: trainer("t").train(**{n: v})  # noqa: E731
        yield called(f"train({name}={value!r})", act, name, repr(value))
    for batch in (None, {}, [], "x", 3):
        yield called(f"train_one_step({batch!r})", lambda _, b=batch: trainer("t").train_one_step(b), "batch")


def no_paths() -> Iterator[Mistake]:
    """Arguments that should be paths, lists or mappings."""
    for name, act in (
        ("evaluate", lambda f: model(f).evaluate(None)),
        ("metrics", lambda f: model(f).evaluate(f / "cls.tsv", 7)),
        ("directory", lambda f: model(f).predict_file(f / "cls.tsv", None)),
        ("load_backbone", lambda _: palm.load_backbone(None)),
        ("source", lambda _: palm.convert(None, "x")),
        ("inspect_directory", lambda _: palm.inspect_directory(7)),
        ("run", lambda _: palm.write_report(7)),
        ("plot", lambda _: palm.plot(7)),
        ("config", lambda _: palm.compare(None)),
        ("space", lambda _: palm.sweep("config.yaml", ["learning_rate"])),
        ("callbacks", lambda f: controller(f, {}).train(print)),
        ("callbacks ", lambda f: controller(f, {}).train(["x"])),
        ("scope", lambda _: palm.downloader.download("pretrain", None)),
        ("backbone", lambda f: _reader(f).register_with(None)),
        ("warmup_steps", lambda _: palm.lr_sched.TriangularSchedualer("a", 10)),
    ):
        yield called(f"another {name}", act, " should be ")


def parts() -> Iterator[Mistake]:
    adam, head = palm.optimizer.Adam, palm.head
    for rate in ("1e-3", None, True, -1, 0):
        yield called(f"Adam(None, {rate!r})", lambda _, r=rate: adam(None, r), f"learning_rate: {rate!r}")
    for name in ("weight_decay", "epsilon", "beta1"):
        act = lambda _, n=name: palm.optimizer.AdamW(1e-3, **{n: "x"})  # noqa: E731
        yield called(f"AdamW({name}='x')", act, f"{name}: 'x'")
    for given in (0, 1, -2, "2", None, 2.5):
        yield called(
            f"Classify({given!r}, 8)",
            lambda _, g=given: head.Classify(g, 8),
            f"n_classes: {given!r} should be",
        )
    for given in (0, -1, "8", None):
        yield called(
            f"Classify(2, {given!r})", lambda _, g=given: head.Classify(2, g), f"hidden_size: {given!r}"
        )
    for given in (1, -0.1, "x", None):
        act = lambda _, g=given: head.Classify(2, 8, g)  # noqa: E731
        yield called(f"Classify(2, 8, {given!r})", act, f"dropout_prob: {given!r} should be a probability")
    yield called("Match(margin=0)", lambda _: head.Match(margin=0), "margin: 0 should be a number above 0")


def readers() -> Iterator[Mistake]:
    reader = palm.reader
    for phase in ("test", "", 7):
        act = lambda f, p=phase: reader.ClassifyReader(f / "vocab.txt", 8, phase=p)  # noqa: E731
        yield called(f"phase={phase!r}", act, f"phase should be 'train' or 'predict', not {phase!r}")
    for lang in ("german", "zh", 7):
        act = lambda f, v=lang: reader.ClassifyReader(f / "vocab.txt", 8, lang=v)  # noqa: E731
        yield called(f"lang={lang!r}", act, "lang should be one of en, english, cn, chinese", repr(lang))
    yield called(
        "no vocabulary", lambda _: reader.ClassifyReader("no.txt", 8), "no.txt: cannot read the vocabulary"
    )
    yield called(
        "load_data of no file", lambda f: _reader(f).load_data("no.tsv", 4), "no.tsv: no such data file"
    )
    for name, value in (("batch_size", 0), ("num_epochs", 0), ("max_tokens_per_batch", -1)):
        told = f"load_data: {name}: {value} "
        given_data = {"batch_size": 4, name: value}
        act = lambda f, g=given_data: _reader(f).load_data(f / "cls.tsv", **g)  # noqa: E731
        yield called(f"load_data({name}={value})", act, told)
    yield called(
        "no load_data", lambda f: _reader(f).num_examples, "call load_data(input_file, batch_size) first"
    )
    for texts in ([7], [None], [{"text": "red"}], [("a", "b", "c")]):
        act = lambda f, t=texts: list(_reader(f).parse(t))  # noqa: E731
        yield called(f"predict({texts!r})", act, "text 0: expected a string or {'text_a': …}", "not ")
    yield called(
        "predict([''])", lambda f: list(_reader(f).parse([""])), "text 0: text_a is empty; every row needs"
    )


def trainers() -> Iterator[Mistake]:
    trainer = palm.Trainer
    yield called(
        "precision='half'", lambda _: trainer("a", precision="half"), "'half' should be one of auto, fp32"
    )
    yield called(
        "train() first", lambda _: trainer("a").train(), "train was called too early; call build_forward"
    )
    yield called(
        "predict() first",
        lambda _: trainer("a").predict(),
        "predict was called too early; call build_predict",
    )
    for place in (".", "..", "/"):
        yield called(f"save({place!r})", lambda _, p=place: trainer("a").save(p), "save_path", repr(place))
    yield called("save() first", lambda _: trainer("a").save("x"), "too early; call build_forward")
    yield called(
        "save_type", lambda _: trainer("a").set_saver("x", 1, "all"), "save_type should be 'ckpt', 'predict'"
    )
    yield called("no trainers", lambda _: palm.MultiHeadTrainer([]), "MultiHeadTrainer", "not ''")


def _reader(folder: Path) -> Any:
    return palm.reader.ClassifyReader(folder / "vocab.txt", 8)


MISTAKES = [
    mistake
    for source in (
        *(types, misspellings, ranges, owners, components, data, files, shell, tried),
        *(
            controllers,
            calls_of_controllers,
            parts,
            readers,
            trainers,
            foreign_names,
            wrong_types,
            wrong_watching,
            no_paths,
        ),
    )
    for mistake in source()
]
"""All of them."""
