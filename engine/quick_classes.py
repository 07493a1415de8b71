"""Modules of a loaded model that are given a quicker class; parameters stay."""

from collections.abc import Callable, Mapping
from typing import Any


def exchange(
    model: Any,
    quicker: Mapping[type[Any], type[Any]],
    takes: Callable[[Any], bool] = lambda _module: True,
) -> list[Any]:
    """Give modules whose class is a key of ``quicker`` the class it names; return them.

    Those that it ``takes``, that is. Only the instances in ``model`` change: no module or class of
    mlx-lm does.
    """
    found = [one for one in model.modules() if type(one) in quicker and takes(one)]
    for module in found:
        module.__class__ = quicker[type(module)]
    return found
