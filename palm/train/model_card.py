"""The model card of a saved model: its task, training data, scores and how to load it.

The format is that of the Hugging Face Hub: metadata in YAML, followed by text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from palm.config import yaml_text
from palm.core.logging import printable
from palm.metrics import METRICS
from palm.paradigm import HEADS, Head, Match, Regression
from palm.reader import Reader, RelationReader
from palm.reader.inspection import label_names as names_of_labels

CARD = "README.md"

HUB_METRICS = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "entity_f1": "f1",
    "entity_precision": "precision",
    "entity_recall": "recall",
    "span_f1": "f1",
    "span_precision": "precision",
    "span_recall": "recall",
    "token_accuracy": "accuracy",
    "word_accuracy": "accuracy",
    "pair_accuracy": "accuracy",
    "mcc": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}
"""Metric -> its name on the Hub, if that is different."""

MAX_LABELS = 50

MOST_SHOWN = 6
"""Maximum number of elements of a list that the example shows."""

MAX_WARNINGS = 10
"""Maximum number of warnings that a card shows."""

OMITTED = ("task_instance", "tasks", "backbone", "train_file", "head_of")
"""Settings of a run that appear elsewhere in a card."""


def text_of(value: str) -> str:
    """Return text of others as one line of Markdown without escapes, HTML or links."""
    line = " ".join(printable(value).split())
    return escape(line, quote=False).replace("[", "\\[").replace("`", "'")


def code_of(value: str) -> str:
    """Return text of others as code within a line of Markdown."""
    return f"`{' '.join(printable(value).replace('`', chr(39)).split())}`"


def block_of(language: str, text: str) -> str:
    """Return a block of code in Markdown; nothing in it ends the block."""
    return f"```{language}\n{printable(text).replace('```', chr(39) * 3)}```"


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
    labels: Sequence[str],
    example: str = Head.example,
    architecture: str | None = None,
    answer: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a model card.

    Args:
        description: the content of the model's `config.json`.
        labels: labels of its outputs (see `label_names`).
        example: example input for `predict` (see `example_input`).
        architecture: the class of `transformers` that loads the model; None if palm loads it.
        answer: the model's record for the first example.
    """
    head = description["paradigm"]["name"]
    training = description.get("training") or {}
    pipeline, what = (HEADS[head].card if head in HEADS else None) or (None, head)
    sections = [
        f"# {text_of(description['task'])}",
        *_summary(description, what, labels, training),
        "## How to load it",
        _loading(description["task"], example, pipeline, architecture, answer),
        *_data_and_scores(training),
        *_limits(description, labels, training),
        *_settings(description["task"], training),
    ]
    front = _front(description, training, pipeline, architecture)
    return f"---\n{front}\n---\n\n" + "\n\n".join(sections) + "\n"


def joint_card(description: Mapping[str, Any]) -> str:
    """Return the text of the card of a model of several tasks; `description` is its `config.json`."""
    from huggingface_hub import ModelCardData

    tasks = description["tasks"]
    encoder = description["backbone"]["name"]
    front = ModelCardData(library_name="palm", tags=["palm", encoder, "multi-task"])
    rows = []
    for task, saved in tasks.items():
        head = saved["paradigm"]["name"]
        _, what = (HEADS[head].card if head in HEADS else None) or (None, head)
        training = saved["training"]
        scores = (training.get("evaluation") or {}).get("scores", {})
        shown = (f"{name} {value:.4f}" for name, value in scores.items() if value is not None)
        rows.append((task, what, f"{training.get('step', 0):,}", next(shown, "")))
    code = (
        "import palm\n\n"
        'model = palm.load_model("model")  # the path of this directory\n'
        f"model.predict([...], tasks=[{json.dumps(next(iter(tasks)), ensure_ascii=False)}])\n"
    )
    sections = [
        f"# {len(tasks)} tasks on one encoder",
        f"Encoder: {text_of(encoder)}. It reads a text once for all tasks that read the same tokens.",
        _table(("task", "kind", "global step", "score on `dev_file`"), rows),
        "## How to load it",
        block_of("python", code),
    ]
    return f"---\n{front.to_yaml(line_break=chr(10))}\n---\n\n" + "\n\n".join(sections) + "\n"


