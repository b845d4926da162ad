"""A check as text for a terminal: data, plan, cost and files, then the problems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tqdm import tqdm

from palm.check.files import FileCheck
from palm.check.measuring import Cost
from palm.check.planning import RunPlan
from palm.check.result import Check
from palm.check.saving import Saving
from palm.core.durations import duration
from palm.core.shown import aligned
from palm.reader.inspection import MOST_LETTERS
from palm.reader.tables.record import cut

SPARKS = "▁▂▃▄▅▆▇█"

MOST_LABELS = 6
"""Maximum number of labels in a line; the JSON and the page have all."""


def text_of_check(check: Check) -> str:
    """Return the whole check as text; problems and verdict are the last lines."""
    files = ((task.task, file) for task in check.data for file in task.files[:1] if file.first_rows)
    first_rows = (f"{task}: {cut(file.first_rows[0], MOST_LETTERS)}" for task, file in files)
    sections: dict[str, Iterable[str]] = {
        "Data": _data(check),
        "First rows, as the model sees them": first_rows,
        "Wiring": _wiring(check),
        "Plan": () if check.plan is None else _plan(check.plan),
        "Cost, measured on a few real steps": () if check.cost is None else _cost(check.cost),
    }
    if (saving := check.saving) is not None:
        sections[f"Written to {saving.save_path}"] = _saving(saving)
    lines: list[str] = []
    for title, section in sections.items():
        if found := list(section):
            lines += [title, *(f"  {line}" for line in found), ""]
    problems = [*map(str, check.problems), ""] if check.problems else []
    return "\n".join([*lines, *problems, verdict(check)])


def verdict(check: Check) -> str:
    """Return one line with the number of problems and the duration of the check."""
    counted = [f"{count} {name}{'s' if count != 1 else ''}" for name, count in check.counts.items() if count]
    return f"{check.name}: {', '.join(counted) or 'no problems'} ({check.seconds:.1f} s)"


def _data(check: Check) -> Iterator[str]:
    title = "tokens median/95 %/most"
    rows = [("task", "file", "examples", "rows", title, "cut", "[UNK]", "repeated", "in train")]
    leaks = {(task.task, leak.role): str(leak.normalised) for task in check.data for leak in task.leaks}
    rows += [
        (
            task.task,
            file.role,
            f"{file.examples:,}",
            f"{file.rows:,}",
            "/".join(str(int(file.tokens[name])) for name in ("median", "95 %", "most") if file.tokens),
            f"{100 * max(file.truncated.values(), default=0) / max(1, file.examples):.1f} %",
            f"{100 * file.unknown_share:.1f} %",
            str(file.repeated),
            leaks.get((task.task, file.role), ""),
        )
        for task in check.data
        for file in task.files
    ]
    if len(rows) == 1:
        return
    yield from aligned(rows)
    for task in check.data:
        for number, file in enumerate(task.files):
            for line in _about(file, with_histogram=number == 0):
                yield f"{task.task} {file.role}: {line}"


def _about(file: FileCheck, with_histogram: bool) -> Iterator[str]:
    """Describe the choice of a file's rows, its labels, and its lengths."""
    if file.chosen_by:
        yield f"chosen from {file.path} by {', '.join(file.chosen_by)}"
    if labels := labels_of(file):
        yield labels
    if with_histogram and file.histogram:
        bars = sparks([count for _, count in file.histogram])
        yield f"{bars} {file.histogram[0][0]} to {file.histogram[-1][0]} tokens"


def labels_of(file: FileCheck) -> str:
    """Return the most frequent labels with their counts, or the range of numeric labels."""
    if file.label_range:
        least, mean, largest = file.label_range
        return f"labels from {least:g} to {largest:g}, {mean:.4g} on average"
    counted = ", ".join(f"{name} {count:,}" for name, count in file.labels[:MOST_LABELS])
    more = file.num_labels - MOST_LABELS
    return f"{counted}, {more} more labels" if more > 0 else counted


