"""``octavo ask``: one prompt to a running service, its answer streamed out."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .broker_options import positive
from .command_error import CommandError, UsageError
from .connection_options import add_connection_arguments, connection_options
from .sampling_options import add_sampling_arguments, given_parameters

if TYPE_CHECKING:
    from ..client import Client, Prompt

NAME = "ask"
HELP = "stream a running service's answer to one prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("prompt", metavar="PROMPT", help="the text to go on from; - reads stdin")
    parser.add_argument(
        "--chat", action="store_true", help="a turn of a conversation: use the model's template"
    )
    parser.add_argument("--system", metavar="TEXT", help="the conversation's first, system message")
    parser.add_argument("--model", default="", help="one of the models that the service has")
    parser.add_argument(
        "--seed", type=int, default=argparse.SUPPRESS, help="of the noise that samples"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on elsewhere if the worker is lost"
    )
    parser.add_argument(
        "--timeout", type=positive(float), metavar="SECONDS", help="give up after this time"
    )
    add_connection_arguments(parser)
    add_sampling_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Stream the answer to stdout."""
    from ..addresses import AddressError
    from ..client import Client, RequestFailedError
    from ..keys import KeyFileError

    prompt = make_prompt(arguments)
    params = given_parameters(arguments)
    if hasattr(arguments, "seed"):
        params["seed"] = arguments.seed
    try:
        with Client(
            arguments.connect, timeout=arguments.timeout, **connection_options(arguments)
        ) as client:
            stream(client, prompt, params, model=arguments.model, resume=arguments.resume)
    except RequestFailedError as error:
        raise CommandError(str(error)) from None
    except (AddressError, KeyFileError, ValueError) as error:
        raise UsageError(str(error)) from None
    return 0


def make_prompt(arguments: argparse.Namespace) -> "Prompt":
    """Return the text, or the messages of the conversation."""
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    if arguments.system is None and not arguments.chat:
        return str(text)
    system = [] if arguments.system is None else [("system", arguments.system)]
    return [{"role": role, "content": content} for role, content in [*system, ("user", text)]]


def stream(
    client: "Client", prompt: "Prompt", params: dict[str, Any], *, model: str, resume: bool
) -> None:
    """Print the text as it comes."""
    handle = client.submit(prompt, params, model=model, resume=resume)
    ends_line = True
    for part in handle:
        if part.text:
            sys.stdout.write(part.text)
            sys.stdout.flush()
            ends_line = part.text.endswith("\n")
    if not ends_line:
        print(flush=True)
    sample = handle.result().samples[0]
    if sample.error is not None:
        raise CommandError(f"the answer ended with an error: {sample.error}")
