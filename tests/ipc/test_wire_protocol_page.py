"""docs/protocol.md says what the code does."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ipc import limits
from ipc import messages as m
from ipc.codec import encode
from ipc.wire_params import NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


@pytest.mark.parametrize(
    "cls",
    [m.Hello, m.Welcome, m.Submit, m.Accepted, m.Chunk, m.Done, m.Error, m.Credit, m.Cancel, m.Ack,
     m.Ping, m.Pong, m.Stats, m.Drain, m.RunState, m.Piece, m.SampleEnd, m.ChatMessage, m.Run],
)  # fmt: skip
def test_the_page_names_every_field_of_every_message(cls: type) -> None:
    attachments = {"prompt_ids", "emitted_ids", "ids"}
    for field in fields(cls):
        if field.name not in attachments:
            assert f"`{field.name}`" in PAGE, field.name


def test_the_page_names_every_type_and_every_error_code() -> None:
    sources = "".join(
        path.read_text() for path in (Path(__file__).parents[2] / "ipc").glob("broker_*.py")
    )
    codes = set(re.findall(r'Error\(\s*"(\w+)"', sources))
    codes |= set(re.findall(r'_refusal\(submit, "(\w+)"', sources))
    codes |= set(re.findall(r'end_with_error\(\s*job, "(\w+)"', sources))
    codes |= {"bad_message", "unsupported_version", "busy", "too_large", "internal"}
    assert len(codes) > 10
    for code in codes:
        assert f"`{code}`" in PAGE, code
    for cls in (*m.FROM_CLIENT, *m.TO_CLIENT, *m.FROM_WORKER, *m.TO_WORKER):
        assert re.search(rf"(\*\*|`){cls.__name__.lower()}(\*\*|`)", PAGE), cls


@pytest.mark.parametrize(
    "number",
    [limits.MAX_ARRAY, limits.MAX_MAP, limits.MAX_ID_BYTES, limits.MAX_NAME_BYTES,
     limits.MAX_LABEL_BYTES, limits.MAX_ERROR_BYTES, limits.MAX_MODELS, limits.MAX_SAMPLES,
     limits.MAX_WINDOW, limits.DEFAULT_WINDOW],
)  # fmt: skip
def test_the_page_states_the_limits(number: int) -> None:
    assert f"{number:,}" in PAGE


def test_the_page_states_the_sizes_of_frames() -> None:
    assert limits.MAX_FRAME_BYTES == 4 << 20
    assert limits.MAX_HEADER_BYTES == 1 << 20
    assert limits.MAX_PROMPT_HEADER_BYTES - limits.RUN_HEADER_BYTES == (4 << 20) - (4 << 10)
    assert "4 MiB less 4 KiB (`submit`), 4 MiB (`run`), else 1 MiB" in PAGE


def test_the_wires_parameters_are_the_engines() -> None:
    sampling_params = pytest.importorskip("engine.sampling_params").SamplingParams
    engines = {field.name for field in fields(sampling_params)}
    assert set(NAMES) == engines


def test_a_run_fits_wherever_its_submit_did() -> None:
    text = "x" * (limits.MAX_PROMPT_HEADER_BYTES - limits.RUN_HEADER_BYTES - 100)
    longest = "y" * limits.MAX_LABEL_BYTES
    encode(m.Submit(id="r" * 40, kind="text", text=text))
    encode(
        m.Run(
            run="e" * limits.MAX_ID_BYTES,
            tenant=longest,
            client="c" * limits.MAX_NAME_BYTES,
            id="r" * 40,
            kind="text",
            text=text,
            params={"seed": 2**64 - 1, "deadline": 1.5},
            window=2**48,
            seq=2**48,
        )
    )
