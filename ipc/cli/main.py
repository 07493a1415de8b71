"""The command ``octavo``: finds the module of one subcommand and runs it.

A command is a module of this package named in ``COMMANDS``. It has ``NAME``, ``HELP`` (one line),
``add_arguments(parser)`` and ``run(arguments) -> int`` (the exit status), and it imports whatever
is heavy (engine, zmq, rich) inside ``run``: ``octavo --help`` imports every module, and one
command never pays for another's libraries. It raises ``CommandError`` or ``UsageError`` to end
with a message. Exit statuses: 0 done, 1 failed, 2 bad usage, 130 interrupted, 141 output closed.
"""

import argparse
import difflib
import importlib
import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from .command_error import CommandError

COMMANDS: tuple[str, ...] = (
    *("batch", "generate", "demo", "inspect", "bench"),
    *("serve", "broker", "worker", "ask", "keys", "top"),
)
"""Modules of this package, one a command, in the order of the overview."""


class Command(Protocol):
    """What a command's module offers."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; return the exit status."""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def load_command(name: str) -> Command:
    """Import the module of one command."""
    return cast(Command, importlib.import_module(f".{name}", __package__))


def make_parser(command: Command) -> argparse.ArgumentParser:
    """Return the parser of one command, as its module declares it."""
    parser = argparse.ArgumentParser(
        prog=f"octavo {command.NAME}",
        description=command.HELP,
        allow_abbrev=False,  # a flag that is added later must not change what a script means
        formatter_class=HelpFormatter,
    )
    command.add_arguments(parser)
    return parser


def overview() -> str:
    """Return the text of ``octavo --help``."""
    commands = [load_command(name) for name in COMMANDS]
    width = max((len(command.NAME) for command in commands), default=0)
    lines = ["commands:"] + [f"  {command.NAME:<{width}}  {command.HELP}" for command in commands]
    epilogue = "`octavo COMMAND --help` tells more about one of them."
    title = "A batched LLM decoding engine on MLX."
    return "\n".join(["usage: octavo COMMAND ...", "", title, "", *lines, "", epilogue])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``octavo`` with ``arguments`` (default: those of the process); return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"octavo {importlib.metadata.version('octavo')}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"one of: {', '.join(COMMANDS)}"
        print(f"octavo: error: there is no command {name!r}; {hint}", file=sys.stderr)
        return 2
    return run_command(load_command(name), words[1:])


def run_command(command: Command, words: Sequence[str]) -> int:
    """Parse ``words`` and run the command; turn the ways it may end into an exit status."""
    try:
        return command.run(make_parser(command).parse_args(words))
    except SystemExit as exit_:  # argparse: 0 after --help, 2 after a usage error
        return exit_.code if isinstance(exit_.code, int) else 1
    except CommandError as error:
        print(f"octavo {command.NAME}: error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output is gone. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
