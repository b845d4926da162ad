"""Figures of the package's structure, read from its source: `python scripts/structure.py [CHECKOUT]`.

Words of the table. A *unit* is a module or package directly in `palm/`. A *room* is a folder below `palm/`.
An *arrow* is a pair of units of which one imports the other; imports under `TYPE_CHECKING` do not count,
imports inside functions do. The *floors* of units are the nodes of the longest chain of arrows, units of one
cycle taken together. The graph of rooms is the same with folders in place of units; a module that lies
directly in `palm/` stands there for itself. A function is *private* if its name begins with one underscore;
it is *single-use* if exactly one place in the package names it, outside its own body, and no related class
has a method of that name. Code lines are lines that hold more than comment or docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings it there
    import tomli as tomllib

Node = TypeVar("Node", bound=Hashable)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[Node, set[Node]]

ROOT = "palm"
TRACER = Path(__file__).with_name("structure_trace.py")
DIRECTIVE = re.compile(r"#\s*(type:|noqa|isort:|pragma|ruff:|fmt:|mypy:|!)")
PROGRAM = (
    "import runpy, sys; sys.argv = {words}; runpy.run_module('palm', run_name='__main__', alter_sys=True)"
)
COMMANDS = {"import palm": "import palm"}
COMMANDS |= {
    " ".join(words): PROGRAM.format(words=words)
    for words in (["palm", "--help"], ["palm", "inspect", "--help"])
}
TIMES = 5


@dataclass
class Module:
    """One source file.

    Args:
        name: dotted; of an `__init__.py` that of its package.
        path: the file.
        is_package: whether it is an `__init__.py`.
        text: its source.
    """

    name: str
    path: Path
    is_package: bool
    text: str
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def package(self) -> str:
        """The package that relative imports count from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def functions(self) -> list[Function]:
        """All functions, methods and nested functions."""
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]


def read(checkout: Path) -> dict[str, Module]:
    """All modules of the package by dotted name."""
    found = {}
    for path in sorted((checkout / ROOT).rglob("*.py")):
        parts = path.relative_to(checkout).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path, is_package, path.read_text(encoding="utf-8"))
    return found


# Imports


@dataclass(frozen=True)
class Import:
    """One module of the package naming another.

    Args:
        source: the module that imports.
        target: the module that it names.
        inside: whether that is in a function.
        name: what it takes from there; None for the module itself.
        alias: what that is called here.
    """

    source: str
    target: str
    inside: bool
    name: str | None
    alias: str


def imports_of(module: Module, modules: Mapping[str, Module]) -> list[Import]:
    """What a module imports of the package when it runs."""
    found: list[Import] = []
    _visit(module.tree, False, module, modules, found)
    return found