def _front(
    description: Mapping[str, Any],
    training: Mapping[str, Any],
    pipeline: str | None,
    architecture: str | None,
) -> str:
    """Return the metadata as YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    evaluation = training.get("evaluation") or {}
    # Only scores of an evaluation at the step at which the weights were saved are scores of these weights.
    found = evaluation.get("scores", {}) if evaluation.get("step") == training.get("step") else {}
    scores = {name: value for name, value in found.items() if value is not None}
    tags = ["palm", str(description["backbone"]["name"]), str(description["paradigm"]["name"])]
    if len(training.get("tasks", ())) > 1:
        tags.append("multi-task")
    about = {
        "task_type": pipeline or "other",
        "task_name": description["task"],
        "dataset_type": "local",
        "dataset_name": training.get("data", {}).get("dev_file", {}).get("name", ""),
    }
    results = [
        EvalResult(**about, metric_type=HUB_METRICS.get(name, name), metric_name=name, metric_value=value)
        for name, value in scores.items()
    ]
    facts = ModelCardData(
        library_name="palm" if architecture is None else "transformers",
        pipeline_tag=pipeline,
        language="zh" if description["reader"]["settings"].get("for_cn") else None,
        tags=tags,
        metrics=list(dict.fromkeys(each.metric_type for each in results)) or None,
        model_name=description["task"] if results else None,
        eval_results=results or None,
    )
    return facts.to_yaml(line_break="\n")


def _summary(
    description: Mapping[str, Any], what: str, labels: Sequence[str], training: Mapping[str, Any]
) -> Iterator[str]:
    encoder = description["backbone"]
    settings = encoder["settings"]
    sizes = ", ".join(
        f"{settings[name]} {unit}"
        for name, unit in (("num_hidden_layers", "layers"), ("hidden_size", "hidden units"))
        if name in settings
    )
    others = [code_of(task) for task in training.get("tasks", ()) if task != description["task"]]
    if (more := training.get("num_tasks", 0) - len(others) - 1) > 0:
        others.append(f"{more} more")
    together = ""
    if others:
        *first, last = others
        together = f" Trained together with {', '.join(first)}{' and ' if first else ''}{last}."
    among = f" ({len(labels)} labels)" if len(labels) > 1 else ""
    name = text_of(encoder["name"])
    base = (description.get("run") or {}).get("global", {}).get("pretrain_path")
    # A path says where somebody's machine has its files; its last part is the name of the model.
    begun = f", from {code_of(base.rstrip('/').rpartition('/')[2])}" if isinstance(base, str) else ""
    yield f"{text_of(what[:1].upper() + what[1:])}{among}. Encoder: {name} ({sizes}){begun}.{together}"
    if len(labels) > 1:
        yield "## Labels"
        more = f" … and {len(labels) - MAX_LABELS} more" if len(labels) > MAX_LABELS else ""
        yield ", ".join(map(code_of, labels[:MAX_LABELS])) + more


def _loading(
    task: str,
    example: str,
    pipeline: str | None,
    architecture: str | None,
    answer: Mapping[str, Any] | None,
) -> str:
    folder = json.dumps(task, ensure_ascii=False)
    if architecture is not None:
        code = (
            f"from transformers import AutoTokenizer, {architecture}\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({folder})  # the path of this directory\n"
            f"model = {architecture}.from_pretrained({folder})\n"
        )
        call = code_of(f'pipeline("{pipeline}", model={folder})')
        return f"{block_of('python', code)}\n\nOr as a pipeline: {call}."
    code = (
        "import palm\n\n"
        f"model = palm.load_model({folder})  # the path of this directory\n"
        f"model.predict({example})\n"
    )
    if answer is not None:
        code += f"# [{_short(answer)}]\n"
    return block_of("python", code)


def _short(value: Any) -> str:
    """Return a record as one line of Python, with four digits, and of long lists the first elements."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {_short(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        more = ["…"] if len(value) > MOST_SHOWN else []
        return "[" + ", ".join([*map(_short, value[:MOST_SHOWN]), *more]) + "]"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _data_and_scores(training: Mapping[str, Any]) -> Iterator[str]:
    if files := training.get("data"):
        yield "## Data"
        rows = [
            (role, file["name"], f"{file['rows']:,}", f"`{file['sha256']}`") for role, file in files.items()
        ]
        yield _table(("", "file", "rows", "SHA-256"), rows)
    evaluation = training.get("evaluation")
    if not evaluation:
        return
    yield "## Scores"
    is_same = evaluation["step"] == training["step"]
    note = "" if is_same else f"; these weights are of step {training['step']:,}, which was not evaluated"
    yield (
        f"On `dev_file`, at global step {evaluation['step']:,}{note}. Intervals are 95 % intervals over its "
        "rows; the last column is the same score of always the same answer."
    )
    intervals, baseline = (evaluation.get(name, {}) for name in ("intervals", "baseline"))
    yield _table(
        ("metric", "value", "interval", "same answer"),
        [
            (
                f"{name}{'' if _rises(name) else ' (lower is better)'}",
                "NaN" if value is None else f"{value:.4f}",
                " to ".join(f"{end:.4f}" for end in intervals.get(name, ())),
                f"{baseline[name]:.4f}" if name in baseline else "",
            )
            for name, value in evaluation["scores"].items()
        ],
    )
    if labels := evaluation.get("labels"):
        shown = [(name, *(f"{x:.3f}" for x in each[:3]), f"{each[3]:,}") for name, each in labels.items()]
        yield _table(("label", "precision", "recall", "F1", "true"), shown)


