"""A check as sections of lines and tables, which text and page show alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from palm.check.files import FileCheck
from palm.check.measuring import Cost
from palm.check.planning import RunPlan
from palm.check.result import Check, Section
from palm.core.logging import aligned
from palm.core.process import duration
from palm.reader.inspection import MOST_LETTERS
from palm.reader.tables.columns import cut

SPARKS = "▁▂▃▄▅▆▇█"

MOST_LABELS = 6
"""Maximum number of labels in a line."""

Table = Sequence[Sequence[str]]


def sections(check: Check) -> Iterator[Section]:
    """Yield everything that a check found but its problems."""
    files = [(task.task, file) for task in check.data for file in task.files]
    if files:
        yield Section("Data", _data(check), list(chain.from_iterable(map(_about, *zip(*files, strict=True)))))
        firsts = [(task.task, file) for task in check.data for file in task.files[:1] if file.first_rows]
        rows = [f"{task}: {cut(file.first_rows[0], MOST_LETTERS)}" for task, file in firsts]
        yield Section("First rows, as the model sees them", lines=rows)
    if check.wiring is not None:
        yield check.wiring
    if check.plan is not None:
        yield Section("Plan", *_plan(check.plan))
    if check.cost is not None:
        yield Section("Cost, measured on a few real steps", lines=[_cost(check.cost)])


def text_of_check(check: Check) -> str:
    """Return the whole check as text; problems and verdict are the last lines."""
    lines: list[str] = []
    for section in sections(check):
        found = [*(aligned(section.table) if section.table else ()), *section.lines]
        lines += [section.title, *(f"  {line}" for line in found), ""]
    problems = [*map(str, check.problems), ""] if check.problems else []
    return "\n".join([*lines, *problems, verdict(check)])


def verdict(check: Check) -> str:
    """Return one line with the number of problems and the duration of the check."""
    counted = [f"{count} {name}{'s' if count != 1 else ''}" for name, count in check.counts.items()]
    return f"{check.name}: {', '.join(counted) or 'no problems'} ({check.seconds:.1f} s)"


def _data(check: Check) -> Table:
    title = "tokens median/95 %/most"
    leaks = {(task.task, leak.role): str(leak.normalised) for task in check.data for leak in task.leaks}
    return [
        ("task", "file", "examples", "rows", title, "cut", "[UNK]", "repeated", "in train"),
        *(
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
        ),
    ]


def _about(task: str, file: FileCheck) -> Iterator[str]:
    """Describe the choice of a file's rows, its labels, and its lengths."""
    place = f"{task} {file.role}: "
    if file.chosen_by:
        yield f"{place}chosen from {file.path} by {', '.join(file.chosen_by)}"
    if file.label_range:
        least, mean, largest = file.label_range
        yield f"{place}labels from {least:g} to {largest:g}, {mean:.4g} on average"
    elif file.labels:
        more = [f"{file.num_labels - MOST_LABELS} more labels"] if file.num_labels > MOST_LABELS else []
        yield place + ", ".join([f"{name} {count:,}" for name, count in file.labels[:MOST_LABELS]] + more)
    if file.histogram and file.role == "train":
        bars = sparks([count for _, count in file.histogram])
        yield f"{place}{bars} {file.histogram[0][0]} to {file.histogram[-1][0]} tokens"


def _plan(plan: RunPlan) -> tuple[Table, Sequence[str]]:
    rates = [rate for _, rate in plan.rates]
    return [
        ("task", "", "steps/epoch", "planned", "drawn", "epochs", "rows/step", "tokens/step", "padding"),
        *(
            (
                each.task,
                "target" if each.is_target else "auxiliary",
                str(each.steps_per_epoch),
                str(each.planned),
                f"~{each.planned}" if each.drawn is None else str(each.drawn),
                f"{each.epochs:g}",
                f"{each.rows_per_step:g}",
                f"{each.tokens_per_step:.0f}",
                f"{100 * each.padding:.0f} %",
            )
            for each in plan.tasks
        ),
    ], [
        f"{'' if plan.is_exact else 'about '}{plan.steps} steps, {plan.num_epochs:g} epochs of {plan.main}",
        f"learning rate {sparks(rates)} from {rates[0]:.3g} via {max(rates):.3g} to {rates[-1]:.3g}",
        f"padding is {'not computed: the encoder packs' if plan.packs else 'computed by the encoder'}",
    ]


def _cost(cost: Cost) -> str:
    slowest = max(cost.fullest, key=cost.fullest.__getitem__)
    parts = [f"{duration(cost.training)} of steps ({duration(cost.step)} each)"]
    if cost.evaluating:
        parts.append(f"{duration(cost.evaluating)} of evaluations (about {cost.evaluations})")
    parts.append(f"the fullest step takes {duration(cost.fullest[slowest])} ({slowest})")
    if cost.memory_bytes is not None:
        parts.append(f"at most {cost.memory_bytes / 2**30:.2f} GiB of memory")
    return f"about {duration(cost.seconds)}: {', '.join(parts)}"


def sparks(values: Sequence[float]) -> str:
    """Draw numbers as a line of small bars."""
    top = max(values) or 1
    return "".join(SPARKS[min(len(SPARKS) - 1, int(value / top * len(SPARKS)))] for value in values)
