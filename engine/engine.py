"""The engine: submit requests, step, read what they gained.

A step is plan -> execute -> commit. An engine is used from the thread that loaded it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from scheduler.adaptive_depth import AdaptiveDepth
from scheduler.round import Commit, Round, Verdict
from scheduler.scheduler import Scheduler

from . import reading, together
from .acceptance import make_acceptance
from .answer import Answer, Delta
from .build import Parts, build
from .detokenizer import Detokenizer
from .errors import RequestError
from .output import Output
from .phases import Phases
from .prompt_reader import Pooling, PromptReader
from .run import Run
from .runs import Runs
from .sampling_params import SamplingParams
from .statistics import EngineStats, StepCounter
from .submission import Prompt, Submission, Submitter
from .telling import Teller
from .undelivered import Undelivered

logger = logging.getLogger("octavo")


class Engine:
    """Decodes many requests at once with one loaded model. Make one with ``Engine.load``."""

    def __init__(self, parts: Parts, clock: Callable[[], float] = time.monotonic) -> None:
        self.parts = parts
        self._policy = parts.make_depth_policy()
        self.scheduler = Scheduler(parts.scheduler_config, self._policy)
        self._phases = Phases(clock)
        parts.executor.attach(
            lambda seq_id: self.scheduler.sequences[seq_id].tokens,
            self._phases,
            self._policy.affordable if isinstance(self._policy, AdaptiveDepth) else None,
        )
        self._submitter = Submitter(parts.loaded)
        self._clock = clock
        self.runs = Runs()
        rule, vocab_size = parts.options.acceptance, parts.loaded.vocab_size
        self._output = Output(self.runs.by_sequence, make_acceptance(rule, vocab_size), vocab_size)
        self.undelivered = Undelivered()
        self._teller = Teller(self.scheduler, self.runs, self.undelivered, parts.executor.forget)
        self._counter = StepCounter()
        self._detokenizer = Detokenizer(self.tokenizer)

    @classmethod
    def load(cls, model: str = "demo", **options: Any) -> "Engine":
        """Load ``model`` (``demo``, a local folder, a hub name) and size its memory.

        Options are those of ``EngineOptions``. Raises ModelError, naming the file, tensor or field
        that is wrong, and ValueError for options out of range.
        """
        return cls(build(model, **options))

    @property
    def model(self) -> Any:
        """mlx-lm's own model object."""
        return self.parts.loaded.model

    @property
    def tokenizer(self) -> Any:
        """mlx-lm's own tokenizer (a TokenizerWrapper)."""
        return self.parts.loaded.tokenizer

    @property
    def model_name(self) -> str:
        """The name the model was loaded by."""
        return self.parts.loaded.name

    @property
    def max_context(self) -> int:
        """The most tokens a prompt and its answer may have together."""
        assert self.parts.scheduler_config.max_context is not None
        return self.parts.scheduler_config.max_context

    @property
    def eos_ids(self) -> frozenset[int]:
        """Token ids that end an answer with reason ``eos``."""
        return self.parts.loaded.eos_ids

    @property
    def has_work(self) -> bool:
        """Whether step() still brings something; False if all that is left is paused."""
        return bool(self.undelivered) or self.scheduler.has_work

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        tenant: str = "",
        emitted: Sequence[int] = (),
    ) -> str:
        """Let a request wait for its turn; return its id.

        ``emitted`` are tokens that an earlier run of the same request already gave out. Raises
        RequestError, saying what was wrong, and then nothing has changed.
        """
        if request_id is None:
            request_id = self.runs.new_id()
        if request_id in self.runs:
            raise RequestError(f"request_id {request_id!r} is already running")
        ready = self._submitter.prepare(
            prompt,
            params,
            request_id=request_id,
            tenant=tenant,
            emitted=emitted,
            now=self._clock(),
        )
        return self._start(ready)

    def submit_reader(
        self, prompt: Prompt, reader: PromptReader, *, max_cached: int | None = None
    ) -> str:
        """Let a prompt wait to be shown to ``reader``, from position ``max_cached`` on (0: whole).

        The request ends, with one token nobody needs, once the reader has seen it all.
        """
        ready = self._submitter.prepare(
            prompt,
            SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
            request_id=self.runs.new_id(),
            tenant="",
            emitted=(),
            now=self._clock(),
            reader=reader,
            max_cached=max_cached,
        )
        return self._start(ready)

    def embed(
        self, texts: Sequence[Prompt], *, pooling: Pooling = "mean", normalize: bool = True
    ) -> npt.NDArray[np.float32]:
        """Return a vector for each text, (texts, hidden size); see reading.embed."""
        return reading.embed(self, texts, pooling=pooling, normalize=normalize)

    def score(self, prompt: Prompt, continuations: Sequence[Prompt]) -> list[float]:
        """Return the log-probability of each continuation of ``prompt``; see reading.score."""
        return reading.score(self, prompt, continuations)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a text, of chat messages, or of ids as they are."""
        return self._submitter.encode(prompt)

    def _start(self, ready: Submission) -> str:
        request_id = ready.request.request_id
        runs = [Run.start(ready, index, self._detokenizer) for index in range(ready.request.n)]
        try:
            seq_ids = self.scheduler.submit(ready.request)
        except ValueError as error:
            raise RequestError(str(error)) from error
        self.runs.begin(request_id, seq_ids, runs)
        for seq_id, run in zip(seq_ids, runs, strict=True):
            if run.ended is not None:
                self.scheduler.cancel(seq_id)
        return request_id

    def has_begun(self, request_id: str) -> bool:
        """Whether a request waits no longer for its first round. True once it has ended."""
        known = self.scheduler.sequences
        samples = [known.get(seq_id) for seq_id in self.runs.sequences(request_id)]
        return not samples or any(sample is None or sample.started for sample in samples)

    def cancel(self, request_id: str) -> None:
        """End a request; its last deltas come from a later step. Unknown ids are ignored."""
        for seq_id in self.runs.sequences(request_id):
            self.scheduler.cancel(seq_id)

    def pause(self, request_id: str) -> None:
        """Give a request no more steps until it is resumed. Unknown ids are ignored."""
        for seq_id in self.runs.sequences(request_id):
            self.scheduler.pause(seq_id)

    def resume(self, request_id: str) -> None:
        """End a pause. Unknown ids are ignored."""
        for seq_id in self.runs.sequences(request_id):
            self.scheduler.resume(seq_id)

    def seed_of(self, request_id: str) -> int:
        """Return the seed of a running request. Raises KeyError if it has ended."""
        return self.runs.seed(request_id)

    def step(self) -> list[Delta]:
        """Run one round; return what each sample gained. Empty when there is nothing to do.

        What generate() waits for is not among it.
        """
        self._advance()
        return self.undelivered.take()

    def step_for(self, inbox: list[Delta]) -> list[Delta]:
        """Return what has come into ``inbox`` of ``undelivered``, or else what a round brings."""
        if not inbox:
            self._advance()
        found = inbox[:]
        inbox.clear()
        return found

    def _advance(self) -> None:
        if (left := self.scheduler.ledger.in_flight) is not None:  # by a step that was interrupted
            self._tell(self._undo(left))
        self._tell(self.scheduler.take_ended())  # before plan() forgets them
        with self._phases.during("plan"):
            round_ = self.scheduler.plan(self._clock())
        self._tell(self.scheduler.take_ended())
        if round_ is not None:
            self._tell(self._execute(round_))

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[Answer]:
        """Decode all ``prompts`` together; yield the answers in their order, n for each prompt.

        ``params`` holds for all prompts, or is a sequence of one for each. Between two answers the
        engine may do anything else; deltas of requests that were submitted apart wait for the next
        step(). Leaving early cancels what is not done.
        """
        return together.generate(self, prompts, params)

    def stats(self) -> EngineStats:
        """Plain numbers, now and since loading."""
        peak = mx.get_peak_memory()
        return self._counter.stats(self.scheduler.stats(), self._phases.seconds, peak)

    def describe(self) -> Mapping[str, Any]:
        """What was loaded: layers and their methods, memory, device, BLAS."""
        return self.parts.describe()

    def _execute(self, round_: Round) -> list[Commit]:
        """Run a round and commit it; a round that raised is undone and tried again."""
        started, runs = self._clock(), self.runs.by_sequence
        self._output.begin_round(row.seq_id for row in round_.rows)
        try:
            with self._phases.during("build"):
                verdicts = self._run(round_)
            with self._phases.during("text"):
                verdicts = [runs[verdict.seq_id].read(verdict) for verdict in verdicts]
            seconds = self._clock() - started
            self._counter.count(round_, verdicts, seconds)
            with self._phases.during("commit"):
                if isinstance(self._policy, AdaptiveDepth):
                    self._policy.observe_round(round_, verdicts, seconds)
        except Exception:
            logger.exception("a round of %d rows failed and is undone", len(round_.rows))
            return self._undo(round_)
        except BaseException:  # the step was interrupted: the next one goes on
            self._tell(self._undo(round_))
            raise
        with self._phases.during("commit"):
            commits = self.scheduler.commit(verdicts)
        self.parts.executor.keep(self.scheduler.launched)
        return commits

    def _run(self, round_: Round) -> list[Verdict]:
        """Run a round; where rounds run ahead, launch of the next what is certain, then read."""
        executor, output = self.parts.executor, self._output
        if not self.parts.runs_ahead:
            return executor.run(round_, output.pick, output.choose, output.listen)
        drafts = executor.launch(round_, output)
        with self._phases.during("plan"):
            ahead = self.scheduler.plan_ahead(drafts=drafts)
        if ahead is not None:
            executor.launch(ahead, output)
        return executor.read(round_, output)

    def _undo(self, round_: Round) -> list[Commit]:
        """Undo the round in flight, and with it what was launched on top of it."""
        commits = self.scheduler.fail()
        self.parts.executor.undo(round_, self.scheduler.launched)
        for row in round_.rows:
            sequence, run = self.scheduler.sequences[row.seq_id], self.runs.by_sequence[row.seq_id]
            run.undo(sequence.tokens[sequence.num_prompt :])
        return commits

    def _tell(self, commits: Sequence[Commit]) -> None:
        with self._phases.during("text"):
            self._teller.tell(commits)
