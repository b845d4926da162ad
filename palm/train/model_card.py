"""The model card of a saved model: its task, training data, scores and how to load it.

The format is that of the Hugging Face Hub: metadata in YAML, followed by text, from a template.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from palm.core.records import record_of
from palm.paradigm import HEADS, Head, Match, Regression
from palm.reader import Reader, RelationReader
from palm.reader.inspection import label_names as names_of_labels
from palm.train.callbacks import ScoredRows
from palm.train.templates import code_of, template, text_of
from palm.train.verdict import Verdict

CARD = "README.md"

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
"""The name of a model on the Hub."""

MAX_WARNINGS = 10
"""Maximum number of warnings that a card shows."""


def label_names(reader: Reader, head: Head) -> list[str]:
    """Return the label of every output of a classifier, in order; empty if outputs are not labels.

    Labels are named as in the `label_map`, or by their ids without one.
    """
    if isinstance(head, Regression):
        return ["value"]
    if isinstance(head, Match) and head.is_pairwise:
        return ["score"]
    names = names_of_labels(reader)
    return [names.get(number, str(number)) for number in range(head.settings.get("n_classes", 0))]


def example_input(reader: Reader, head: str) -> str:
    """Return example input for `predict` as Python code; `head` is the name of the model's head."""
    if isinstance(reader, RelationReader) and reader.spans_given:
        label = reader.span_labels.names[min(reader.span_labels.names)]
        spans = [{"start": word, "end": word + 1, "label": label} for word in (0, 1)]
        return repr([{"text_a": ["a", "text"], "spans": spans}])
    return HEADS[head].example if head in HEADS else Head.example


def model_card(
    description: Mapping[str, Any],
    labels: Mapping[str, Sequence[str]] = MappingProxyType({}),
    example: str = Head.example,
    architecture: str | None = None,
) -> str:
    """Return the text of a model card.

    Args:
        description: the content of the model's `config.json`.
        labels: task -> labels of its outputs (see `label_names`).
        example: example input for `predict` of the first task (see `example_input`).
        architecture: the class of `transformers` that loads the model; None if palm loads it.
    """
    encoder = description["backbone"]
    sizes = encoder["settings"]
    units = {"num_hidden_layers": "layers", "hidden_size": "hidden units"}
    base = (description.get("run") or {}).get("global", {}).get("pretrain_path")
    # A path says where somebody's machine has its files; its last part is the name of the model.
    is_public = isinstance(base, str) and HUB_NAME.fullmatch(base) is not None
    base = base if is_public or not isinstance(base, str) else base.rstrip("/").rpartition("/")[2]
    tasks = [_facts_of(task, saved, labels.get(task, ())) for task, saved in description["tasks"].items()]
    is_single = len(tasks) == 1
    return template("palm.train", "card.md").render(
        front=_front(description, architecture, base if is_public else None),
        tasks=tasks,
        encoder=encoder,
        sizes=[f"{sizes[name]} {unit}" for name, unit in units.items() if name in sizes],
        base=base,
        architecture=architecture,
        folder=json.dumps(tasks[0]["task"] if is_single else "model", ensure_ascii=False),
        example=example,
        chosen="" if is_single else f", tasks=[{json.dumps(tasks[0]['task'], ensure_ascii=False)}]",
    )


def _facts_of(task: str, saved: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Return what the card says about a task."""
    training = saved.get("training") or {}
    evaluation = training.get("evaluation") or {}
    rows = record_of(ScoredRows, evaluation)
    pipeline, kind = kind_of(saved["paradigm"]["name"])
    return {
        "task": task,
        "kind": kind,
        "pipeline": pipeline,
        "labels": labels,
        "others": _others(task, training),
        "training": training,
        "data": training.get("data"),
        "evaluation": evaluation,
        "rows": rows,
        "limits": list(_limits(task, saved, labels, training, rows)),
    }


def kind_of(head: str) -> tuple[str | None, str]:
    """Return the pipeline of `transformers` and the kind of task of a head by its registry name."""
    return (HEADS[head].card if head in HEADS else None) or (None, head)


def _others(task: str, training: Mapping[str, Any]) -> list[str]:
    """Return the tasks that were trained together with one."""
    others = [code_of(each) for each in training.get("tasks", ()) if each != task]
    more = training.get("num_tasks", 0) - len(others) - 1
    return [*others, *([f"{more} more"] if more > 0 else [])]


def _front(description: Mapping[str, Any], architecture: str | None, base: str | None) -> str:
    """Return the metadata as YAML."""
    from huggingface_hub import ModelCardData

    tasks = description["tasks"]
    trainings = [saved.get("training") or {} for saved in tasks.values()]
    results = [each for task, saved in tasks.items() for each in _results(task, saved)]
    tags = ["palm", str(description["backbone"]["name"])]
    tags += dict.fromkeys(str(saved["paradigm"]["name"]) for saved in tasks.values())
    if max(len(training.get("tasks", ())) for training in trainings) > 1 or len(tasks) > 1:
        tags.append("multi-task")
    pipelines = [kind_of(saved["paradigm"]["name"])[0] for saved in tasks.values()]
    readers = [saved["reader"]["settings"] for saved in tasks.values()]
    facts = ModelCardData(
        base_model=base,
        library_name="palm" if architecture is None else "transformers",
        pipeline_tag=pipelines[0] if len(tasks) == 1 else None,
        language="zh" if any(settings.get("for_cn") for settings in readers) else None,
        tags=tags,
        metrics=list(dict.fromkeys(each.metric_type for each in results)) or None,
        model_name=", ".join(tasks) if results else None,
        eval_results=results or None,
    )
    return facts.to_yaml(line_break="\n")


def _results(task: str, saved: Mapping[str, Any]) -> list[Any]:
    """Return the scores of a task in the form of the Hub."""
    from huggingface_hub import EvalResult

    training = saved.get("training") or {}
    evaluation = training.get("evaluation") or {}
    # Only scores of an evaluation at the step at which the weights were saved are scores of these weights.
    found = evaluation.get("scores", {}) if evaluation.get("step") == training.get("step") else {}
    about = {
        "task_type": kind_of(saved["paradigm"]["name"])[0] or "other",
        "task_name": task,
        "dataset_type": "local",
        "dataset_name": training.get("data", {}).get("dev_file", {}).get("name", ""),
    }
    return [
        EvalResult(**about, metric_type=name, metric_name=name, metric_value=value)
        for name, value in found.items()
        if value is not None
    ]


def _limits(
    task: str, saved: Mapping[str, Any], labels: Sequence[str], training: Mapping[str, Any], rows: ScoredRows
) -> Iterator[str]:
    """Say what the model cannot do, as far as settings and scores tell, and what training warned of."""
    evaluation = training.get("evaluation") or {}
    if (most := saved["reader"]["settings"].get("max_seq_len")) and training:
        yield f"It reads at most {most} tokens of a text at a time."
    if len(labels) > 1:
        yield f"It knows the {len(labels)} labels above, and no others."
    name, value = next(iter(evaluation.get("scores", {}).items()), ("", None))
    found = Verdict(task, name, math.nan if value is None else value, rows=rows)
    if found.beside == "not better":
        yield f"It is no better than {found.baseline_name}."
    if found.never_right:
        yield f"Never right on the dev rows: {', '.join(map(code_of, found.never_right))}."
    if training.get("best"):
        yield "Its weights were chosen by the scores above, so other rows may score lower."
    yield from map(text_of, training.get("warnings", ()))
