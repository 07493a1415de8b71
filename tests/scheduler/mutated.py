"""Imports the scheduler, and what tests it, from a copy whose source has one fault."""

import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import scheduler

_HELPERS = ("toy_engine", "world", "ahead_world", "random_walk", "policy_rounds")


def _is_affected(name: str) -> bool:
    top = name.partition(".")[0]
    return top == "scheduler" or top in _HELPERS or top.startswith("test_")


@contextmanager
def mutated(module: str, old: str, new: str) -> Iterator[None]:
    """Within the context, `import scheduler` gives a copy in which ``old`` has become ``new``.

    Raises ValueError unless ``old`` occurs exactly once: a mutation must not rot unseen.
    """
    source = Path(scheduler.__file__).parent
    text = (source / f"{module}.py").read_text()
    if text.count(old) != 1:
        raise ValueError(f"{module}.py has {text.count(old)} times, not once: {old!r}")
    aside = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_affected(name)}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "scheduler"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / f"{module}.py").write_text(text.replace(old, new))
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(folder)
            for name in [name for name in sys.modules if _is_affected(name)]:
                del sys.modules[name]
            sys.modules.update(aside)
            importlib.invalidate_caches()
