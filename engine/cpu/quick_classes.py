"""Modules of a loaded model that are given a quicker class; parameters stay."""

from collections.abc import Mapping
from typing import Any


def exchange(model: Any, quicker: Mapping[type[Any], type[Any]]) -> list[Any]:
    """Give modules whose class is a key of ``quicker`` the class it names; return them.

    Only the instances in ``model`` change: no module or class of mlx-lm does.
    """
    found = [module for module in model.modules() if type(module) in quicker]
    for module in found:
        module.__class__ = quicker[type(module)]
    return found