def _wiring(check: Check) -> Iterator[str]:
    if check.computing is not None:
        each = check.computing
        several = f", {each.devices} devices" if each.devices > 1 else ""
        yield f"device     {each.device}{several} ({each.why})"
        yield f"precision  {each.precision} ({each.why_precision})"
        frozen = f", {each.trained:,} of them trained" if each.trained < each.parameters else ""
        yield f"model      {each.parameters:,} parameters{frozen}"
    for wire in check.wiring:
        reads = ", ".join(f"{name} {form}" for name, form in wire.reads.items())
        shares = f"; head shared with {', '.join(wire.shares_head_with)}" if wire.shares_head_with else ""
        parts = f"reader {wire.reader} -> {wire.backbone} -> {wire.paradigm}"
        yield f"{wire.task}: {parts} reads {reads}{shares}"


def _plan(plan: RunPlan) -> Iterator[str]:
    rows = [("task", "", "steps/epoch", "planned", "drawn", "epochs", "rows/step", "tokens/step", "padding")]
    rows += [
        (
            each.task,
            "target" if each.is_target else "auxiliary",
            str(each.steps_per_epoch),
            str(each.planned),
            f"~{each.planned}" if each.drawn is None else str(each.drawn),
            f"{each.epochs:g}",
            f"{each.batches.rows * each.gradient_accumulation_steps:g}",
            f"{each.batches.tokens * each.gradient_accumulation_steps:.0f}",
            f"{100 * each.batches.padding:.0f} %",
        )
        for each in plan.tasks
    ]
    yield from aligned(rows)
    about = "" if plan.total_drawn is not None else "about "
    yield f"{about}{plan.steps} steps, {plan.num_epochs:g} epochs of {plan.main}"
    rates = [rate for _, rate in plan.rates]
    yield f"learning rate {sparks(rates)} from {rates[0]:.3g} via {max(rates):.3g} to {rates[-1]:.3g}"
    yield f"padding is {'not computed: the encoder packs' if plan.packs else 'computed by the encoder'}"


def _cost(cost: Cost) -> Iterator[str]:
    rows = [("task", "usual step", "fullest step", "tokens/s", "evaluation")]
    rows += [
        (
            pace.task,
            f"{1000 * pace.usual:.0f} ms",
            f"{1000 * pace.fullest:.0f} ms",
            f"{pace.tokens_per_second:,.0f}",
            duration(pace.evaluation) if pace.evaluation else "",
        )
        for pace in cost.tasks
    ]
    yield from aligned(rows)
    evaluating = (
        f", {duration(cost.evaluating)} of evaluations ({cost.evaluations})" if cost.evaluating else ""
    )
    memory = "" if cost.memory_bytes is None else f", at most {cost.memory_bytes / 2**30:.2f} GiB of memory"
    saving = f", {duration(cost.saving)} of saving" if cost.saving else ""
    yield f"about {duration(cost.seconds)}: {duration(cost.training)} of steps{evaluating}{saving}{memory}"


def _saving(saving: Saving) -> Iterator[str]:
    rows: list[Sequence[str]] = [
        (
            place.path,
            size(place.bytes) if place.bytes else "",
            place.when,
            "exists" if place.exists else "",
        )
        for place in saving.places
    ]
    yield from aligned(rows)
    yield f"about {size(saving.bytes)} of {size(saving.free_bytes)} free"


def sparks(values: Sequence[float]) -> str:
    """Draw numbers as a line of small bars."""
    top = max(values) or 1
    return "".join(SPARKS[min(len(SPARKS) - 1, int(value / top * len(SPARKS)))] for value in values)


def size(count: int) -> str:
    """Format a number of bytes for people."""
    return re.sub(r"(?<=\d)(?=[kMGT]|$)", " ", tqdm.format_sizeof(count)) + "B"
