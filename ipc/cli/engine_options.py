"""The flags of Engine.load, for every command that runs an engine of its own."""

import argparse
from typing import TYPE_CHECKING

from .command_error import CommandError, UsageError

if TYPE_CHECKING:
    from engine import Engine

_NAMES = (
    *("max_rows", "max_context", "num_blocks", "block_size", "dtype", "exact", "prefix_cache"),
    *("speculate", "prompt_tokens_per_round"),
)


def add_engine_arguments(parser: argparse.ArgumentParser, *, max_rows: int = 8) -> None:
    """Declare the flags. Those that are not given leave the choice to the engine."""
    group = parser.add_argument_group("engine")
    unset = argparse.SUPPRESS
    group.add_argument(
        "--model", default="demo", help="demo, draft, a local folder, or a name on the hub"
    )
    group.add_argument(
        "--max-rows", type=int, default=max_rows, help="most sequences decoded at a time"
    )
    group.add_argument("--max-context", type=int, default=unset, help="longest sequence, in tokens")
    group.add_argument(
        "--num-blocks", type=int, default=unset, help="blocks of K/V, instead of what memory allows"
    )
    group.add_argument("--block-size", type=int, default=unset, help="positions in a block")
    group.add_argument(
        "--prompt-tokens-per-round", type=int, default=unset, help="most prompt tokens in one round"
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default=unset,
        help="of the weights; by default what the device computes fastest",
    )
    group.add_argument(
        "--exact",
        action="store_true",
        default=unset,
        help="answers bitwise independent of the batch; refused where that cannot hold",
    )
    group.add_argument(
        "--no-prefix-cache",
        dest="prefix_cache",
        action="store_false",
        default=unset,
        help="share nothing between prompts that begin alike",
    )
    group.add_argument(
        "--speculate", default=unset, metavar="HOW", help="off, auto, or the name of a proposer"
    )


def load_engine(arguments: argparse.Namespace) -> "Engine":
    """Load the engine that the flags describe; CommandError with the reason if that fails."""
    from engine import Engine

    options = {name: value for name, value in vars(arguments).items() if name in _NAMES}
    _check_counts(options)
    try:
        return Engine.load(arguments.model, **options)
    except (ValueError, OSError) as error:
        raise CommandError(f"cannot load {arguments.model!r}: {error}") from error


def _check_counts(options: dict[str, object]) -> None:
    for name, value in options.items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is {value}; it must be a whole number from 1")
