"""A grammar's masks along one window, each made once, for drafter and target alike.

committed (the matcher stands here, before and after) | drafts, tried and taken back
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
        self._num_committed = matcher.num_tokens
        self._begin()

    def masks(self, drafts: Sequence[int]) -> list[Mask | None]:
        """Return the mask before each of ``drafts`` and after the last.

        None stands where an earlier draft is not allowed, ends the output or leads to ``failure``:
        nothing there is ever kept.
        """
        if self._tried[: len(drafts)] != [*drafts[: len(self._tried)]]:
            self._begin()
        if len(self._masks) <= len(drafts):
            self._look([*drafts])
        return self._masks[: len(drafts) + 1]

    def _begin(self) -> None:
        self.failure: tuple[int, str] | None = None
        self._tried: list[int] = []
        self._masks: list[Mask | None] = []
        self._over = False  # nothing may follow what was tried

    def _look(self, drafts: list[int]) -> None:
        """Complete the masks; the first of those that are known already were for these drafts."""
        if not self._over:
            try:
                self._append_masks(drafts)
            except ConstraintError as error:
                self.failure = len(self._masks), str(error)
                if self._masks:
                    self._matcher.restore(self._num_committed)
            self._over = len(self._masks) <= len(drafts)
        self._masks += [None] * (len(drafts) + 1 - len(self._masks))
        self._tried = drafts

    def _append_masks(self, drafts: list[int]) -> None:
        matcher, num_known = self._matcher, len(self._masks)
        matcher.try_advance(drafts[: max(0, num_known - 1)])
        for place in range(num_known, len(drafts) + 1):
            if place > 0 and not matcher.try_advance(drafts[place - 1 : place]):
                break
            if matcher.ended:
                break
            self._masks.append(matcher.mask())
        matcher.rollback(matcher.num_tokens - self._num_committed)
