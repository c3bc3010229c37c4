"""Labels samples with the option that each needed or, where that is not known, the next one to try."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libra_predictor.observations import UNKNOWN_SIZE, Sample

_THROTTLED_SHARE = 0.05
_NEAR_CPU_LIMIT = 0.8


@dataclass(frozen=True, slots=True)
class Use:
    """One sample's use of one resource, in its unit."""

    size: int
    peak: int
    limit: int  # 0 when there is none
    censored: bool  # held back by the limit: the demand is at least the peak
    failed: bool = False  # for lack of something else: the peak says little


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A sample's class: the option that would have held it, in the unit of the resource."""

    use: int  # the position of the labelled use
    size: int
    option: int
    censored: bool  # the option is one to try: the demand was not seen


def option(volume: int, step: int) -> int:
    """The smallest option that holds a volume."""
    return max(1, -(-volume // step)) * step


def cpu(sample: Sample) -> Use:
    return Use(
        sample.size,
        sample.peak_cpu_milli,
        sample.limit_cpu_milli,
        sample.limit_cpu_milli > 0
        and not sample.failed
        and throttled(sample)
        and sample.peak_cpu_milli >= _NEAR_CPU_LIMIT * sample.limit_cpu_milli,
        sample.failed,
    )


def memory(sample: Sample) -> Use:
    return Use(sample.size, sample.peak_memory_bytes, sample.limit_memory_bytes, sample.at_memory_limit)


def throttled(sample: Sample) -> bool:
    """Whether a limit changed the duration, so that it is not the function's own."""
    return sample.failed or sample.throttled_share >= _THROTTLED_SHARE


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that is allocated in options, with its settings."""

    use: Callable[[Sample], Use]
    step: int  # between two options
    largest: int  # the largest option to try for a demand that cannot be seen

    def option(self, volume: int) -> int:
        return option(volume, self.step)

    def tells(self, use: Use, answer: int) -> bool:
        """Whether a use tells if an answer was enough. A censored one only tells that it was not."""
        return answer > 0 and not use.failed and (not use.censored or self.option(use.peak) > answer)

    def largest_seen(self, use: Use) -> int:
        """The largest option to try after a use: no less than the function already has."""
        return max(self.largest, self.option(max(use.limit, use.peak)))


def target(use: Use, largest: int) -> int:
    """The volume to try next after a censored use: twice what it had."""
    return max(use.peak, use.limit, min(2 * use.limit, largest))


def labels(uses: Sequence[Use], step: int, largest: int) -> list[Label]:
    """Labels the uses, oldest first.

    A censored use only shows that the invocation wanted more, so its label is the next option to try. There
    is no need to try once the demand of an input at least as large was seen. Then its label is its own peak
    if no demand seen later reached that, as in a function whose demand does not follow size; otherwise it has
    none. Failed uses are only labelled when there is nothing else.
    """
    found: list[Label] = []
    # The largest size and the largest peak seen uncensored later, apart for known and unknown sizes.
    size_seen = {True: UNKNOWN_SIZE - 1, False: UNKNOWN_SIZE - 1}
    peak_seen = {True: 0, False: 0}
    all_failed = all(use.failed for use in uses)
    for position, use in reversed(list(enumerate(uses))):
        if use.failed and not all_failed:
            continue
        known = use.size != UNKNOWN_SIZE
        wanted, tried = use.peak, False
        if not use.censored:
            size_seen[known] = max(size_seen[known], use.size)
            peak_seen[known] = max(peak_seen[known], use.peak)
        elif use.size > size_seen[known]:
            wanted, tried = target(use, largest), True
        elif use.peak <= peak_seen[known]:
            continue
        found.append(Label(use=position, size=use.size, option=option(wanted, step), censored=tried))
    found.reverse()
    return found
