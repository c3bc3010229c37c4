"""One function's life: its observations, the answers for it, and how right the answers were.

Pure and synchronous: it reads no clock and does no I/O, so that a replay of the same observations gives the
same answers.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from libra_predictor import labels
from libra_predictor.choice import Fit, first_cpu_time, fit, missable
from libra_predictor.estimators import INHERITED, MOVING_WINDOW, NO_ESTIMATOR
from libra_predictor.evidence import shifted, spared
from libra_predictor.history import Call
from libra_predictor.labels import Resource
from libra_predictor.observations import Sample, id_order
from libra_predictor.past import LATELY, STARTUPS, Packed, Past, PastState
from libra_predictor.published import Answers, Published, Record, Stage
from libra_predictor.settings import Settings
from libra_predictor.tables import constant

_NOTHING = Answers(constant(0), constant(0), constant(0), (0, 0, 0))
_DRIFT_MISSES = 3  # of the last LATELY calls
_GROWTH = 0.25  # by which a window that is not full grows before the next refit
_OVERDUE = 2  # windows of calls that a refit may wait for
_YOUNG = 60  # calls: with fewer in the window, each refit still changes much
_RECENT = 40  # newest calls, in which to look for a shift
_FORGET_AFTER = 30  # calls since a drift, before older ones are forgotten
_CONFIRMED_SHARE = 0.25  # of the calls since a drift: if the old answers miss as many, it was one
_RESOURCES = ("CPU", "memory")


class Haste(IntEnum):
    """How soon a due refit should run: the lowest goes first."""

    # Much is still to be learned: the function is young, has no answers, or nothing that it learned from is
    # left.
    NOW = 0
    SOON = 1  # its answers no longer fit, or its window is not full
    WHENEVER = 2  # its calls are like those that it learned from


@dataclass(frozen=True, slots=True)
class Scored:
    """How the answer that was published at the time did on an observation."""

    repeated: bool = False  # applied before, so nothing has changed
    # None without an answer, for an input larger than any learned from, at the start-up of a container, or if
    # the demand was not seen, unless it was seen to exceed the answer.
    missed_cpu: bool | None = None
    missed_memory: bool | None = None
    error_cpu: float | None = None  # answer - option needed, in options; if censored, it may be lower still
    error_memory: float | None = None
    error_duration: float | None = None  # answer / actual - 1; None also for a throttled run
    ratio_cpu_time: float | None = None  # answer / used


@dataclass(frozen=True, slots=True)
class Fitted:
    """The outcome of a refit, to be adopted by the function that started it."""

    fit: Fit
    observed: int  # all usable observations of the function until the refit started
    calls: Sequence[Call]  # those of them that it learned from


class Drift(BaseModel):
    """A drift that was noticed, while the window still has calls from before it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    since: int  # the number of the first observation that was missed
    answers: Answers  # when it was noticed, without the offset


class FunctionState(PastState):
    """The complete state of a Function, for a store."""

    format: Literal[1, 2, 3, 4] = 4  # before 3, answers have no largest size
    name: str
    configuration: str
    learned_to: str
    last_milliseconds: int
    published: Published
    answers: Answers  # without the offset
    inherited: Answers | None
    memory_floor: int = 0  # from releases that never answered less memory than was ever used
    observed: int
    estimators: tuple[str, str, str]
    since_refit: int
    due_after: int
    urgent: int
    drift: Drift | None
    # The settings that the answers were made with. Entries older than these settings have the defaults.
    estimator: str = "auto"
    durations: str = "predicted"
    cpu_time_estimator: str = NO_ESTIMATOR


