"""``octavo keys``: CURVE keys, for services that others can reach."""

import argparse
from pathlib import Path

from .command_error import CommandError

NAME = "keys"
HELP = "make and list the keys that let clients and workers connect"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="make a key pair: NAME.key and NAME.key_secret")
    new.add_argument("name", metavar="NAME", help="of its owner: for clients, the tenant")
    listing = actions.add_parser("list", help="show the names and public keys in a directory")
    for action in (new, listing):
        action.add_argument(
            "--directory", type=Path, default=Path(), metavar="DIR", help="where the files are"
        )


def run(arguments: argparse.Namespace) -> int:
    """Make a pair, or list the public keys."""
    from ..keys import KeyFileError, load_public, new_key

    try:
        if arguments.action == "new":
            public, secret = new_key(arguments.name, arguments.directory)
            print(f"{secret}  keep it: whoever has it is {arguments.name}")
            print(f"{public}  copy it into the broker's directory of allowed keys")
            return 0
        for file in sorted(arguments.directory.glob("*.key")):
            print(f"{file.stem}  {load_public(file).decode()}")
    except (KeyFileError, OSError) as error:
        raise CommandError(str(error)) from None
    return 0
