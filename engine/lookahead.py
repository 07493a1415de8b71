"""A grammar's masks along one window, each made once, for drafter and target alike.

committed (the matcher stands here, and stays) | drafts, tried on a fork of it
"""

from collections.abc import Sequence

from .constraint import ConstraintError, Mask, Matcher


class Lookahead:
    """What a grammar permits after each of the drafts of one round.

    A draft may lead to where the grammar cannot be matched any further. That is ``failure``: after
    how many drafts, and why. It concerns nobody unless all drafts before it are accepted.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._begin()

    def masks(self, drafts: Sequence[int]) -> list[Mask | None]:
        """Return the mask before each of ``drafts`` and after the last.

        None stands where an earlier draft is not allowed, ends the output or leads to ``failure``:
        nothing there is ever kept.
        """
        if self._tried[: len(drafts)] != [*drafts[: len(self._tried)]]:
            self._begin()
        if not self._masks:
            self._look()
        for draft in drafts[len(self._tried) :]:
            self._tried.append(draft)
            self._look(draft)
        return self._masks[: len(drafts) + 1]

    def _begin(self) -> None:
        self.failure: tuple[int, str] | None = None
        self._tried: list[int] = []
        self._masks: list[Mask | None] = []
        self._ahead: Matcher | None = self._matcher.fork()  # None where nothing may follow

    def _look(self, *draft: int) -> None:
        mask = None
        if self._ahead is not None:
            try:
                if self._ahead.try_advance(draft) == len(draft) and not self._ahead.ended:
                    mask = self._ahead.mask()
            except ConstraintError as error:
                self.failure = len(self._tried), str(error)
            if mask is None:
                self._ahead = None
        self._masks.append(mask)
