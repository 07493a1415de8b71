"""The flags of Engine.load, for every command that runs an engine of its own."""

import argparse
from typing import TYPE_CHECKING

from .command_error import CommandError, UsageError

if TYPE_CHECKING:
    from engine import Engine

_NAMES = (
    *("max_rows", "max_context", "num_blocks", "block_size", "prompt_tokens_per_round"),
    *("dtype", "exact", "prefix_cache", "max_checkpoint_bytes", "speculate"),
    *("drafter", "draft_model", "mtp", "acceptance", "backend", "async_scheduling"),
)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags. Those that are not given leave the choice to the engine."""
    group = parser.add_argument_group("engine")
    unset = argparse.SUPPRESS
    group.add_argument(
        "--model",
        default="demo",
        help="demo, demo-draft, a local folder, or owner/model on the hub",
    )
    group.add_argument(
        "--max-rows", type=int, default=unset, help="most sequences decoded at a time"
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
        "--max-checkpoint-bytes", type=int, default=unset, help="memory for kept recurrent states"
    )
    group.add_argument(
        "--speculate",
        type=how_to_speculate,
        default=unset,
        metavar="off|auto|N",
        help="drafts a round: none, as many as pay, or always N",
    )
    group.add_argument(
        "--drafter",
        choices=("mtp", "peer", "lookup"),
        default=unset,
        help="what drafts: the MTP head, the draft model, or a look at what was said before; "
        "by default the MTP head if there is one, else the draft model if one is named",
    )
    group.add_argument(
        "--draft-model",
        default=unset,
        metavar="MODEL",
        help="a smaller model of the same tokenizer",
    )
    group.add_argument(
        "--mtp", default=unset, metavar="MODEL", help="an MTP head published apart from the model"
    )
    group.add_argument(
        "--acceptance",
        choices=("coupled", "rejection"),
        default=unset,
        help="coupled: answers are the same with and without drafts; rejection: the classical rule",
    )
    group.add_argument(
        "--backend",
        choices=("auto", "portable", "cpu", "cuda"),
        default=unset,
        help="MLX's operations, a CPU's quick ways, or an NVIDIA GPU's kernels; auto: the fastest",
    )
    group.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        default=unset,
        help="launch the next tokens before this round's are read; by default where that pays",
    )


def how_to_speculate(value: str) -> int | str:
    """Return a number of drafts, or the word; Engine.load judges which words there are."""
    return int(value) if value.lstrip("-").isdigit() else value


def given_engine_flags(arguments: argparse.Namespace) -> list[str]:
    """Return the flags that were given and make sense only for an engine of one's own."""
    names = [name for name in _NAMES if hasattr(arguments, name) and name != "max_rows"]
    return ["--" + ("no-" * (name == "prefix_cache") + name).replace("_", "-") for name in names]


def load_engine(arguments: argparse.Namespace) -> "Engine":
    """Load the engine that the flags describe; CommandError with the reason if that fails."""
    from engine import Engine

    options = engine_options(arguments)
    try:
        return Engine.load(arguments.model, **options)
    except (ValueError, OSError) as error:
        raise CommandError(f"cannot load {arguments.model!r}: {error}") from error


def engine_options(arguments: argparse.Namespace) -> dict[str, object]:
    """Return Engine.load's options for the flags that were given; UsageError if one is bad."""
    options = {name: value for name, value in vars(arguments).items() if name in _NAMES}
    _check_counts(options)
    return options


def _check_counts(options: dict[str, object]) -> None:
    for name, value in options.items():
        least = 0 if name == "max_checkpoint_bytes" else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is {value}; it must be a whole number from {least}")