class Function:
    """Learns one function and publishes its answers. Not safe for use from two threads at once.

    learned_to is the ID of the newest stream entry that was applied, last_milliseconds that entry's time, and
    published has the current answers.
    """

    def __init__(
        self, name: str, configuration: str, settings: Settings, inherited: Answers | None = None
    ) -> None:
        self.name = name
        self.configuration = configuration
        self.learned_to = "0-0"
        self.last_milliseconds = 0
        self._settings = settings
        self._resources = (
            Resource(labels.cpu, settings.cpu_step_milli, settings.largest_cpu_milli),
            Resource(labels.memory, settings.memory_step_bytes, settings.largest_memory_bytes),
        )
        self._inherited = inherited
        self._answers = inherited or _NOTHING  # without the offset
        self._kept: Past | Packed = Past(settings)
        self._estimators = (INHERITED if inherited else NO_ESTIMATOR,) * 3
        self._cpu_time_estimator = NO_ESTIMATOR
        if inherited and inherited.unknown_cpu_time_us:
            self._cpu_time_estimator = INHERITED
        self._observed = 0
        self._since_refit = 0
        self._due_after = min(settings.min_observations, settings.window)
        # The number of the observation up to which the window may have calls from before a shift. Not stored:
        # a shift is noticed again.
        self._unsettled_to = 0
        # For CPU and memory, by how much the last refit's answers fell short of its calls at most; None if it
        # had few. Not stored: without it, only misses tell of a drift until the next refit.
        self._shortfall: list[int | None] = [None, None]
        self._urgent = 0  # the number of the last observation that asked for a refit at once; 0 for none
        self._drift: Drift | None = None
        none = Record(self._estimators[0])
        self.published = Published(
            function=name,
            configuration=configuration,
            version=0,
            stage=Stage.PROFILING,
            reason=self._profiling(),
            answers=self._answers,
            offset=(0, 0),
            largest=self._most(),
            observations=0,
            censored=0,
            cpu=none,
            memory=none,
            duration=none,
            gate=None,
            cpu_time=Record(self._cpu_time_estimator),
        )

    def observe(self, entry_id: str, sample: Sample) -> Scored:
        """Applies an observation. Raises ValueError if entry_id is not the ID of a stream entry."""
        position = id_order(entry_id)
        if position <= id_order(self.learned_to):
            return Scored(repeated=True)
        self.learned_to = entry_id
        self.last_milliseconds = position[0]
        raw = self._answers.at(sample.size)
        scored = Scored()
        stage, reason = self.published.stage, self.published.reason
        if sample.first:
            self._past.startups.append(Call(sample, *raw[:2]))
            if stage is Stage.PROFILING:
                reason = self._profiling()
        else:
            scored = self._scored(sample)
            self._past.window.append(Call(sample, *raw[:2]))
            self._observed += 1
            self._since_refit += 1
            self._follow(sample, raw[:2], scored)
            stage, reason = self._aged(scored)
            self._look_for_shift()
        self._publish(stage, reason)
        return scored

    def refit_due(self) -> bool:
        """Whether a refit would teach anything new; False while there are too few observations."""
        if self._kept.known < min(self._settings.min_observations, self._settings.window):
            return False
        return self._urgent > 0 or self._since_refit >= self._due_after

    def haste(self) -> Haste:
        """How soon a refit that is due should run."""
        known, window = self._kept.known, self._settings.window
        young = known < min(_YOUNG, window) or self._settings.estimator == MOVING_WINDOW
        most = self._due_after if young else _OVERDUE * window
        if self._since_refit >= most or self.published.stage is Stage.PROFILING:
            return Haste.NOW
        unsettled = self._drift is not None or self._observed < self._unsettled_to
        soon = self._urgent or unsettled or known < window
        return Haste.SOON if soon else Haste.WHENEVER

    def start_refit(self) -> Callable[[], Fitted]:
        """Copies the calls to learn from, and returns the fit, which may run in another thread.

        A refit stays due until its outcome is adopted, even if one failed or was lost.
        """
        self._forget()
        calls = list(self._past.window)
        samples = [call.sample for call in calls]
        resources, largest = self._resources, self._largest()
        settings, inherited, observed = self._settings, self._inherited, self._observed

        def work() -> Fitted:
            learned = fit(samples, resources, largest, settings.estimator, inherited, settings.durations)
            return Fitted(learned, observed, calls)

        return work

    def adopt(self, fitted: Fitted) -> None:
        """Publishes the outcome of start_refit's fit, and starts to count towards the next refit."""
        self._since_refit = self._observed - fitted.observed
        if self._urgent <= fitted.observed:
            self._urgent = 0
        grown = max(1, math.ceil(_GROWTH * len(fitted.calls)))
        self._due_after = min(self._settings.refit_every, grown)
        if self._settings.estimator == MOVING_WINDOW:
            self._due_after = 1  # otherwise its last five calls would be old ones
        self._answers = fitted.fit.answers
        changed = [i for i in range(2) if fitted.fit.estimators[i] != self._estimators[i]]
        self._estimators = fitted.fit.estimators
        self._cpu_time_estimator = fitted.fit.cpu_time_estimator
        if INHERITED not in (*self._estimators, self._cpu_time_estimator):
            self._inherited = None
        for missed in self._past.missed:
            missed.clear()
        self._derive_offsets(fitted, changed)
        self._forget_answers(changed)
        self._past.spare = (self._spared(fitted, 0), self._spared(fitted, 1))
        self.published = replace(
            self.published,
            observations=len(fitted.calls),
            censored=fitted.fit.censored,
            gate=fitted.fit.gate,
        )
        if self.published.stage is Stage.DRIFTED:
            self._publish(Stage.DRIFTED, self.published.reason)
        else:
            self._publish(Stage.MODELLED, self._modelled())

    def rest(self) -> None:
        """Packs the past: it takes less memory, but the next observation or refit takes longer."""
        if isinstance(self._kept, Past):
            self._kept = Packed(self._kept.state(), self._settings)

    @property
    def _past(self) -> Past:
        if isinstance(self._kept, Packed):
            self._kept = Past.restore(self._kept.state(), self._settings)
        return self._kept

    def state(self) -> FunctionState:
        past = self._kept.state()
        return FunctionState(
            name=self.name,
            configuration=self.configuration,
            learned_to=self.learned_to,
            last_milliseconds=self.last_milliseconds,
            published=self.published,
            answers=self._answers,
            inherited=self._inherited,
            observed=self._observed,
            window=past.window,
            startups=past.startups,
            offsets=past.offsets,
            tallies=past.tallies,
            estimators=self._estimators,
            missed=past.missed,
            since_refit=self._since_refit,
            due_after=self._due_after,
            urgent=self._urgent,
            drift=self._drift,
            estimator=self._settings.estimator,
            durations=self._settings.durations,
            cpu_time_tally=past.cpu_time_tally,
            spare=past.spare,
            cpu_time_estimator=self._cpu_time_estimator,
        )

    @classmethod
    def restore(cls, state: FunctionState, settings: Settings) -> Self:
        """The function as it was, at rest. A window longer than the settings' keeps only its newest calls.

        Answers made with another estimator or other durations than the settings' are dropped: the function
        predicts nothing until it is refitted, which is due at once if its window has enough observations.
        """
        if (state.estimator, state.durations) != (settings.estimator, settings.durations):
            return cls._learned_anew(state, settings)
        function = cls(state.name, state.configuration, settings, state.inherited)
        function.learned_to = state.learned_to
        function.last_milliseconds = state.last_milliseconds
        function.published = state.published
        # One object if they are equal, as before it was stored.
        same = state.answers == state.published.answers
        function._answers = state.published.answers if same else state.answers
        function._observed = state.observed
        function._kept = Packed(state, settings)
        function._estimators = state.estimators
        function._cpu_time_estimator = state.cpu_time_estimator
        function._since_refit = state.since_refit
        function._due_after = state.due_after
        function._urgent = state.urgent
        function._drift = state.drift
        return function

    @classmethod
    def _learned_anew(cls, state: FunctionState, settings: Settings) -> Self:
        """The function with its calls, but without its answers."""
        function = cls(state.name, state.configuration, settings)
        function.learned_to = state.learned_to
        function.last_milliseconds = state.last_milliseconds
        function._observed = state.observed
        function._past.window.extend(Call(call.sample, 0, 0) for call in state.window.calls())
        function._past.startups.extend(Call(call.sample, 0, 0) for call in state.startups.calls())
        function._since_refit = function._kept.known
        function.published = replace(function.published, version=state.published.version + 1)
        function._publish(Stage.PROFILING, function._profiling())
        function.rest()
        return function

    def _beyond(self, sample: Sample) -> bool:
        """Whether the input is larger than any learned from, so that nothing was lent by its answer."""
        return sample.size > self._answers.largest_size

    def _scored(self, sample: Sample) -> Scored:
        """Compares a sample with the published answer, and tallies the result."""
        missed: list[bool | None] = []
        errors: list[float | None] = []
        answered, beyond = self.published.at(sample.size), self._beyond(sample)
        past = self._past
        for answer, resource, tally in zip(answered[:2], self._resources, past.tallies[:2], strict=True):
            use = resource.use(sample)
            if beyond or not resource.tells(use, answer):
                missed.append(None)
                errors.append(None)
                continue
            needed = resource.option(use.peak)
            missed.append(needed > answer)
            errors.append((answer - needed) / resource.step)
            tally.add(needed > answer, (answer - needed) / resource.step)
        error = None
        predicted = self._settings.durations == "predicted"
        if predicted and answered[2] and not labels.throttled(sample):
            error = 1e6 * answered[2] / max(sample.duration_ns, 1e6) - 1
            past.tallies[2].add(error < 0, error)
        ratio = None
        cpu_time_us = self.published.answers.cpu_time_at(sample.size)
        if cpu_time_us and sample.cpu_time_ns and not sample.failed:
            ratio = 1e3 * cpu_time_us / max(sample.cpu_time_ns, 1e3)
            past.cpu_time_tally.add(ratio < 1, math.log2(ratio))
        return Scored(False, missed[0], missed[1], errors[0], errors[1], error, ratio)

    def _follow(self, sample: Sample, raw: tuple[int, int], scored: Scored) -> None:
        """Updates the offsets, and asks for a refit when a limit turned out to be too low."""
        answered, beyond = self.published.at(sample.size), self._beyond(sample)
        one_in = self._one_in()
        for i, (resource, offset) in enumerate(zip(self._resources, self._past.offsets, strict=True)):
            use = resource.use(sample)
            if use.censored:
                target = labels.target(use, resource.largest_seen(use))
                if resource.option(target) > answered[i]:
                    self._urgent = self._observed
            if raw[i] and not beyond and resource.tells(use, answered[i]):
                offset.observe(use.peak, raw[i], self._highest(i), one_in[i])
        for missed, late in zip((scored.missed_cpu, scored.missed_memory), self._past.missed, strict=True):
            if missed is not None:
                late.append(missed)

    def _aged(self, scored: Scored) -> tuple[Stage, str]:
        """The stage after an observation, with its reason."""
        if self.published.stage is Stage.PROFILING:
            return Stage.PROFILING, self._profiling()
        found, than = [list(missed) for missed in self._past.missed], "predicted"
        short = [i for i, missed in enumerate(found) if sum(missed) >= _DRIFT_MISSES]
        if not short and self._drift is None:
            found, than = self._outgrown(), "learned"
            short = [i for i, late in enumerate(found) if sum(late) >= _DRIFT_MISSES]
        if short:
            since = min(self._observed - len(late) + late.index(True) for late in found if True in late)
            self._urgent = self._observed
            if self._drift is None:
                self._drift = Drift(since=since, answers=self._answers)
            for missed in self._past.missed:
                missed.clear()
            names = " and ".join(_RESOURCES[i] for i in short)
            return (
                Stage.DRIFTED,
                f"{_DRIFT_MISSES} of the last {LATELY} calls needed more {names} than was {than}",
            )
        calm = min(LATELY, self._due_after)  # a refit forgets which calls were missed
        settled = not self._urgent and max(len(missed) for missed in self._past.missed) >= calm
        if self.published.stage is Stage.DRIFTED and not settled:
            return Stage.DRIFTED, self.published.reason
        return Stage.MODELLED, self._modelled()

    def _outgrown(self) -> list[list[bool]]:
        """Whether each of the last calls needed more than was learned, whatever the offset covers by now.

        Empty unless the last one did: no call before it can tell anything new.
        """
        since = min(self._since_refit, LATELY)
        newest = list(self._past.window)[len(self._past.window) - since :]
        return [
            [self._short(call, i, shortfall) for call in newest]
            if shortfall is not None and self._short(newest[-1], i, shortfall)
            else []
            for i, shortfall in enumerate(self._shortfall)
        ]

    def _short(self, call: Call, i: int, offset: int) -> bool:
        resource, raw = self._resources[i], self._answers.at(call.sample.size)[i]
        use = resource.use(call.sample)
        if not raw or use.censored or use.failed or self._beyond(call.sample):
            return False
        return resource.option(use.peak) > raw + offset

    def _look_for_shift(self) -> None:
        rest = self._since_refit % self._settings.refit_every
        if rest or self.published.stage is Stage.PROFILING:
            return
        calls = list(self._past.window)[-min(self._since_refit, _RECENT) :]
        if shifted(self._past.spare, calls, self._answers, self._resources):
            self._unsettled_to = self._observed + self._settings.window

    def _forget(self) -> None:
        """Drops the calls from before a drift once enough newer calls confirm it."""
        if self._drift is None:
            return
        newer = min(self._observed - self._drift.since, len(self._past.window))
        if newer < min(_FORGET_AFTER, self._settings.window):
            return
        calls = list(self._past.window)
        older, calls = calls[:-newer], calls[-newer:]
        if any(
            sum(
                resource.option(resource.use(call.sample).peak) > self._drift.answers.at(call.sample.size)[i]
                for call in calls
                if call.sample.size <= self._drift.answers.largest_size
            )
            >= _CONFIRMED_SHARE * newer
            for i, resource in enumerate(self._resources)
        ):
            # Keep calls with larger inputs than any since the drift: nothing newer is known about those.
            largest = max(call.sample.size for call in calls)
            kept = [call for call in older if call.sample.size > largest]
            self._past.window = deque([*kept, *calls], maxlen=self._settings.window)
        self._drift = None

    def _derive_offsets(self, fitted: Fitted, changed: Sequence[int]) -> None:
        """Restarts the offsets for new answers, from what those would have missed.

        changed are the resources whose estimator has changed.
        """
        unlearned = min(self._observed - fitted.observed, len(self._past.window))
        newer = list(self._past.window)[len(self._past.window) - unlearned :]
        for i, (resource, offset) in enumerate(zip(self._resources, self._past.offsets, strict=True)):
            derived: list[tuple[int, int]] = []
            for position, answer in sorted(fitted.fit.held_out[i].items()):
                call = fitted.calls[position]
                # A held-out answer was learned from half of the window, so the answer that the call met may
                # be the better one, unless answers have fallen since.
                met = 0 if i in changed else (call.cpu_milli, call.memory_bytes)[i]
                met = min(met, self._answers.at(call.sample.size)[i])
                derived.append((resource.use(call.sample).peak, max(answer, met)))
            for call in newer:
                use, raw = resource.use(call.sample), self._answers.at(call.sample.size)[i]
                if resource.tells(use, raw) and not self._beyond(call.sample):
                    derived.append((use.peak, raw))
            offset.derive(derived)
            shortfalls = [resource.option(peak) - raw for peak, raw in derived]
            self._shortfall[i] = max(0, *shortfalls) if len(shortfalls) >= _YOUNG else None

    def _forget_answers(self, changed: Sequence[int]) -> None:
        """Keeps the answers of replaced estimators out of later offsets."""
        if changed:
            cpu, memory = (i not in changed for i in range(2))
            calls = (Call(c.sample, c.cpu_milli * cpu, c.memory_bytes * memory) for c in self._past.window)
            self._past.window = deque(calls, maxlen=self._settings.window)

    def _spared(self, fitted: Fitted, i: int) -> list[float]:
        """By how much, in options, answers exceed the needs of calls like those learned from.

        The answers include raises to try for demands not seen yet.
        """
        answered = []
        for position, answer in fitted.fit.held_out[i].items():
            call = fitted.calls[position]
            answered.append((call, max(answer, self._answers.at(call.sample.size)[i])))
        return list(spared(answered, self._resources[i]))

    def _largest(self) -> tuple[int, int]:
        """The largest options to try: no less than the answers, or than the function was seen to have."""
        answers = self._answers
        cpu, memory = (
            max(
                resource.largest,
                *table.values,
                answers.unknown[i],
                *(
                    resource.largest_seen(resource.use(call.sample))
                    for calls in (self._past.window, self._past.startups)
                    for call in calls
                ),
            )
            for i, (resource, table) in enumerate(
                zip(self._resources, (answers.cpu_milli, answers.memory_bytes), strict=True)
            )
        )
        return cpu, memory

    def _one_in(self) -> tuple[int, int]:
        """One in how many calls may be missed, of CPU and of memory."""
        gate = self.published.gate
        return missable(gate[2] if gate else None)

    def _highest(self, i: int) -> int:
        """The highest answer, without the offset."""
        answers = self._answers
        return max(*(answers.cpu_milli, answers.memory_bytes)[i].values, answers.unknown[i])

    def _most(self) -> tuple[int, int]:
        """The amounts up to which the offsets raise answers."""
        cpu, memory = self._past.offsets
        return cpu.most(self._highest(0)), memory.most(self._highest(1))

    def _publish(self, stage: Stage, reason: str) -> None:
        answers = self._answers
        largest, one_in = self._most(), self._one_in()
        cpu_time_estimator = self._cpu_time_estimator
        if not answers.unknown_cpu_time_us:
            first = first_cpu_time([call.sample for call in self._past.window])
            answers = replace(answers, cpu_time_us=first.table, unknown_cpu_time_us=first.unknown)
            cpu_time_estimator = first.estimator
        # A larger offset would raise no answer any further, and the activator accepts only so much.
        offset = (
            min(self._past.offsets[0].value(one_in[0]), largest[0]),
            min(self._past.offsets[1].value(one_in[1]), largest[1]),
        )
        before = self.published
        said = (before.answers, before.offset, before.largest)
        version = before.version
        if not version or said != (answers, offset, largest):
            version = max(self.last_milliseconds, version + 1)
        self.published = replace(
            before,
            version=version,
            stage=stage,
            reason=reason,
            answers=answers,
            offset=offset,
            largest=largest,
            cpu=self._past.tallies[0].record(self._estimators[0]),
            memory=self._past.tallies[1].record(self._estimators[1]),
            duration=self._past.tallies[2].record(self._estimators[2]),
            cpu_time=self._past.cpu_time_tally.record(cpu_time_estimator),
        )

    def _profiling(self) -> str:
        until = "answered like the revision before it" if self._inherited else "use the user allocation"
        apart, startups, known = "", len(self._past.startups), self._past.known
        if startups and not known:
            count = f"{STARTUPS} or more" if startups == STARTUPS else startups
            apart = f" ({count} start-ups, which are kept apart)"
        return f"{known} of {self._settings.min_observations} observations{apart}: {until}"

    def _modelled(self) -> str:
        return f"learned from {self.published.observations} observations"
