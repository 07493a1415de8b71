"""Many clients at once with cancels, disconnects and slow readers: no answer lost or crossed."""

from collections.abc import Sequence

from processes import Service
from visitors import crowd

from ipc.fake_engine import fake_tokens


def test_no_answer_of_a_crowd_is_lost_doubled_or_crossed(service: Service) -> None:
    service.start_broker()
    for _ in range(2):
        service.start_worker("fake:step=0.002,rows=6,tokens=2")

    def oracle(questions: Sequence[tuple[str, int]]) -> dict[str, Sequence[int]]:
        return {p: fake_tokens(p.encode(), seed, 0, 0, 40) for p, seed in questions}

    crowd(service, oracle, clients=12, requests=10, tokens=40)
