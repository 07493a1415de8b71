"""``octavo generate``: one prompt in, its answer streamed out."""

import argparse
import sys
from typing import TYPE_CHECKING

from .command_error import CommandError, UsageError
from .engine_options import add_engine_arguments, load_engine
from .sampling_options import add_sampling_arguments, given_parameters

if TYPE_CHECKING:
    from engine import Engine
    from engine.answer import Usage
    from engine.sampling_params import SamplingParams

    from ..batch_request import Prompt

NAME = "generate"
HELP = "stream the answer to one prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("prompt", metavar="PROMPT", help="the text to go on from; - reads stdin")
    parser.add_argument(
        "--chat", action="store_true", help="a turn of a conversation: use the model's template"
    )
    parser.add_argument("--system", metavar="TEXT", help="the conversation's first, system message")
    parser.add_argument(
        "--seed", type=int, default=argparse.SUPPRESS, help="of the noise that samples"
    )
    parser.add_argument(
        "--verbose",
        "-v",
        action="store_true",
        help="print seed, tokens and finish reason on stderr",
    )
    add_engine_arguments(parser)
    parser.set_defaults(max_rows=1)
    add_sampling_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Stream the answer to stdout."""
    from engine.errors import RequestError

    params = make_params(arguments)
    prompt = make_prompt(arguments)
    engine = load_engine(arguments)
    try:
        request_id = engine.submit(prompt, params)
    except RequestError as error:
        raise CommandError(str(error)) from None
    seed = engine.seed_of(request_id)
    reason, usage = stream(engine)
    if arguments.verbose:
        print(describe(seed, reason, usage), file=sys.stderr)
    return 0


def make_params(arguments: argparse.Namespace) -> "SamplingParams":
    """Return the parameters that the flags ask for; UsageError if one is out of range."""
    from engine.errors import RequestError
    from engine.sampling_params import SamplingParams

    given = given_parameters(arguments)
    if hasattr(arguments, "seed"):
        given["seed"] = arguments.seed
    try:
        return SamplingParams(**given)
    except RequestError as error:
        raise UsageError(str(error)) from None


def make_prompt(arguments: argparse.Namespace) -> "Prompt":
    """Return the text, or the messages of the conversation."""
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    if not text:
        raise UsageError("the prompt is empty; give a text of at least one character")
    if arguments.system is None and not arguments.chat:
        return str(text)
    system = [] if arguments.system is None else [("system", arguments.system)]
    return [{"role": role, "content": content} for role, content in [*system, ("user", text)]]


def stream(engine: "Engine") -> tuple[str, "Usage | None"]:
    """Print the text as it comes; return why it ended, and its tokens."""
    ends_line = True
    while engine.has_work:
        for delta in engine.step():
            if delta.text:
                sys.stdout.write(delta.text)
                sys.stdout.flush()
                ends_line = delta.text.endswith("\n")
            if delta.finish_reason is not None:
                if not ends_line:
                    print(flush=True)
                if delta.error is not None:
                    raise CommandError(f"the answer ended with an error: {delta.error}")
                return delta.finish_reason, delta.usage
    raise CommandError("the engine stopped before the answer had ended")


def describe(seed: int, reason: str, usage: "Usage | None") -> str:
    """Return a line about how the answer was made."""
    told = f"finish: {reason}, seed: {seed}"
    if usage is None:
        return told
    told += f", prompt tokens: {usage.prompt_tokens} ({usage.cached_tokens} cached)"
    told += f", output tokens: {usage.completion_tokens}"
    if usage.drafted_tokens:
        told += f", drafts accepted: {usage.accepted_tokens} of {usage.drafted_tokens}"
    return told
