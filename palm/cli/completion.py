"""`palm completion`: a script that lets a shell complete commands, options, settings and names of components.

The script is text alone. Completion that asked the program itself at every key would start Python each time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from palm.cli.command import Command, Settings

BASH = """\
_palm() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" options="--help" names=""
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    elif [[ "$word" == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    elif [ -n "$names" ]; then
        COMPREPLY=($(compgen -W "$names" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _palm palm
"""

ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


@dataclass(frozen=True)
class Words:
    """What can follow a command.

    Args:
        help: the command's line.
        options: option, without its dashes -> what it means.
        names: what its argument may be; files where there are none.
    """

    help: str
    options: Mapping[str, str]
    names: Iterable[str] = ()


def words_of(commands: Iterable[Command]) -> dict[str, Words]:
    """What can follow each command, settings of a configuration included."""
    from palm.catalogue.entries import entries
    from palm.config import listed
    from palm.controller.plan import HELP, NO_SETTINGS

    components = list(dict.fromkeys(name for entry in entries() for name in (entry.kind, entry.path)))
    named = {"ls": components, "completion": list(SCRIPTS)}
    settings = {each.name: each.doc for group in HELP.values() for each in listed(group, NO_SETTINGS)}
    found = {}
    for command in commands:
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        options = {
            word[2:]: action.help or ""
            for action in parser._actions
            for word in action.option_strings
            if word.startswith("--") and action.help != argparse.SUPPRESS
        }
        more = settings if command.takes_settings else {}
        found[command.name] = Words(command.help, more | options, named.get(command.name, ()))
    return found


def bash(words: Mapping[str, Words]) -> str:
    """For bash: source it, or put it into the folder of completions."""
    cases = "\n".join(
        f'        {name}) options="{" ".join(f"--{option}" for option in sorted(each.options))}"; '
        f'names="{" ".join(each.names)}" ;;'
        for name, each in words.items()
    )
    return BASH.format(cases=cases, commands=" ".join(words))


def zsh(words: Mapping[str, Words]) -> str:
    """For zsh, which runs completions of bash."""
    return ZSH + bash(words)


def fish(words: Mapping[str, Words]) -> str:
    """For fish, with descriptions."""
    lines = []
    for name, each in words.items():
        lines.append(f"complete -c palm -n __fish_use_subcommand -f -a {name} -d {_quoted(each.help)}")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [
            f"complete -c palm {seen} -l {option} -d {_quoted(meaning)}"
            for option, meaning in sorted(each.options.items())
        ]
        if names := " ".join(each.names):
            lines.append(f"complete -c palm {seen} -f -a {_quoted(names)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    short = text if len(text) <= 80 else text[:79] + "…"
    return "'" + short.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: dict[str, Callable[[Mapping[str, Words]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a script that completes commands, options, settings and names of components. For bash: "
        "palm completion bash > ~/.local/share/bash-completion/completions/palm. For zsh: "
        "palm completion zsh > ~/.palm.zsh, and `source ~/.palm.zsh` in ~/.zshrc. For fish: "
        "palm completion fish > ~/.config/fish/completions/palm.fish."
    )
    parser.add_argument("shell", choices=list(SCRIPTS), help="the shell")


def command_of(commands: Mapping[str, Command]) -> Command:
    """The command that completes the words of all commands."""

    def run(options: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001
        sys.stdout.write(SCRIPTS[options.shell](words_of(commands.values())))

    return Command("completion", "print a script that completes words in a shell", add_arguments, run)
