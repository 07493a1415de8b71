"""How likely drafts are to be accepted, learnt from what became of those before.

Drafts that are computed are judged by their position in a window, drafts that were found by how
many words before them are the same as where they come from. Both for all rows and for each.
"""

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from .depth import Found

PRIOR = 0.7
SURE = 0.98  # nothing is more likely
OVERALL_WEIGHT = 0.02  # of a new draft among all; more while there are few
PRIOR_STRENGTH = 6.0  # drafts
ROW_STRENGTH = 10.0  # drafts of its own after which a row counts as much as all rows
ROW_MEMORY = 0.95  # of what a row had before, at each draft
ROW_MEMORY_PLAIN = 0.9  # likewise, at each round without drafts: bad luck is forgiven
MAX_ROWS_KNOWN = 4096
LEAST_CHANCE = 0.05  # that a draft is reached and accepted, for a row to carry it
KINDS_OF_EVIDENCE = (2, 3, 4, 6, 9, 13)  # words that are the same: from so many on


class AcceptanceRecord:
    """Chances by kind of draft: for all rows, and a factor for each row."""

    def __init__(self, num_kinds: int) -> None:
        self.overall = [PRIOR] * num_kinds
        self._counts = [PRIOR_STRENGTH] * num_kinds
        self._rows: OrderedDict[int, tuple[float, float, int]] = OrderedDict()
        self._num_plain = 0

    def chance(self, seq_id: int, kind: int) -> float:
        """How likely a row's draft of this kind is accepted, if those before it are."""
        return min(SURE, self.overall[kind] * self._factor(seq_id))

    def chances(self, seq_id: int, kinds: Iterable[int]) -> list[float]:
        """How likely each of a row's drafts is reached and accepted, as far as that is likely."""
        chances: list[float] = []
        chance, factor, overall = 1.0, self._factor(seq_id), self.overall
        for kind in kinds:
            chance *= min(SURE, overall[kind] * factor)
            if chance < LEAST_CHANCE:
                break
            chances.append(chance)
        return chances

    def learn(self, seq_id: int, kinds: Seq[int], num_accepted: int) -> None:
        """Drafts of these kinds, one after the other, of which the first so many were accepted."""
        if not kinds:
            return
        accepted, expected = self._known(seq_id)
        for place, kind in enumerate(kinds[: num_accepted + 1]):
            hit = float(place < num_accepted)
            accepted = ROW_MEMORY * accepted + hit
            expected = ROW_MEMORY * expected + self.overall[kind]
            self._counts[kind] += 1
            weight = max(OVERALL_WEIGHT, 1 / self._counts[kind])
            self.overall[kind] += weight * (hit - self.overall[kind])
        self._rows[seq_id] = accepted, expected, self._num_plain
        self._rows.move_to_end(seq_id)
        if len(self._rows) > MAX_ROWS_KNOWN:
            self._rows.popitem(last=False)

    def learn_found(self, found: Found, tokens: Seq[int]) -> None:
        """Drafts were in hand and the target said ``tokens``, whether they ran or not."""
        said = tokens[: len(found.drafts)]
        pairs = enumerate(zip(found.drafts, said, strict=False))
        right = next((place for place, (draft, token) in pairs if draft != token), len(said))
        self.learn(found.seq_id, kinds_of(found)[: len(said)], right)

    def fade(self, count: int = 1) -> None:
        """Rounds without drafts have passed: of what rows did with theirs a little is forgotten."""
        self._num_plain += count

    def _factor(self, seq_id: int) -> float:
        """So many times as likely as in all rows."""
        accepted, expected = self._known(seq_id)
        return (accepted + ROW_STRENGTH) / (expected + ROW_STRENGTH)

    def _known(self, seq_id: int) -> tuple[float, float]:
        """How many drafts of a row were accepted and how many were to be expected, lately."""
        if (known := self._rows.get(seq_id)) is None:
            return 0.0, 0.0
        accepted, expected, at = known
        kept = ROW_MEMORY_PLAIN ** (self._num_plain - at)
        return kept * accepted, kept * expected


def kinds_of(found: Found) -> list[int]:
    """Of each draft in hand: as long as they are accepted, more and more words are the same."""
    return [kind_of_evidence(found.evidence + place) for place in range(len(found.drafts))]


def kind_of_evidence(same_words: int) -> int:
    """Return which of KINDS_OF_EVIDENCE so many same words are."""
    return max(0, sum(same_words >= least for least in KINDS_OF_EVIDENCE) - 1)
