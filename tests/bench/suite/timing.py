# SPDX-License-Identifier: Apache-2.0
"""Times several subjects in turn, so that whatever else the machine does meets all alike."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Call = Callable[[int], Any]
Check = Callable[[int, Any], bool]


class WrongValueError(Exception):
    """A subject returned what belongs to another key."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the garbage collector out of what is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def number_in_front(number: int, value: Any) -> bool:
    """Whether a value of `Noise` is that number's."""
    return float(value.reshape(-1)[0]) == float(number)


def anything(number: int, value: Any) -> bool:
    return value is not None


def turns(subjects: Collection[str], count: int, seed: int) -> Iterator[list[str]]:
    """The names of the subjects, in another order each time."""
    shuffled = random.Random(seed)
    for _ in range(count):
        yield shuffled.sample(list(subjects), len(subjects))


def spans_of(numbers: Sequence[int], length: int) -> list[Sequence[int]]:
    return [numbers[i : i + length] for i in range(0, len(numbers) - length + 1, length)]


def by_span(
    subjects: Mapping[str, Call],
    numbers: Sequence[int],
    length: int,
    check: Check = number_in_front,
    seed: int = 0,
) -> dict[str, float]:
    """Microseconds per call, for calls too short for a clock: some are timed together.

    A span should take a fifth of a millisecond at most, so that on a busy machine most spans are
    not interrupted, and the median is of those.
    """
    spans = spans_of(numbers, length)
    times: dict[str, list[float]] = {name: [] for name in subjects}
    now = time.perf_counter_ns
    with no_collection():
        for span, names in zip(spans, turns(subjects, len(spans), seed), strict=True):
            for name in names:
                call, value = subjects[name], None
                started = now()
                for number in span:
                    value = call(number)
                times[name].append((now() - started) / len(span) / 1e3)
                _checked(name, span[-1], value, check)
    return {name: statistics.median(of_name) for name, of_name in times.items()}


def by_call(
    subjects: Mapping[str, Call],
    numbers: Sequence[int],
    length: int,
    check: Check = number_in_front,
    seed: int = 0,
) -> dict[str, float]:
    """Microseconds per call and release of its value, each call timed by itself and checked.

    A subject makes `length` calls before the next has its turn, so that it finds its own memory
    in the processor's caches.
    """
    spans = spans_of(numbers, length)
    times: dict[str, list[float]] = {name: [] for name in subjects}
    now = time.perf_counter_ns
    with no_collection():
        for span, names in zip(spans, turns(subjects, len(spans), seed), strict=True):
            for name in names:
                call, times_of_call = subjects[name], times[name]
                for number in span:
                    started = now()
                    value = call(number)
                    took = now() - started
                    _checked(name, number, value, check)
                    started = now()
                    del value
                    times_of_call.append((took + now() - started) / 1e3)
    return {name: statistics.median(of_name) for name, of_name in times.items()}


def _checked(name: str, number: int, value: Any, check: Check) -> None:
    if not check(number, value):
        raise WrongValueError(f"{name} returned a wrong value for number {number}")


def seconds_of(work: Callable[[], Any]) -> float:
    with no_collection():
        started = time.perf_counter_ns()
        work()
        return (time.perf_counter_ns() - started) / 1e9
