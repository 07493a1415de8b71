import pytest

from engine import Engine, SamplingParams
from engine.phases import PHASES, Phases, PhaseSeconds
from engine.statistics import StepCounter
from scheduler.round import Round, Row, Verdict
from scheduler.scheduler import Scheduler, SchedulerConfig


def test_a_phase_inside_another_interrupts_it() -> None:
    times = iter([10.0, 11.0, 15.0, 17.5])  # build from, device from, device to, build to
    phases = Phases(lambda: next(times))

    with phases.during("build"), phases.during("device"):
        pass

    assert phases.seconds == PhaseSeconds(build_seconds=1.0 + 2.5, device_seconds=4.0)


def test_time_between_phases_belongs_to_none() -> None:
    times = iter([0.0, 1.0, 50.0, 52.0])
    phases = Phases(lambda: next(times))

    with phases.during("plan"):
        pass
    with phases.during("plan"):
        pass

    assert phases.seconds == PhaseSeconds(plan_seconds=3.0)


def test_a_phase_that_raises_has_ended() -> None:
    times = iter([0.0, 1.0, 50.0, 52.0])
    phases = Phases(lambda: next(times))

    with pytest.raises(RuntimeError), phases.during("device"):
        raise RuntimeError
    with phases.during("text"):
        pass

    assert phases.seconds == PhaseSeconds(device_seconds=1.0, text_seconds=2.0)


def test_drafts_are_counted_by_their_position_in_the_window() -> None:
    counter = StepCounter()
    round_ = Round((Row(1, (5,), 0, (1,)),))
    counter.count(round_, [Verdict(1, (7, 8, 9), num_drafted=3, num_accepted=2)], 0.5)
    counter.count(round_, [Verdict(1, (7,), num_drafted=1), Verdict(2, (7,))], 0.5)
    stats = counter.stats(
        Scheduler(SchedulerConfig(num_blocks=2, max_rows=1)).stats(), PhaseSeconds(), 0
    )

    assert stats.drafted_by_position == (2, 1, 1)
    assert stats.accepted_by_position == (1, 1, 0)


def test_an_engine_charges_every_phase_of_its_steps_and_says_who_has_begun() -> None:
    engine = Engine.load("demo", max_rows=1, max_context=128, speculate=1)
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    for name in ("first", "second"):
        engine.submit("The sea", params, request_id=name)
    assert [engine.has_begun(name) for name in ("first", "second")] == [False, False]

    engine.step()
    assert [engine.has_begun(name) for name in ("first", "second")] == [True, False]
    while engine.has_work:
        engine.step()

    assert engine.has_begun("second")
    seconds = engine.stats().phases
    for phase in PHASES:
        assert getattr(seconds, f"{phase}_seconds") > 0, phase