def _visit(
    node: ast.AST, inside: bool, module: Module, modules: Mapping[str, Module], found: list[Import]
) -> None:
    for child in _running(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                if alias.name.split(".")[0] == ROOT:
                    found.append(Import(module.name, alias.name, inside, None, alias.asname or alias.name))
        elif isinstance(child, ast.ImportFrom):
            found += _from_imports(child, inside, module, modules)
        else:
            _visit(child, inside or isinstance(child, (*_FUNCTIONS, ast.Lambda)), module, modules, found)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _running(node: ast.AST) -> Iterable[ast.AST]:
    """The children of a node, without the body of `if TYPE_CHECKING:`."""
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        return node.orelse
    return ast.iter_child_nodes(node)


def _from_imports(
    node: ast.ImportFrom, inside: bool, module: Module, modules: Mapping[str, Module]
) -> Iterator[Import]:
    base = node.module or ""
    if node.level:
        parents = module.package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
    if base.split(".")[0] != ROOT:
        return
    for alias in node.names:
        submodule = f"{base}.{alias.name}"
        is_module = submodule in modules
        target, name = (submodule, None) if is_module else (base, alias.name)
        yield Import(module.name, target, inside, name, alias.asname or alias.name)


def unit_of(name: str) -> str | None:
    """The part of a dotted name directly below the package; None for the package itself."""
    return name.split(".")[1] if "." in name else None


def room_of(module: Module) -> str | None:
    """The folder of a module; a module directly in the package stands for itself, the package for nothing."""
    if module.name == ROOT:
        return None
    folder = module.package
    return module.name if folder == ROOT else folder


def graph(pairs: Iterable[tuple[Node | None, Node | None]], nodes: Iterable[Node]) -> dict[Node, set[Node]]:
    """Node -> what it imports; pairs of one node, or with None, are left out."""
    result: dict[Node, set[Node]] = {node: set() for node in nodes}
    for source, target in pairs:
        if source is not None and target is not None and source != target:
            result[source].add(target)
    return result


def reachable(edges: Graph[Node]) -> dict[Node, set[Node]]:
    """Node -> everything that it leads to."""
    result = {}
    for node in edges:
        seen: set[Node] = set()
        waiting = list(edges[node])
        while waiting:
            if (other := waiting.pop()) not in seen:
                seen.add(other)
                waiting += edges[other]
        result[node] = seen
    return result


def cycles(edges: Graph[Node]) -> list[frozenset[Node]]:
    """Groups of nodes of which each leads to each."""
    leads = reachable(edges)
    return list({frozenset(o for o in leads[n] if n in leads[o]) for n in edges if n in leads[n]})


def floors(edges: Graph[Node]) -> int:
    """How many groups stand in the longest chain, the nodes of a cycle being one."""
    group = {node: frozenset([node]) for node in edges}
    group |= {node: cycle for cycle in cycles(edges) for node in cycle}
    below: dict[frozenset[Node], set[frozenset[Node]]] = {own: set() for own in group.values()}
    for node, targets in edges.items():
        below[group[node]] |= {group[target] for target in targets} - {group[node]}
    heights: dict[frozenset[Node], int] = {}

    def height(own: frozenset[Node]) -> int:
        if own not in heights:
            heights[own] = 1 + max(map(height, below[own]), default=0)
        return heights[own]

    return max(map(height, below), default=0)


def linter_layers(checkout: Path) -> dict[str, int]:
    """Name of each contract of kind `layers` in pyproject.toml -> how many layers it has."""
    file = checkout / "pyproject.toml"
    if not file.is_file():
        return {}
    tool = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("importlinter", {})
    return {c["name"]: len(c["layers"]) for c in tool.get("contracts", []) if c.get("type") == "layers"}


def import_figures(modules: Mapping[str, Module]) -> dict[str, Any]:
    """Units, rooms, arrows, floors and cycles."""
    imports = [i for module in modules.values() for i in imports_of(module, modules)]
    targets = [(i, i.target if i.target in modules else i.target.rpartition(".")[0]) for i in imports]
    units = sorted({unit for name in modules if (unit := unit_of(name))})
    edges = graph(((unit_of(i.source), unit_of(i.target)) for i in imports), units)
    at_start = graph(((unit_of(i.source), unit_of(i.target)) for i in imports if not i.inside), units)
    places = {name: room_of(module) for name, module in modules.items()}
    rooms = graph(
        ((places[i.source], places.get(target)) for i, target in targets),
        {room for room in places.values() if room},
    )
    files = graph(((i.source, target) for i, target in targets if target in modules), modules)
    arrows, arrows_at_start = (sum(map(len, e.values())) for e in (edges, at_start))
    return {
        "top-level units": len(units),
        "rooms (folders)": len({module.package for module in modules.values()} - {ROOT}),
        "floors of units": floors(edges),
        "arrows between units": arrows,
        "arrows only inside functions": arrows - arrows_at_start,
        "cycles of units": [sorted(cycle) for cycle in cycles(edges)],
        "floors of rooms": floors(rooms),
        "arrows between rooms": sum(map(len, rooms.values())),
        "cycles of rooms": [sorted(cycle) for cycle in cycles(rooms)],
        "module-level imports between modules": len(
            {(i.source, target) for i, target in targets if not i.inside and i.source != target}
        ),
        "imports inside functions": len({(i.source, target) for i, target in targets if i.inside}),
        "cycles of modules": [sorted(cycle) for cycle in cycles(files)],
    }


# Private functions


@dataclass(frozen=True)
class Private:
    """A private function: its module, its class or None, its definition."""

    module: Module
    owner: str | None
    node: Function


def private_functions(modules: Mapping[str, Module]) -> list[Private]:
    """Module-level functions and methods whose name begins with one underscore."""
    found = []
    for module in modules.values():
        bodies: list[tuple[str | None, list[ast.stmt]]] = [(None, module.tree.body)]
        bodies += [(cls.name, cls.body) for cls in module.classes]
        found += [
            Private(module, owner, node)
            for owner, body in bodies
            for node in body
            if isinstance(node, _FUNCTIONS) and re.match(r"_(?!_)", node.name)
        ]
    return found


def families(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Name of a class -> the names of the classes it is related to, itself among them."""
    related: dict[str, set[str]] = {}
    for module in modules.values():
        for cls in module.classes:
            bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in cls.bases}
            for base in {*bases, cls.name}:
                related.setdefault(cls.name, set()).add(base)
                related.setdefault(base, set()).add(cls.name)
    own = {cls.name for module in modules.values() for cls in module.classes}
    edges = {name: related[name] & own for name in own}
    return {name: leads | {name} for name, leads in reachable(edges).items()}


def named(tree: ast.AST, matches: Callable[[ast.AST], bool]) -> int:
    """How many nodes of a tree match."""
    return sum(map(matches, ast.walk(tree)))


def uses_of_function(private: Private, modules: Mapping[str, Module], imports: list[Import]) -> int:
    """Places that name a module-level function, outside its own body."""
    name, home = private.node.name, private.module
    uses = named(home.tree, _is_word(name)) - named(private.node, _is_word(name))
    for i in imports:
        if i.target == home.name and i.source != home.name and i.name in (name, None):
            word = i.alias if i.name else f"{i.alias}.{name}"
            uses += named(modules[i.source].tree, _is_word(word))
    return uses


def _is_word(word: str) -> Callable[[ast.AST], bool]:
    """Whether a node reads a name, or an attribute of a name, that is written so."""
    kind = ast.Attribute if "." in word else ast.Name

    def matches(node: ast.AST) -> bool:
        return isinstance(node, kind) and isinstance(node.ctx, ast.Load) and ast.unparse(node) == word

    return matches


def uses_of_method(private: Private, modules: Mapping[str, Module], family: set[str]) -> int:
    """Places that name a method, in modules of its family, outside its own body and unrelated classes."""
    name = private.node.name

    def matches(node: ast.AST) -> bool:
        attribute = isinstance(node, ast.Attribute) and node.attr == name
        return attribute or (isinstance(node, ast.Name) and node.id == name)

    uses = -named(private.node, matches)
    for module in modules.values():
        if not any(cls.name in family for cls in module.classes):
            continue
        strangers = [cls for cls in module.classes if cls.name not in family and name in _methods(cls)]
        uses += named(module.tree, matches) - sum(named(cls, matches) for cls in strangers)
    return uses


def _methods(cls: ast.ClassDef) -> set[str]:
    return {node.name for node in cls.body if isinstance(node, _FUNCTIONS)}


def private_figures(modules: Mapping[str, Module]) -> dict[str, Any]:
    """How many private functions there are, and how many of them are used once."""
    imports = [i for module in modules.values() for i in imports_of(module, modules)]
    related = families(modules)
    owners: dict[str, set[str]] = {}
    for module in modules.values():
        for cls in module.classes:
            for method in _methods(cls):
                owners.setdefault(method, set()).add(cls.name)
    found = private_functions(modules)
    single, unused = [], []
    for private in found:
        place = f"{private.module.name}:{private.node.name}"
        if private.owner is None:
            uses = uses_of_function(private, modules, imports)
        else:
            family = related[private.owner]
            uses = uses_of_method(private, modules, family)
            if len(family & owners[private.node.name]) > 1:  # one of several in a hierarchy: a hook
                continue
        if uses == 1:
            single.append(place)
        elif uses == 0:
            unused.append(place)
    return {
        "private functions": len(found),
        "single-use private functions": len(single),
        "single-use share of private, %": _percent(len(single), len(found)),
        "single-use share of all functions, %": _percent(
            len(single), sum(len(module.functions) for module in modules.values())
        ),
        "private functions nobody names": unused,
    }


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(whole, 1), 1)


# Sizes


def code_lines(module: Module) -> int:
    """Lines that hold something else than a comment or a docstring."""
    quoted: set[int] = set()
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            quoted |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in _tokens(module):
        if token.type not in (*layout, tokenize.ENDMARKER, tokenize.ENCODING):
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - quoted)


def comments(module: Module) -> tuple[int, int]:
    """Comments, a block of lines being one, and directives to tools (`noqa`, `type: ignore`)."""
    found = [token for token in _tokens(module) if token.type == tokenize.COMMENT]
    places = {token.start for token in found if not DIRECTIVE.match(token.string)}
    return sum((row - 1, column) not in places for row, column in places), len(found) - len(places)


def _tokens(module: Module) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(module.text).readline))


def length(node: Function | ast.ClassDef) -> int:
    """Lines from `def` or `class` to the end, with docstring and without decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def size_figures(modules: Mapping[str, Module]) -> dict[str, Any]:
    """Lines, comments, and how long functions, classes and files are."""
    total = sum(module.lines for module in modules.values())
    remarks, directives = map(sum, zip(*map(comments, modules.values()), strict=True))
    functions = [(length(node), m.name, node.name) for m in modules.values() for node in m.functions]
    classes = [(length(node), m.name, node.name) for m in modules.values() for node in m.classes]
    lengths = sorted(lines for lines, _, _ in functions)
    files = Counter({name: module.lines for name, module in modules.items()})
    name, lines = files.most_common(1)[0]
    return {
        "files": len(modules),
        "lines": total,
        "code lines": sum(map(code_lines, modules.values())),
        "comments": remarks,
        "directives to tools": directives,
        "lines per comment": round(total / remarks) if remarks else None,
        "lines per comment or directive": round(total / (remarks + directives)) if remarks else None,
        "functions": len(functions),
        "median function, lines": statistics.median(lengths) if lengths else 0,
        "90th percentile of functions, lines": lengths[(9 * len(lengths) - 1) // 10] if lengths else 0,
        "longest function": _longest(functions),
        "longest class": _longest(classes),
        "longest file": f"{lines} {name}",
        "median file, lines": statistics.median(files.values()),
    }


def _longest(items: list[tuple[int, str, str]]) -> str:
    lines, module, name = max(items, default=(0, "", ""))
    return f"{lines} {module}:{name}"


# Running


def copy_of(checkout: Path, folder: Path) -> Path:
    """The package and what demo 2 needs in another folder, so that running it writes nothing beside it."""
    for name in (ROOT, "configs", "demos", "data"):
        if (checkout / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "output_model", "*_output")
            shutil.copytree(checkout / name, folder / name, ignore=ignored)
    return folder


def python(root: Path, *arguments: str | Path, cwd: Path | None = None) -> str:
    """What a Python with the palm of `root` prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd or root.parent,
        env=_environment(root),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def _environment(root: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}, **own}


def time_figures(root: Path) -> dict[str, Any]:
    """The best of some warm runs of each command, a new Python each, and whether it imports torch.

    The seconds of the processor, over all cores, tell more than the wall's where other programs run beside.
    """
    result: dict[str, Any] = {}
    for name, code in {"python -c pass": "pass", **COMMANDS}.items():
        result[f"{name}, seconds"], result[f"{name}, CPU seconds"] = _best(root, code)
    for name, code in COMMANDS.items():
        asked = f"import sys\ntry:\n exec({code!r})\nfinally:\n print('torch' in sys.modules)"
        result[f"{name}, imports torch"] = python(root, "-c", asked).split()[-1] == "True"
    return result


def _best(root: Path, code: str) -> tuple[float, float]:
    python(root, "-c", code)  # writes the compiled files
    wall, processor = [], []
    for _ in range(TIMES):
        since, before = time.perf_counter(), os.times()
        python(root, "-c", code)
        after = os.times()
        wall.append(time.perf_counter() - since)
        processor.append(sum(after[2:4]) - sum(before[2:4]))  # of the processes that have ended
    return round(min(wall), 3), round(min(processor), 3)


def trace_figures(root: Path, setting: str | None) -> dict[str, Any]:
    """The files of the package that run, or hold a setting, in `palm.Controller(demo 2, argv=[])`."""
    folder = root / "demos" / "demo2"
    printed = python(root, TRACER, root / ROOT, folder / "config.yaml", setting or "", cwd=root)
    found = json.loads(printed.splitlines()[-1])
    result = {"files run by Controller(demo 2)": found["run"]}
    if setting:
        result[f"files that hold {setting} by its name"] = found["named"]
        result[f"files that hold {setting}'s value"] = found["held"]
    return result


def measure(checkout: Path, timed: bool, traced: bool, setting: str | None) -> dict[str, Any]:
    """All figures that were asked for."""
    modules = read(checkout)
    if not modules:
        sys.exit(f"{checkout} holds no {ROOT}/ with Python files")
    result = import_figures(modules)
    result["linter's layers"] = linter_layers(checkout)
    result |= private_figures(modules) | size_figures(modules)
    if timed or traced or setting:
        with tempfile.TemporaryDirectory() as folder:
            root = copy_of(checkout, Path(folder) / "copy")
            result |= time_figures(root) if timed else {}
            result |= trace_figures(root, setting) if traced or setting else {}
    return result


def table(figures: Mapping[str, Any]) -> str:
    """A line each; of lists how many entries, and which."""
    lines = []
    for name, value in figures.items():
        if isinstance(value, list):
            shown = ", ".join("+".join(v) if isinstance(v, list) else str(v) for v in value)
            value = f"{len(value)}{': ' if value else ''}{shown}"
        elif isinstance(value, dict):
            value = ", ".join(f"{entry} ({key})" for key, entry in value.items()) or "none"
        lines.append(f"{name:<42} {value}")
    return "\n".join(lines)


def main() -> None:
    """Print the figures of a checkout."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).resolve().parents[1]
    parser.add_argument("checkout", type=Path, nargs="?", default=default, help="the folder that holds palm/")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--time", action="store_true", help="also time the import and the help of commands")
    parser.add_argument(
        "--trace-yaml", action="store_true", help="also the files that run for demo 2's settings"
    )
    parser.add_argument(
        "--trace-setting",
        metavar="NAME[=VALUE]",
        help=f"also the files that a setting of demo 2 passes: see {TRACER.name}",
    )
    options = parser.parse_args()
    figures = measure(options.checkout, options.time, options.trace_yaml, options.trace_setting)
    print(json.dumps(figures, indent=1) if options.json else table(figures))


if __name__ == "__main__":
    main()