def _rises(name: str) -> bool:
    return all(METRICS[each].higher_is_better for each in METRICS if METRICS[each].main == name)


def _limits(
    description: Mapping[str, Any], labels: Sequence[str], training: Mapping[str, Any]
) -> Iterator[str]:
    """Say what the model cannot do, as far as settings and scores tell, and what training warned of."""
    evaluation = training.get("evaluation") or {}
    lines = []
    if (most := description["reader"]["settings"].get("max_seq_len")) and training:
        lines.append(f"It reads at most {most} tokens of a text at a time.")
    if len(labels) > 1:
        lines.append(f"It knows the {len(labels)} labels above, and no others.")
    name, value = next(iter(evaluation.get("scores", {}).items()), ("", None))
    constant = evaluation.get("baseline", {}).get(name)
    sign = 1 if _rises(name) else -1
    if value is not None and constant is not None and sign * value <= sign * constant:
        lines.append("It is no better than always the same answer.")
    if never := [name for name, each in evaluation.get("labels", {}).items() if each[3] and not each[2]]:
        lines.append(f"Never right on the dev rows: {', '.join(map(code_of, never))}.")
    if training.get("best"):
        lines.append("Its weights were chosen by the scores above, so other rows may score lower.")
    if lines := [*lines, *map(text_of, training.get("warnings", ()))]:
        yield "## Limits"
        yield "\n".join(f"- {line}" for line in lines)


def _settings(task: str, training: Mapping[str, Any]) -> Iterator[str]:
    if "merged" in training:
        yield "## Merged"
        yield "The weights are the weighted mean of these models:"
        parents = [(m["model"], f"{m['share']:.4g}", m.get("sha256", "")) for m in training["merged"]]
        yield _table(("model", "share", "SHA-256 of its manifest"), parents)
    if "merged" in training or not training:
        return
    yield "## Training"
    yield (
        f"{training['task_step']:,} of {training['expected_steps']:,} planned steps of this task "
        f"({training['epochs']:g} epochs), saved at global step {training['step']:,}."
    )
    settings: dict[str, Any] = {}
    for name, value in {**training["settings"]["tasks"][task], **training["settings"]}.items():
        is_component = isinstance(value, Mapping) and set(value) == {"name", "settings"}
        settings |= {name: value["name"], **value["settings"]} if is_component else {name: value}
    settings["steps"] = training["tasks"]
    shown = {name: each for name, each in settings.items() if name not in OMITTED and each is not None}
    yield block_of("yaml", yaml_text(shown))
    versions = ", ".join(f"{name} {version}" for name, version in training["versions"].items())
    yield f"Versions: {versions}."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: str) -> str:
    # Checksums are code already.
    return value if value.startswith("`") else text_of(value).replace("|", "\\|")
