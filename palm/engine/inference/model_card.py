"""The card of a saved model: what it does, what it was trained on, how good it is, how to load it.

It has the form of the Hub's cards: facts for programs as YAML, then text for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from palm.config import yaml_text
from palm.config.values import flattened
from palm.paradigm import Head, Match, Regression
from palm.reader import Reader, RelationReader
from palm.reader.inspection import label_names as names_of_labels

CARD = "README.md"

PIPELINES = {
    "cls": ("text-classification", "text classification"),
    "match": ("text-classification", "matching of two texts"),
    "multi_label": ("text-classification", "any number of labels for a text"),
    "multiple_choice": ("multiple-choice", "the right one of some choices"),
    "ordinal": ("text-classification", "one of several ordered labels"),
    "regression": ("text-classification", "a number for a text"),
    "count": ("text-classification", "how often something happens"),
    "ranking": ("text-ranking", "candidates in the order of their relevance"),
    "embedding": ("sentence-similarity", "a vector for a text"),
    "seq_label": ("token-classification", "a label for every word"),
    "span": ("token-classification", "labelled spans of a text, which may nest"),
    "relation": ("token-classification", "relations between spans of a text"),
    "mrc": ("question-answering", "answers to questions about a text"),
    "mlm": ("fill-mask", "hidden words"),
}
"""Head -> the Hub's name of what it does, and people's."""

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
"""Our metrics -> the Hub's, where these have other names."""

MOST_LABELS = 50

ELSEWHERE = ("task_instance", "tasks", "backbone", "train_file", "head_of")
"""What the settings of a run have that a card says in another place."""


def label_names(reader: Reader, head: Head) -> list[str]:
    """Return the label of every output of a classifier, in order; empty if outputs are no labels.

    A label has its name in the `label_map`; without one, its number.
    """
    if isinstance(head, Regression):
        return ["value"]
    if isinstance(head, Match) and head.is_pairwise:
        return ["score"]
    names = names_of_labels(reader)
    return [names.get(number, str(number)) for number in range(head.settings.get("n_classes", 0))]


def example_input(reader: Reader, head: str) -> str:
    """Return what `predict` takes of one example, as Python; `head` is the name of the model's."""
    if isinstance(reader, RelationReader) and reader.spans_given:
        label = reader.span_labels.names[min(reader.span_labels.names)]
        spans = [{"start": word, "end": word + 1, "label": label} for word in (0, 1)]
        return repr([{"text_a": ["a", "text"], "spans": spans}])
    return EXAMPLES.get(head, '["a text"]')


def model_card(
    description: Mapping[str, Any],
    labels: Sequence[str],
    example: str = '["a text"]',
    architecture: str | None = None,
) -> str:
    """The text of a model's card.

    Args:
        description: of the model, as its `config.json` has it.
        labels: what its outputs stand for, as `label_names` tells.
        example: what `predict` takes, as `example_input` tells.
        architecture: the class of `transformers` that loads it; None where palm does.
    """
    head = description["paradigm"]["name"]
    training = description.get("training") or {}
    pipeline, what = PIPELINES.get(head, (None, head))
    sections = [
        f"# {description['task']}",
        *_summary(description, what, labels, training),
        "## How to load it",
        _loading(description["task"], example, pipeline, architecture),
        *_data_and_scores(training),
        *_settings(description["task"], training),
    ]
    front = _front(description, training, pipeline, architecture)
    return f"---\n{front}\n---\n\n" + "\n\n".join(sections) + "\n"


def _front(
    description: Mapping[str, Any],
    training: Mapping[str, Any],
    pipeline: str | None,
    architecture: str | None,
) -> str:
    """Return the facts for programs, as YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    evaluation = training.get("evaluation") or {}
    # Scores of these very weights: those of an evaluation at the step at which they were saved.
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
        for name, unit in (("num_hidden_layers", "layers"), ("hidden_size", "wide"))
        if name in settings
    )
    others = [f"`{task}`" for task in training.get("tasks", ()) if task != description["task"]]
    if (more := training.get("num_tasks", 0) - len(others) - 1) > 0:
        others.append(f"{more} more")
    together = ""
    if others:
        *first, last = others
        together = f" Trained together with {', '.join(first)}{' and ' if first else ''}{last}."
    among = f" ({len(labels)} labels)" if len(labels) > 1 else ""
    yield f"{what[:1].upper()}{what[1:]}{among}. Encoder: {encoder['name']} ({sizes}).{together}"
    if len(labels) > 1:
        yield "## Labels"
        more = f" … and {len(labels) - MOST_LABELS} more" if len(labels) > MOST_LABELS else ""
        names = [" ".join(label.replace("`", "'").split()) for label in labels[:MOST_LABELS]]
        yield ", ".join(f"`{name}`" for name in names) + more


EXAMPLES = {
    "match": '[("a text", "another text")]',
    "mrc": '[("a question", "the text that answers it")]',
    "multiple_choice": '[("a text", ["a choice", "another one"])]',
    "ranking": '[("a query", ["a candidate", "another one"])]',
}


def _loading(task: str, example: str, pipeline: str | None, architecture: str | None) -> str:
    if architecture is not None:
        return (
            "```python\n"
            f"from transformers import AutoTokenizer, {architecture}\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{task}")  # the path of this directory\n'
            f'model = {architecture}.from_pretrained("{task}")\n'
            f'```\n\nOr as a pipeline: `pipeline("{pipeline}", model="{task}")`.'
        )
    return (
        "```python\n"
        "import palm\n\n"
        f'model = palm.load_model("{task}")  # the path of this directory\n'
        f"model.predict({example})\n"
        "```"
    )


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
    of_others = f"; these weights are those of step {training['step']:,}, which was not evaluated."
    whose = ", of these weights." if evaluation["step"] == training["step"] else of_others
    yield f"On `dev_file`, at global step {evaluation['step']:,}{whose}"
    shown = [
        (name, "not a number" if value is None else f"{value:.4f}")
        for name, value in evaluation["scores"].items()
    ]
    yield _table(("metric", "value"), shown)


def _settings(task: str, training: Mapping[str, Any]) -> Iterator[str]:
    if "merged" in training:
        yield "## Merged"
        yield "The mean of the weights of other models, with these shares."
        parents = [(m["model"], f"{m['share']:.4g}", m.get("sha256", "")) for m in training["merged"]]
        yield _table(("model", "share", "SHA-256 of its manifest"), parents)
    if "merged" in training or not training:
        return
    yield "## Training"
    yield (
        f"{training['task_step']:,} of {training['expected_steps']:,} planned steps of this task "
        f"({training['epochs']:g} epochs), saved at global step {training['step']:,}."
    )
    settings = flattened({**training["settings"]["tasks"][task], **training["settings"]})
    settings["steps"] = training["tasks"]
    shown = {name: each for name, each in settings.items() if name not in ELSEWHERE and each is not None}
    yield f"```yaml\n{yaml_text(shown)}```"
    versions = ", ".join(f"{name} {version}" for name, version in training["versions"].items())
    yield f"Versions: {versions}."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
