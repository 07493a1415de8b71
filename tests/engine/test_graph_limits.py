"""What MLX is told before it starts, and that a user's own word stands."""

import os
import sys

import pytest

from engine.graph_limits import MOST_MEGABYTES, set_graph_limits

NAME = "MLX_MAX_MB_PER_BUFFER"


@pytest.mark.parametrize(
    ("platform", "given", "wanted"),
    [
        ("linux", None, str(MOST_MEGABYTES)),
        ("linux", "40", "40"),
        ("darwin", None, None),
        ("darwin", "40", "40"),
    ],
)
def test_graphs_are_unlimited_on_linux_alone_and_where_nobody_chose(
    monkeypatch, platform, given, wanted
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    if given is None:
        monkeypatch.delenv(NAME, raising=False)
    else:
        monkeypatch.setenv(NAME, given)

    set_graph_limits()

    assert os.environ.get(NAME) == wanted
    monkeypatch.delenv(NAME, raising=False)
