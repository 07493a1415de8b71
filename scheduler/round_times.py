"""How long rounds take, by number of rows and depth of drafts, relative to plain rounds.

What was measured counts as it is. Between and beyond measured depths times go in straight lines;
from one number of rows to a similar one the surcharge of drafts carries over, and from any number
to fewer rows, where it is somewhat less, for a full batch has nothing to spare. Where nothing was
ever measured a surcharge is assumed that grows with the rows.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from .compared import Compared

SAMPLES = 9  # times kept for each (rows, depth)
ENOUGH = 3  # times before a depth counts as measured
MOMENT = 8  # rounds within which times may be compared
NEAREST = 3  # times, of the newest, that stand for a moment
CAUTION = 0.3  # of a surcharge is added to it, over the root of the number of samples
SLOW = 2.0  # times the median: what takes longer counts as that
OUTDATED = 1.5  # ratios so many times the newest ones are forgotten
SPARED = 0.3  # of a surcharge, where hardly any of the rows are left for which it is known
SIMILAR = 2.0  # times as many rows at most: what is known of those is taken over
FIRST_DRAFT = 0.4  # of the first draft's surcharge is for drafting at all, however deep
FIRST_AHEAD = 0.85  # likewise where plain rounds run ahead of the host, and others do not
ASSUMED, ASSUMED_PER_ROW, MOST_ASSUMED = 0.25, 1 / 32, 1.0  # of a plain round, for each draft
DOUBT_MEASURED, DOUBT_FAR, DOUBT_ASSUMED = 0.7, 0.4, 0.4  # of a guessed surcharge: maybe so little


class Guess(NamedTuple):
    """What a round takes, in plain rounds of as many rows: likely, and at the least."""

    ratio: float
    least: float
    measured: bool  # with so many rows and at this depth
    trusted: bool  # measured, or concluded from measurements
    far: bool = False  # those were of many more rows: it is likely to be less


@dataclass(slots=True)
class Cell:
    """What is known of rounds with so many rows, by depth.

    Times are compared with others of about the same moment only: machines change their speed.
    """

    rounds: int = 0
    recent: dict[int, deque[tuple[int, float]]] = field(default_factory=dict)  # (round, seconds)
    compared: dict[int, deque[Compared]] = field(default_factory=dict)
    left_over: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    _waiting: dict[int, deque[tuple[int, float]]] = field(default_factory=dict)  # for plain rounds
    _num_unsure: int = 0  # no fewer than wait for their other side
    _ratios: dict[int, float] | None = None  # until something is added

    def add(self, depth: int, seconds: float) -> None:
        """Keep a time, and compare it with those of the same moment.

        With plain rounds, or the next ones if there are none; where little is known of a depth,
        with another that is known.
        """
        self._ratios = None
        if self._num_unsure:
            self._see_other_side(depth, seconds)
        self.recent.setdefault(depth, deque(maxlen=SAMPLES)).append((self.rounds, seconds))
        if depth:
            self._waiting.setdefault(depth, deque(maxlen=ENOUGH)).append((self.rounds, seconds))
        elif not any(self._waiting.values()):
            return  # as after most rounds
        if (plain := self.lately(0)) is not None:
            for waiting in self._waiting:
                self._compare_waiting(waiting, plain, awaits=waiting if not depth else 0)
        elif len(self.compared.get(depth, ())) < ENOUGH:
            for other, ratios in tuple(self.compared.items()):
                time = self.lately(other)
                if other != depth and len(ratios) >= ENOUGH and time is not None:
                    ratio = median(one.ratio for one in ratios)
                    self._compare_waiting(depth, time / ratio, awaits=None)

    def _compare_waiting(self, depth: int, plain: float, awaits: int | None) -> None:
        """Keep what times of this moment are in plain rounds."""
        times = self._waiting.get(depth, deque())
        while times:
            at, seconds = times.popleft()
            if at > self.rounds - MOMENT:
                self._num_unsure += awaits is not None
                self._compare(depth, Compared(seconds / plain, at, seconds, plain, awaits))

    def _see_other_side(self, depth: int, seconds: float) -> None:
        """Let what waits for a time like this one be judged; what does not agree is forgotten."""
        unsure = 0
        for ratios in self.compared.values():
            for one in tuple(ratios):
                if one.awaits == depth:
                    if one.at <= self.rounds - MOMENT:
                        one.awaits = None  # whatever has changed did so since
                    elif not one.agrees(depth, seconds):
                        ratios.remove(one)
                unsure += one.awaits is not None
        self._num_unsure = unsure

    def add_after_drafts(self, seconds: float) -> None:
        """Keep what a plain round takes that does work which drafts have left."""
        self._ratios = None
        plain = self.lately(0)
        if plain is not None:
            self.left_over.append(seconds / plain - 1)

    def lately(self, depth: int) -> float | None:
        """Seconds of the newest rounds at ``depth``; None if there were none lately."""
        times = [s for at, s in self.recent.get(depth, ()) if at > self.rounds - MOMENT]
        return median(times[-NEAREST:]) if times else None

    def plain_lately(self) -> float | None:
        """Seconds of recent plain rounds in the mean, slow ones counted; None if there are none."""
        plain = self.lately(0)
        if plain is None:
            return None
        times = [s for at, s in self.recent[0] if at > self.rounds - MOMENT]
        return fmean(min(seconds, SLOW * plain) for seconds in times[-NEAREST:])

    def plain(self) -> float | None:
        """Seconds of plain rounds, however long ago; None until there are enough."""
        times = self.recent.get(0, ())
        return median(s for _, s in times) if len(times) >= ENOUGH else None

    def ratios(self) -> dict[int, float]:
        """Over plain rounds, of every depth that is measured; with few samples rather too much."""
        if self._ratios is None:
            self._ratios = self._find_ratios()
        return self._ratios

    def _find_ratios(self) -> dict[int, float]:
        found = {0: 1.0} if self.plain() is not None else {}
        left_over = max(0.0, median(self.left_over)) if len(self.left_over) >= ENOUGH else 0.0
        for depth in sorted(self.compared):
            samples = self.compared[depth]
            if len(samples) >= ENOUGH:
                surcharge = max(0.0, median(one.ratio for one in samples) - 1) * (
                    1 + CAUTION / len(samples) ** 0.5
                )
                found[depth] = 1 + surcharge + left_over
        return _rising(found)

    def _compare(self, depth: int, new: Compared) -> None:
        """Keep a ratio. Several that are far smaller outdate larger ones: drafts became cheaper.

        Not those of one plain round alone, which may have been slow by accident.
        """
        kept = self.compared.setdefault(depth, deque(maxlen=SAMPLES))
        kept.append(new)
        newest = list(kept)[-ENOUGH:]
        bound = OUTDATED * max(one.ratio for one in newest)
        if len({one.plain for one in newest}) > 1 and any(one.ratio > bound for one in kept):
            recent = [one for one in kept if one.ratio <= bound]
            self.compared[depth] = deque(recent, maxlen=SAMPLES)


class RoundTimes:
    """Times of rounds of decoding rows."""

    def __init__(self) -> None:
        self._cells: dict[int, Cell] = {}
        self.runs_ahead = False  # plain rounds do, as far as is known

    def cell(self, num_rows: int) -> Cell:
        """What is known of rounds with so many rows."""
        size = alike(num_rows)
        if (found := self._cells.get(size)) is None:
            found = self._cells[size] = Cell()
        return found

    def add(self, num_rows: int, depth: int, seconds: float) -> None:
        """Learn from a round of ``num_rows`` rows whose deepest has ``depth`` drafts."""
        cell = self.cell(num_rows)
        cell.rounds += 1
        cell.add(depth, seconds / num_rows)

    def add_after_drafts(self, num_rows: int, seconds: float) -> None:
        """Learn from a plain round that followed one with drafts, and does some of its work."""
        cell = self.cell(num_rows)
        cell.rounds += 1
        cell.add_after_drafts(seconds / num_rows)

    def plain_seconds(self, num_rows: int) -> float | None:
        """What a plain round takes; None while nothing at all is known of so many rows.

        Of fewer rows than any that are known it takes no more than of those.
        """
        plain = self.cell(num_rows).plain()
        if plain is None and (known := self._nearest(num_rows, knows_drafts=False)) is not None:
            other, cell = known
            plain = cell.plain()
            num_rows = other if other > SIMILAR * num_rows else num_rows
        return None if plain is None else plain * num_rows

    def in_plain_rounds(self, num_rows: int, depth: int, seconds: float) -> float:
        """What a round took, in plain rounds of the same moment, if there were any.

        Else, machines changing their speed, what such rounds take otherwise.
        """
        plain = self.cell(num_rows).plain_lately()
        return self.guess(num_rows, depth).ratio if plain is None else seconds / (plain * num_rows)

    def guess(self, num_rows: int, depth: int) -> Guess:
        """Return what a round with ``depth`` drafts takes."""
        ratios = self.cell(num_rows).ratios()
        if depth in ratios:
            return Guess(ratios[depth], ratios[depth], measured=True, trusted=True)
        if depth == 0:
            return Guess(1.0, 1.0, measured=False, trusted=True)
        known = self._nearest(num_rows, knows_drafts=True)
        others = {} if known is None else known[1].ratios()
        is_far = len(ratios) < 2 and known is not None and known[0] > SIMILAR * num_rows
        if depth in others:
            assert known is not None
            scale = _scale(ratios, others)
            if scale is None:
                scale = 1 - SPARED * max(0.0, 1 - alike(num_rows) / known[0])
            ratio = 1 + scale * (others[depth] - 1)
        elif max(len(ratios), len(others)) > 1:
            first = FIRST_AHEAD if self.runs_ahead else FIRST_DRAFT
            ratio = _along(ratios if len(ratios) > 1 else others, depth, first)
        else:
            price = min(MOST_ASSUMED, ASSUMED + ASSUMED_PER_ROW * num_rows) * depth
            return Guess(1 + price, 1 + DOUBT_ASSUMED * price, measured=False, trusted=False)
        least = 1 + (DOUBT_FAR if is_far else DOUBT_MEASURED) * (ratio - 1)
        return Guess(ratio, least, measured=False, trusted=depth in others, far=is_far)

    def _nearest(self, num_rows: int, *, knows_drafts: bool) -> tuple[int, Cell] | None:
        """The number of rows from which others are taken over, and what is known of it.

        That is a similar number, or the nearest larger one.
        """
        size = alike(num_rows)
        others = [
            (max(size, other) / min(size, other), other)
            for other, cell in self._cells.items()
            if other != size
            and size <= SIMILAR * other
            and cell.plain() is not None
            and (len(cell.ratios()) > 1 or not knows_drafts)
        ]
        return (found := min(others)[1], self._cells[found]) if others else None


def _rising(ratios: dict[int, float]) -> dict[int, float]:
    """The same, with the mean where a deeper round seems to take less than a shallower one."""
    pools: list[list[float]] = []  # ratios that are taken for one
    for ratio in ratios.values():
        pools.append([ratio])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    means = [fmean(pool) for pool in pools for _ in pool]
    return dict(zip(ratios, means, strict=True))


def _scale(ratios: dict[int, float], others: dict[int, float]) -> float | None:
    """How much dearer drafts are than with ``others``, by the depths that both know."""
    shared = [d for d in ratios if d and others.get(d, 0.0) > 1.0]
    if not shared:
        return None
    return max(0.0, median((ratios[d] - 1) / (others[d] - 1) for d in shared))


def _along(ratios: dict[int, float], depth: int, first: float) -> float:
    """The ratio at ``depth`` on the line through those of the nearest depths.

    ``first``: such a share of one draft's surcharge is for drafting at all.
    """
    known = [one for one in ratios if one > 0]
    if depth < known[0]:
        share = first + (1 - first) * depth / known[0]
        return 1 + share * (ratios[known[0]] - 1)
    if depth > known[-1]:
        last = known[-1]
        if len(known) > 1:
            slope = (ratios[last] - ratios[known[-2]]) / (last - known[-2])
        else:
            slope = (1 - first) * (ratios[last] - 1) / last
        return ratios[last] + max(0.0, slope) * (depth - last)
    low = max(one for one in known if one < depth)
    high = min(one for one in known if one > depth)
    return ratios[low] + (ratios[high] - ratios[low]) * (depth - low) / (high - low)


def alike(num_rows: int) -> int:
    """Rounds of 1 to 8 rows are told apart; wider ones by the half power of two they fill."""
    if num_rows <= 8:
        return num_rows
    power = 1 << (num_rows.bit_length() - 1)
    return power if num_rows < power * 3 // 2 else power * 3 // 2
