"""What a shared prefix saves: prompt tokens computed, blocks held, time to first token, step time.

Users 1, 4, 16, 64 who all come at once, with one prefix and a few words of their own: with nothing
cached (``cold``), with the prefix cached (``hit``), likewise but with every row reading its own
blocks (``hit_apart``), with the cache off (``off``), and mlx-lm's ``batch_generate`` with the same
BLAS. Then conversations, and what the cache costs where nothing is shared.

Cache off and mlx-lm compute every prompt whole, so they run with as many users as ``--most-tokens``
allows: for more, the line is ``capped``, says how many ``users`` each side had, and its ratios
compare seconds a user. Small cases are measured ``--repeats`` times, in turns; their ratios have an
interval. ``--most-tokens`` bounds how long all of it takes.

    python -m benchmarks.prefix
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from engine import Engine, blas

from .conversations import run_conversations
from .pairs import measure_pairs, ratio_of
from .sides import PARAMS, Prompts, Result, Sides, run_ours

OWN_WORDS = 12


def make_prompts(users: int, prefix: int, first: int = 0) -> Prompts:
    """Prompts of made-up ids: ``prefix`` that all share, then each user's own."""
    shared = [(31 * place + 5) % 8000 + 1 for place in range(prefix)]
    return [
        shared + [(17 * place + 101 * user + 3) % 8000 + 1 for place in range(OWN_WORDS)]
        for user in range(first, first + users)
    ]


@dataclass(frozen=True, slots=True)
class Case:
    """So many users of so long a prefix."""

    users: int
    prefix: int

    @property
    def prompt_tokens(self) -> int:
        """Of all users together."""
        return self.users * (self.prefix + OWN_WORDS)


def run_case(sides: Sides, case: Case, most_tokens: int, whole: Result, repeats: int) -> Result:
    """Measure one case; ``whole`` keeps what whole prompts cost at the largest size allowed."""
    prompts = make_prompts(case.users, case.prefix)
    others = make_prompts(case.users, case.prefix, first=1000)
    strangers = make_prompts(case.users, case.prefix, first=2000)
    fits = case.prompt_tokens <= most_tokens
    repeats = repeats if 2 * repeats * case.prompt_tokens <= most_tokens else 1
    runs: list[Result] = []
    for _ in range(repeats):
        run = {"cold": sides.cold(prompts)}
        run["hit"] = sides.hit(others)
        run["hit_apart"] = sides.hit(strangers, apart=True)
        if fits:
            run |= {"off": run_ours(sides.off, prompts), "mlx_lm": sides.mlx_lm(prompts)}
        runs.append(run)
    if fits:
        whole |= {name: runs[-1][name] for name in ("off", "mlx_lm")}
    runs = [{**whole, **run} for run in runs]
    result: Result = {"users": case.users, "prefix": case.prefix, "repeats": repeats}
    result["capped"] = not fits
    result |= sorted(runs, key=lambda run: run["cold"]["total_s"])[len(runs) // 2]
    for name in ("off", "mlx_lm"):
        for ours in ("cold", "hit"):
            pairs = [(1 / per_user(run[ours]), 1 / per_user(run[name])) for run in runs]
            result[f"{ours}_over_{name}"] = ratio(pairs)
    pairs = [(1 / per_user(run["hit"]), 1 / per_user(run["hit_apart"])) for run in runs]
    result["hit_over_hit_apart"] = ratio(pairs)
    return result


def per_user(side: Result) -> float:
    """Seconds a user."""
    seconds: float = side["total_s"] / side["users"]
    return seconds


def ratio(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """The median ratio and, of several pairs, its interval."""
    found = ratio_of(pairs)
    bounds = [found.low, found.high] if len(pairs) > 1 else []
    return [round(one, 2) for one in (found.ratio, *bounds)]


def cold_cost(sides: Sides, pairs: int) -> Result:
    """Throughput with the cache on over off, where no two prompts share anything."""
    salt = iter(range(1, 1 << 30))

    def rate(engine: Engine) -> float:
        start = next(salt)
        prompts = [
            [(7919 * start + 104729 * user + 31 * place) % 8000 + 1 for place in range(100)]
            for user in range(8)
        ]
        begin = time.perf_counter()
        answers = list(engine.generate(prompts, PARAMS))
        return sum(len(a.token_ids) for a in answers) / (time.perf_counter() - begin)

    return asdict(measure_pairs(lambda: rate(sides.on), lambda: rate(sides.off), pairs))


def main() -> None:
    arguments = _arguments()
    used = str(blas.current()).split(" from ")[0]

    def say(case: str, result: Result) -> None:
        line = {"benchmark": "prefix", "case": case, "blas": used, **result}
        print(json.dumps(line), flush=True)

    sides = Sides(max(*arguments.users, arguments.conversations), arguments.most_tokens)
    if arguments.pairs:
        say("nothing shared, cache on over off", cold_cost(sides, arguments.pairs))
    for prefix in arguments.prefix:
        whole: Result = {}
        for users in sorted(arguments.users):
            case = Case(users, prefix)
            result = run_case(sides, case, arguments.most_tokens, whole, arguments.repeats)
            say("one prefix", result)
    if arguments.conversations:
        say("conversations", run_conversations(sides, arguments.conversations, 4, 512, 64))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prefix", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--most-tokens", type=int, default=17_500, help="see above")
    parser.add_argument("--repeats", type=int, default=3, help="of cases that are small enough")
    parser.add_argument("--conversations", type=int, default=8, help="users; 0 to leave them out")
    parser.add_argument("--pairs", type=int, default=7, help="of the first line; 0 to leave it out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
