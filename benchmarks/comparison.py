"""What the answers of several sides come to: a line for each of ours, peer and phase.

An answer is what ``benchmarks.peer_side`` gives for one request, or {"refused": why}. Nothing is
run here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .pairs import Ratio, ratio_of

Answer = Mapping[str, Any]
Tokens = Sequence[Sequence[int]]

OURS = "engine"  # how the names of our sides begin
NEITHER = "neither"


def report(answers: Mapping[str, Sequence[Answer]]) -> list[dict[str, Any]]:
    """Return lines for the answers of each side, round by round; where a peer is faster, first."""
    lines = [
        line
        for side in answers
        for peer in answers
        if side.startswith(OURS) and not peer.startswith(OURS)
        for line in compare(side, answers[side], peer, answers[peer])
    ]
    return sorted(lines, key=lambda line: line["faster"] != line["peer"])


def compare(
    side: str, ours: Sequence[Answer], peer: str, theirs: Sequence[Answer]
) -> Iterator[dict[str, Any]]:
    """Yield a line for each phase, or one that says who refused. The rounds are pairs.

    A peer that took part in fewer rounds is compared over those.
    """
    names = {"side": side, "peer": peer}
    for name, answers in ((side, ours), (peer, theirs)):
        refused = next((answer["refused"] for answer in answers if "refused" in answer), None)
        if refused is not None:
            yield {"faster": None, **names, "refused_by": name, "refused": refused}
            return
    for phase, rate in (("decode", decode_rate), ("whole", whole_rate), ("cpu", cpu_rate)):
        ratio = ratio_of([(rate(a), rate(b)) for a, b in zip(ours, theirs, strict=False)])
        yield {
            "faster": faster(ratio, side, peer),
            **names,
            "phase": phase,
            **asdict(ratio),
            "agreement": share_alike(ours[-1]["tokens"], theirs[-1]["tokens"]),
        }


def faster(ratio: Ratio, side: str, peer: str) -> str:
    """Name the faster of two; ``neither`` where the interval has room for both."""
    if ratio.low > 1:
        return side
    return peer if ratio.high < 1 else NEITHER


def decode_rate(answer: Answer) -> float:
    """Tokens a second from the moment every row had its first."""
    return float(answer["decoded"] / answer["decode_s"])


def whole_rate(answer: Answer) -> float:
    """New tokens a second of the whole run, prompts included in the time."""
    return sum(map(len, answer["tokens"])) / float(answer["prompt_s"] + answer["decode_s"])


def cpu_rate(answer: Answer) -> float:
    """New tokens of the whole run a second of processor time, that of threads that spin too."""
    return sum(map(len, answer["tokens"])) / float(answer["cpu_s"])


def share_alike(ours: Tokens, theirs: Tokens) -> float:
    """Return the part of our tokens that both said alike before they part, over all rows."""
    alike = 0
    for our, their in zip(ours, theirs, strict=True):
        for mine, other in zip(our, their, strict=False):
            if mine != other:
                break
            alike += 1
    return alike / sum(map(len, ours))
