"""An MTP head takes in many rounds without drafts at once; nobody may ever see that it was late."""

from forced import Forced

from scheduler.sequence import Sequence

PLAIN = 21  # rounds without drafts, more than the head leaves for later


class Stretches:
    """Rounds without drafts, then two with; counts those of all sequences alike."""

    def __init__(self) -> None:
        self.rounds = 0
        self.asked: set[int] = set()

    def __call__(self, sequence: Sequence) -> str:
        if sequence.seq_id in self.asked:
            self.rounds += 1
            self.asked.clear()
        self.asked.add(sequence.seq_id)
        return "RRWR" if self.rounds % (PLAIN + 2) >= PLAIN else ""


def test_drafts_after_a_stretch_without_any_are_those_of_a_run_from_scratch() -> None:
    script = Stretches()
    forced = Forced("qwen3_5", script, drafter="mtp", block_size=4)
    for number in range(3):
        forced.submit([number, 5, 9, 2, 40, 41][: 3 + number], 60)
    num_checked = 0
    while forced.scheduler.has_work:
        forced.step()
        if any(forced.patterns.values()):
            forced.check()
            num_checked += 1

    assert num_checked >= 4
    assert any(counts for counts in forced.accepted.values())


def test_blocks_of_a_request_that_ended_behind_are_true_for_the_next() -> None:
    drafting: list[bool] = []
    forced = Forced(
        "qwen3_5", lambda _: "RRR" if drafting else "", drafter="mtp", block_size=4, max_rows=2
    )
    [first] = forced.submit([3, 1, 4, 1, 5], 12)
    sequence = forced.scheduler.sequences[first]
    while forced.scheduler.has_work:
        forced.step()
    drafting.append(True)
    [second] = forced.submit([*sequence.tokens, 8], 12)
    forced.step()
    again = forced.scheduler.sequences[second]
    assert again.num_cached >= 8
    while again.finish is None:
        forced.check()
        forced.step()


def test_a_round_that_raises_leaves_what_is_behind_as_it_was() -> None:
    forced = Forced("qwen3_5", lambda _: "", drafter="mtp", block_size=4)
    for number in range(2):
        forced.submit([number, 5, 9], 30)
    for _ in range(5):
        forced.step()
    pick = forced.pick
    forced.pick = failing  # type: ignore[method-assign]
    forced.step_until(ZeroDivisionError)
    forced.pick = pick  # type: ignore[method-assign]
    for _ in range(4):
        forced.step()
    forced.check()
    forced.run(check_every=7)


def failing(*_: object) -> list[int]:
    raise ZeroDivisionError
