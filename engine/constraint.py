"""Constrained output: a JSON schema, regex or Lark grammar says which tokens may come next.

llguidance compiles and matches. It was chosen over xgrammar because it needs nothing else (xgrammar
imports torch), is one 3 MB wheel for every Python on Linux and macOS, takes all three kinds of
constraint, refuses schema keywords it cannot enforce, and rolls back.
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from .constraint_recursion import has_finite_value
from .errors import EngineError, RequestError
from .sampling_params import SamplingParams

Mask = npt.NDArray[np.bool_]

_WHITESPACE = r" |\n {0,40}"
"""Between JSON's tokens: one space, or a new line and its indentation. Unbounded whitespace would
let a model that has lost its way emit blanks until max_tokens."""

_MAX_KEPT = 64


class ConstraintError(EngineError):
    """A grammar that became too complex while it was matched, or was advanced illegally."""


class ConstraintCompiler:
    """Compiles constraints for one model; keeps the last ones, since requests repeat them.

    ``vocab_size`` is the width of the logits, ``eos_ids`` the model's end-of-sequence ids.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_ids = frozenset(eos_ids)
        self._shared: llguidance.LLTokenizer | None = None  # a second to build at 150,000 ids
        self._kept: OrderedDict[tuple[str, str], llguidance.LLMatcher] = OrderedDict()

    def compile(self, params: SamplingParams) -> "Matcher | None":
        """Return the matcher of a new sequence, or None if ``params`` ask for no constraint.

        Raises RequestError for a constraint that is broken, that no finite output satisfies, or
        that uses what cannot be enforced; and for parameters that contradict any constraint.
        """
        for name in ("json_schema", "regex", "grammar"):
            text: str | None = getattr(params, name)
            if text is not None:
                _check_parameters(params, name)
                return Matcher(self._matcher(name, text), self)
        return None

    def _matcher(self, name: str, text: str) -> llguidance.LLMatcher:
        matcher = self._kept.pop((name, text), None)
        if matcher is None:
            matcher = self._compile(name, text)
        self._kept[name, text] = matcher
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return matcher

    def _compile(self, name: str, text: str) -> llguidance.LLMatcher:
        grammar, limits = _grammar(name, text), llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(self._vocabulary(), grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refusal(name, _reason(matcher))
        allowed = np.flatnonzero(_bits(matcher, self.vocab_size))
        if self.eos_ids.issuperset(allowed.tolist()):
            raise _refusal(name, "nothing but perhaps an empty output satisfies it")
        if matcher.is_error():
            raise _refusal(name, _reason(matcher))
        return matcher

    def _vocabulary(self) -> llguidance.LLTokenizer:
        if self._shared is None:
            backend = getattr(self._tokenizer, "backend_tokenizer", None)
            if backend is None or not hasattr(backend, "to_str"):
                raise RequestError("constrained output needs a model with a tokenizer.json")
            description = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
            self._shared = llguidance.LLTokenizer(
                json.dumps(description), n_vocab=self.vocab_size, eos_token=sorted(self.eos_ids)
            )
        return self._shared


class Matcher:
    """Where one sequence stands in its grammar.

    Rules: only committed tokens stay; drafts are tried and rolled back. An end-of-sequence id is
    allowed exactly where the grammar is satisfied, and ends the match: nothing may follow.
    """

    def __init__(self, start: llguidance.LLMatcher, compiler: ConstraintCompiler) -> None:
        self._start = start  # shared: stays where it is
        self._matcher = start.deep_copy()
        self._compiler = compiler
        self._tokens: list[int] = []
        self._ended = False  # the last token is an end-of-sequence id

    @property
    def ended(self) -> bool:
        """Whether an end-of-sequence id has ended the match."""
        return self._ended

    @property
    def num_tokens(self) -> int:
        """How many tokens it was advanced by."""
        return len(self._tokens)

    @property
    def satisfied(self) -> bool:
        """Whether the tokens so far are a whole output, so that it may end here."""
        return self._ended or self._matcher.is_accepting()

    def mask(self) -> Mask:
        """Return which tokens may come next, [vocab_size]; none after the end.

        Raises ConstraintError if the grammar needs more work a token than it may have.
        """
        if self._ended:
            return np.zeros(self._compiler.vocab_size, np.bool_)
        mask = _bits(self._matcher, self._compiler.vocab_size)
        self._check()
        return mask

    def try_advance(self, tokens: Sequence[int]) -> int:
        """Advance by ``tokens`` as far as they are allowed; return how many were."""
        num_before = len(self._tokens)
        for token in map(int, tokens):
            if self._ended:
                break
            if token in self._compiler.eos_ids:
                self._ended = self._matcher.is_accepting()
                if not self._ended:
                    break
            elif not self._matcher.try_consume_tokens([token]):
                self._check()
                break
            self._tokens.append(token)
        return len(self._tokens) - num_before

    def advance(self, tokens: Sequence[int]) -> None:
        """Advance by committed ``tokens``. Raises ConstraintError, and stays, if one is refused."""
        num_advanced = self.try_advance(tokens)
        if num_advanced < len(tokens):
            self.rollback(num_advanced)
            state = "has ended" if self._ended else f"refuses token {tokens[num_advanced]}"
            raise ConstraintError(f"the grammar {state} after {len(self._tokens)} tokens")

    def rollback(self, num_tokens: int) -> None:
        """Take the last ``num_tokens`` back. Raises ValueError if there are not so many."""
        if not 0 <= num_tokens <= len(self._tokens):
            raise ValueError(f"{num_tokens} tokens to take back of {len(self._tokens)}")
        if not num_tokens:
            return
        num_consumed = num_tokens - self._ended
        if num_consumed and not self._matcher.rollback(num_consumed):
            raise ConstraintError(f"the grammar cannot go back: {_reason(self._matcher)}")
        self._ended = False
        del self._tokens[-num_tokens:]

    def restore(self, num_tokens: int) -> None:
        """Stand after the first ``num_tokens`` again; an error that came later is forgotten."""
        tokens, self._tokens = self._tokens[:num_tokens], []
        self._matcher, self._ended = self._start.deep_copy(), False
        self.advance(tokens)

    def fork(self) -> "Matcher":
        """Return a matcher that goes its own way from here."""
        other = Matcher(self._start, self._compiler)
        other._matcher = self._matcher.deep_copy()
        other._tokens, other._ended = self._tokens[:], self._ended
        return other

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(f"the grammar cannot be matched: {_reason(self._matcher)}")


def _bits(matcher: llguidance.LLMatcher, vocab_size: int) -> Mask:
    words = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return np.unpackbits(words, bitorder="little", count=vocab_size).view(np.bool_)


def _reason(matcher: llguidance.LLMatcher) -> str:
    return matcher.get_error().partition("<non-verbose/>")[0].strip()


def _grammar(name: str, text: str) -> str:
    if name == "regex":
        return llguidance.LLMatcher.grammar_from_regex(text)
    if name == "grammar":
        return llguidance.LLMatcher.grammar_from_lark(text)
    try:
        schema = json.loads(text)
        finite = has_finite_value(schema)
    except ValueError as error:
        raise _refusal(name, f"it is not JSON: {error}") from None
    except RecursionError:
        raise _refusal(name, "it is nested too deep") from None
    if not isinstance(schema, dict | bool):
        raise _refusal(name, "it is neither an object nor true or false")
    if schema is False:
        raise _refusal(name, "it is false: no value satisfies it")
    if not finite:
        raise _refusal(
            name, "it refers to itself without end, so that no finite value satisfies it"
        )
    options: Any = {"whitespace_pattern": _WHITESPACE}
    return llguidance.LLMatcher.grammar_from_json_schema(
        schema if isinstance(schema, dict) else {}, options
    )


def _refusal(name: str, reason: str) -> RequestError:
    return RequestError(f"{name} cannot constrain the output: {reason}")


def _check_parameters(params: SamplingParams, name: str) -> None:
    if params.ignore_eos:
        raise RequestError(f"ignore_eos is True: with {name} it must be False")
    if params.min_tokens:
        raise RequestError(
            f"min_tokens is {params.min_tokens}: with {name}, which says when the output may end, "
            "it must be 0"
        )
