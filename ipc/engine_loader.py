"""Loads what a worker serves: a real engine, or a fake one for tests."""

from collections.abc import Mapping
from typing import Any

from .fake_engine import load_fake
from .served_engine import EngineLoader, LoadedEngine


def engine_loader(
    model: str, options: Mapping[str, Any], *, served_as: str | None = None, capacity: int = 0
) -> EngineLoader:
    """Return what loads ``model`` with Engine.load's ``options``.

    ``capacity`` 0: twice the rows, so that the next requests are there when rows become free.
    """
    if model == "fake" or model.startswith("fake:"):
        return lambda: load_fake(model)

    def load() -> LoadedEngine:
        from engine import Engine, SamplingParams

        engine = Engine.load(model, **options)
        rows = int(options.get("max_rows", 8))
        return LoadedEngine(
            engine=engine,
            make_params=SamplingParams.from_mapping,
            models=(served_as or engine.model_name,),
            rows=rows,
            capacity=capacity or 2 * rows,
        )

    return load
