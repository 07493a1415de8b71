"""Log-probabilities of a prompt's tokens, from an engine's delta to a client and to a file."""

from typing import Any

import pytest
from simulation import Simulation

from engine.answer import Delta, TokenLogprob, Usage
from engine.sampling_params import SamplingParams
from ipc import messages as m
from ipc.admission import AdmissionLimits, Amount
from ipc.batch_answer import BatchAnswer, Choice
from ipc.batch_record import answer_record
from ipc.batch_request import BatchRequest, LineFormat
from ipc.client_answers import AnswerBuilder, Part, parts_of
from ipc.codec import decode
from ipc.fake_engine import FakeDelta, FakeLogprob, fake_prompt_logprobs
from ipc.limits import MAX_ARRAY
from ipc.run_stream import RunStream
from ipc.token_ids import pack_ids


def stream(samples: int = 1) -> RunStream:
    return RunStream(m.Run("e-1", "", "c", "r", "text", "hi", params={"n": samples, "seed": 1}))


def chunks(frames: list[list[bytes]]) -> list[m.Chunk]:
    found = [decode(each, m.FROM_WORKER) for each in frames]
    assert all(isinstance(each, m.Chunk) for each in found)
    return found  # type: ignore[return-value]


def entries(count: int, likeliest: int) -> list[FakeLogprob | None]:
    top = tuple((token, -1.0) for token in range(likeliest))
    return [None, *(FakeLogprob(token, -token / 4, top) for token in range(1, count))]


def carried(of: list[FakeLogprob | None]) -> list[Any]:
    return [None if each is None else (each.token_id, each.logprob, each.top) for each in of]


def collect(found: list[m.Chunk]) -> Any:
    builder = AnswerBuilder("r")
    for chunk in found:
        for part in parts_of(chunk.pieces, chunk.ids):
            builder.add(part)
    return builder.finish(m.Done("r", len(found), 1, (m.SampleEnd(0, "stop"),)))


def test_they_come_once_a_request_before_its_first_token() -> None:
    told = entries(3, 2)
    run = stream(samples=2)
    run.add(FakeDelta("e-1", 0, "a", (7,), prompt_logprobs=told))
    run.add(FakeDelta("e-1", 1, "b", (8,), prompt_logprobs=told))

    assert chunks(run.take()) == [
        m.Chunk("r", 0, 0, (m.Piece(0, 0, "", prompt_logprobs=tuple(carried(told))),), "e-1"),
        m.Chunk("r", 1, 0, (m.Piece(0, 1, "a"), m.Piece(1, 1, "b")), "e-1", pack_ids([7, 8])),
    ]


@pytest.mark.parametrize(("count", "likeliest"), [(10_000, 0), (1000, 128), (5000, 3), (1, 5)])
def test_those_of_a_long_prompt_are_cut_into_chunks_of_bounded_size(
    count: int, likeliest: int
) -> None:
    told = entries(count, likeliest)
    run = stream()
    run.add(FakeDelta("e-1", 0, "a", (7,), prompt_logprobs=told))
    frames = run.take()
    found = chunks(frames)

    assert all(len(each[0]) < 1 << 18 for each in frames)
    assert all(len(chunk.pieces[0].prompt_logprobs or ()) <= MAX_ARRAY for chunk in found)
    assert [chunk.seq for chunk in found] == list(range(len(found)))
    assert len(found) > 2 or count == 1
    answer = collect(found)
    assert answer.prompt_logprobs == carried(told)
    assert answer.token_ids == [7]


def test_entries_that_come_again_from_another_worker_are_not_doubled() -> None:
    one, two, three = None, (1, -0.5, ()), (2, -0.25, ())
    builder = AnswerBuilder("r")
    builder.add(Part(0, "", (), prompt_logprobs=(one, two)))
    builder.add(Part(0, "", (), prompt_logprobs=(one,)))
    builder.add(Part(0, "", (), prompt_logprobs=(two, three), prompt_start=1))

    assert builder.finish(m.Done("r", 3, 1, ())).prompt_logprobs == [one, two, three]
    assert AnswerBuilder("r").finish(m.Done("r", 0, 1, ())).prompt_logprobs is None


def test_a_request_that_went_on_elsewhere_has_them_once() -> None:
    sim = Simulation()
    first, client = sim.worker(), sim.client()
    params = {"max_tokens": 60, "prompt_logprobs": 1}
    request = client.submit("resume", resume=True, params=params)
    sim.run(1)
    assert client.tokens[request]
    sim.kill_worker(first)
    second = sim.worker()
    sim.run(4)
    (run,) = second.core.runs
    assert "prompt_logprobs" not in second.engine.samples[run, 0].params
    sim.run(4)

    assert client.answers[request].prompt_logprobs == carried(fake_prompt_logprobs(b"resume", 1))
    assert len(client.tokens[request]) == 60


def test_what_they_take_counts_in_the_brokers_limits() -> None:
    sim = Simulation(limits=AdmissionLimits(total=Amount(10, 10_000, 5_000)))
    sim.worker()
    client = sim.client()
    fits = client.submit("x" * 400, params={"prompt_logprobs": 1})
    never = client.submit("x" * 400, params={"prompt_logprobs": 4})
    sim.run(2)

    assert isinstance(client.end_of(fits), m.Done)
    error = client.end_of(never)
    assert isinstance(error, m.Error)
    assert (error.code, error.message) == (
        "too_large",
        "it needs 8400 bytes; this broker may hold 5000",
    )


def record(line_format: LineFormat) -> dict[str, Any]:
    request = BatchRequest(1, "a", line_format, "hi", SamplingParams(prompt_logprobs=1, seed=1))
    answer = BatchAnswer(request, "a", 1, [Choice(0), Choice(1)])
    told = (None, TokenLogprob(5, -0.5, ((6, -0.25),)))
    for index in range(2):
        answer.add(
            Delta(
                *("a", index, "x", (7,)),
                finish_reason="stop",
                usage=Usage(2, 1),
                prompt_logprobs=told,
            )
        )
    return answer_record(answer, model="demo", created=1, token_text=lambda token: f"<{token}>")


def test_a_batchs_record_has_them_beside_the_choices() -> None:
    assert record("octavo")["prompt_logprobs"] == [
        None,
        {"token_id": 5, "logprob": -0.5, "top": ((6, -0.25),)},
    ]
    for line_format in ("chat", "completion"):
        assert record(line_format)["response"]["body"]["prompt_logprobs"] == [
            None,
            {
                **{"token": "<5>", "logprob": -0.5, "bytes": list(b"<5>")},
                "top_logprobs": [{"token": "<6>", "logprob": -0.25, "bytes": list(b"<6>")}],
            },
        ]
