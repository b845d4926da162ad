"""A check as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from palm.check.checking import Check
from palm.check.data import FileCheck
from palm.check.planning import Cost, RunPlan
from palm.core.logging import aligned
from palm.core.process import duration
from palm.reader.inspection import MOST_LETTERS
from palm.reader.tables.columns import cut

MOST_LABELS = 6
"""Maximum number of labels in a line."""


def text_of_check(check: Check) -> str:
    """Return the whole check as text; problems and verdict are the last lines."""
    files = [(task.task, file) for task in check.data for file in task.files]
    sections = {
        "Data": [
            *_data(check),
            *_chosen(files),
            *(line for task, file in files for line in _about(task, file)),
        ],
        "First rows, as the model sees them": [
            f"{task.task}: {cut(file.first_row, MOST_LETTERS)}"
            for task in check.data
            for file in task.files[:1]
            if file.first_row
        ],
        "Wiring": check.wiring,
        "Plan": [] if check.plan is None else _plan(check.plan),
        "Cost, measured on a few real steps": [] if check.cost is None else _cost(check.cost),
    }
    lines: list[str] = []
    for title, found in sections.items():
        if found:
            lines += [title, *(f"  {line}" for line in found), ""]
    problems = [*map(str, check.problems), ""] if check.problems else []
    return "\n".join([*lines, *problems, verdict(check)])


def verdict(check: Check) -> str:
    """Return one line with the number of problems and the duration of the check."""
    counted = [f"{count} {name}{'s' if count != 1 else ''}" for name, count in check.counts.items()]
    return f"{check.name}: {', '.join(counted) or 'no problems'} ({check.seconds:.1f} s)"


def _data(check: Check) -> list[str]:
    title = "tokens median / 95 % / most"
    table = [("task", "file", "examples", "rows", title, "cut", "[UNK]", "repeated", "in train")]
    for task in check.data:
        for file in task.files:
            found = file.counts.summary()
            lengths = [str(int(found["tokens"][n])) for n in ("median", "95 %", "most") if found["tokens"]]
            most_cut = max((count for count, _, _ in file.facts.cut.values()), default=0)
            table.append(
                (
                    task.task,
                    file.role,
                    f"{found['examples']:,}",
                    f"{found['rows']:,}",
                    "/".join(lengths),
                    f"{100 * most_cut / max(1, found['examples']):.1f} %",
                    f"{100 * file.facts.unknown / max(1, file.facts.tokens):.1f} %",
                    str(file.repeated),
                    str(task.leaks.get(file.role, "")),
                )
            )
    return aligned(table) if table[1:] else []


def _chosen(files: Sequence[tuple[str, FileCheck]]) -> Iterator[str]:
    """Name the tasks whose rows were chosen from a table, and by which settings."""
    found: dict[str, list[str]] = {}
    for task, file in files:
        if file.chosen_by:
            how = f"chosen from {file.table} by {', '.join(file.chosen_by)}"
            found.setdefault(how, []).append(task)
    for how, tasks in found.items():
        yield f"{', '.join(dict.fromkeys(tasks))}: {how}"


def _about(task: str, file: FileCheck) -> Iterator[str]:
    """Describe the labels of a file."""
    place = f"{task} {file.role}: "
    found = file.counts.summary()
    if file.counts.values:
        least, total, largest = file.counts.values
        mean = total / file.counts.examples
        yield f"{place}labels from {least:g} to {largest:g}, {mean:.4g} on average"
    elif found["labels"]:
        kind = f"tags in {file.scheme}: " if file.scheme else ""
        more = len(file.counts.labels) - MOST_LABELS
        labels = [f"{name} {count:,}" for name, count in found["labels"][:MOST_LABELS]]
        yield place + kind + ", ".join([*labels, *([f"{more} more labels"] if more > 0 else [])])


def _plan(plan: RunPlan) -> list[str]:
    rates = [rate for _, rate in plan.rates]
    main = next(each for each in plan.tasks if each.task == plan.main)
    epochs = round(main.planned / main.steps_per_epoch, 2)
    return [
        *aligned(
            [
                (
                    *("task", "", "steps per epoch", "planned", "drawn", "epochs"),
                    *("rows per step", "tokens per step", "padding"),
                ),
                *(
                    (
                        each.task,
                        "target" if each.is_target else "auxiliary",
                        str(each.steps_per_epoch),
                        str(each.planned),
                        str(each.drawn),
                        f"{each.epochs:g}",
                        f"{each.rows_per_step:g}",
                        f"{each.tokens_per_step:.0f}",
                        f"{100 * each.padding:.0f} %",
                    )
                    for each in plan.tasks
                ),
            ]
        ),
        f"{plan.steps} steps, {epochs:g} epochs of {plan.main}",
        f"learning rate from {rates[0]:.3g} via {max(rates):.3g} to {rates[-1]:.3g}",
        f"padding is {'not computed: the encoder packs' if plan.packs else 'computed by the encoder'}",
    ]


def _cost(cost: Cost) -> list[str]:
    slowest = max(cost.fullest, key=cost.fullest.__getitem__)
    parts = [f"about {duration(cost.training)} of steps ({duration(cost.step)} each)"]
    parts.append(f"the fullest step takes {duration(cost.fullest[slowest])} ({slowest})")
    if cost.memory_bytes is not None:
        parts.append(f"at most {cost.memory_bytes / 2**30:.2f} GiB of memory")
    starts = [
        f"{task} begins with a loss of {loss:.3g}"
        + f", and a gradient of {norm:.3g} on the encoder" * (norm > 0)
        for task, (loss, norm) in cost.starts.items()
    ]
    return [", ".join(parts), *starts]
