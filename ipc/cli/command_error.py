"""How a command ends when it cannot do what was asked: a plain sentence and an exit status."""


class CommandError(Exception):
    """The command failed. The message says what was wrong and what would be right."""

    exit_status = 1


class UsageError(CommandError):
    """The command was asked for something that makes no sense; nothing was done."""

    exit_status = 2
