"""A fault that comparable engines had, put into the scheduler's source; and what notices it."""

import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from mutated import mutated

NUM_WALKS = 40


@dataclass(frozen=True)
class Fault:
    """A replacement in one module's source, and what catches it: a test, or else random walks."""

    name: str
    module: str
    old: str
    new: str
    caught_by: str = ""
    arguments: tuple = ()

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


class Endless(Exception):
    """A fault made the scheduler turn in circles."""


@contextmanager
def cpu_seconds(limit: float) -> Iterator[None]:
    """Raise Endless once the process has computed for so long, however busy the machine is."""

    def stop(signal_number, frame) -> None:
        raise Endless

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def look(fault: Fault) -> None:
    """Run what catches the fault, up to its end or to the first exception."""
    if fault.caught_by:
        module, _, function = fault.caught_by.partition("::")
        world = importlib.import_module("world")
        world.WORLDS.clear()
        getattr(importlib.import_module(module), function)(*fault.arguments)
        for one in world.WORLDS:
            one.verify_all()
        return
    walk = importlib.import_module("random_walk").walk
    for seed in range(NUM_WALKS):
        walk(seed, 200, per_world=200)


def is_caught(fault: Fault) -> bool:
    """Put the fault in; return whether a check fails, an illegal call is refused or it never ends.

    Whatever else it leads to is raised: code that does not parse, names nothing or calls with
    arguments that do not fit breaks down wherever it runs, and shows nothing of what is checked.
    """
    with mutated(fault.module, fault.old, fault.new):
        try:
            with cpu_seconds(10):
                look(fault)
        except (AssertionError, Endless, pytest.fail.Exception):
            return True
        except Exception as error:  # a class of the copy: its module is all that can be asked for
            if type(error).__module__.partition(".")[0] != "scheduler":
                raise
            return True
    return False
