# SPDX-License-Identifier: Apache-2.0
"""Samples by name: looked up together in one call, and made one by one where they are missing."""

from __future__ import annotations

import contextlib
import copy
import operator
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from modcache._dataset_random import random_states_kept, seed_generators
from modcache._dataset_scope import SampleMaker
from modcache._dataset_values import packed, unpacked
from modcache._kinds import UnidentifiedError
from modcache._mode import obeying_tasks
from modcache._tagged import UnknownClassError
from modcache._text import checked_text
from modcache._workers import adopt_settings, prepare_dataset_worker, settings_for_worker

_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu")  # that make another address
_VARIANT = re.compile(r" \((seed \d+, )?variant \d+\)$")


class SampleName(NamedTuple):
    """Which variant of which sample."""

    key: str
    variant: int

    def entry_key(self, seed: int) -> str:
        """The key of its entry: the sample's own for the first variant. No two names share one."""
        if not self.variant and not seed and not _VARIANT.search(self.key):
            return self.key
        of_seed = f"seed {seed}, " if seed else ""
        return f"{self.key} ({of_seed}variant {self.variant})"


class SampleCache:
    """What a cached dataset asks. ``makers``: what its scope is made of, if it is given none."""

    def __init__(
        self, owner: str, makers: tuple[object, ...], scope: str | None, seed: int
    ) -> None:
        self._owner = owner
        self._seed = seed
        self._given_scope = "" if scope is None else _checked_scope(scope, owner)
        self._maker = SampleMaker(makers) if scope is None else None
        self.scope()  # what cannot be hashed is an error here, not in a worker

    def scope(self) -> str:
        """The scope of the entries, as it is now.

        Raises:
            TypeError: it cannot be made; the text says why, and how to name one.
        """
        if self._maker is None:
            return self._given_scope
        try:
            return self._maker.scope()
        except UnidentifiedError as reason:
            raise TypeError(
                f"{self._owner}: no scope can be made, since {reason}. Name what makes the "
                'samples, for instance scope="imagenet-224@1", and change the name whenever they '
                "change."
            ) from None

    def get(self, names: Sequence[SampleName], make: Callable[[int], Any]) -> list[Any]:
        """A sample for each name; ``make(i)`` is called for those that are missing.

        Under autocast as without it: a worker knows nothing of what the training thread entered.

        Raises:
            TypeError: a sample that cannot be cached. Whatever ``make`` raises.
        """
        prepare_dataset_worker()
        with contextlib.ExitStack() as stack:
            for device in _AUTOCAST_DEVICES:
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            return self._get(names, make)

    @obeying_tasks
    def _get(self, names: Sequence[SampleName], make: Callable[[int], Any]) -> list[Any]:
        first: dict[str, int] = {}
        for i, name in enumerate(names):
            first.setdefault(name.entry_key(self._seed), i)
        keys = list(first)
        scope = self.scope()
        is_off, missing, found = torch.ops.cache._lookup_samples(
            scope, keys, class_name=self._owner
        )
        samples: dict[str, Any] = {}
        missing = set(missing)
        for place, key in enumerate(keys):
            if place not in missing:
                try:
                    samples[key] = unpacked(found[place])
                except UnknownClassError:
                    missing.add(place)
        if missing:
            wanted = {keys[place]: first[keys[place]] for place in sorted(missing)}
            self._make(wanted, make, samples, "" if is_off else scope)
        return self._in_order(names, first, samples)

    def _make(
        self,
        wanted: dict[str, int],
        make: Callable[[int], Any],
        samples: dict[str, Any],
        scope: str,
    ) -> None:
        """Makes what is wanted, and keeps it under ``scope``; "": does not keep it."""
        kept: list[tuple[str, Any, int]] = []
        with random_states_kept():
            try:
                for key, i in wanted.items():
                    seed_generators(key)
                    started_ns = time.perf_counter_ns()
                    sample = make(i)
                    run_us = (time.perf_counter_ns() - started_ns) // 1000
                    if scope:
                        value = self._packed(sample)
                        kept.append((key, value, run_us))
                        sample = _as_a_hit(value, sample)
                    samples[key] = sample
            finally:
                if kept:
                    keys, values, times = zip(*kept, strict=True)
                    torch.ops.cache._keep_samples(
                        scope, list(keys), values, list(times), class_name=self._owner
                    )
                if self._maker is not None:
                    self._maker.note_run()

    def _packed(self, sample: Any) -> Any:
        try:
            return packed(sample)
        except TypeError as error:
            raise TypeError(f"{self._owner}: {error}") from None

    def _in_order(
        self, names: Sequence[SampleName], first: dict[str, int], samples: dict[str, Any]
    ) -> list[Any]:
        if len(first) == len(names):
            return [samples[key] for key in first]
        # Whoever asks for one sample twice gets two, to write into each as he likes.
        keys = [name.entry_key(self._seed) for name in names]
        return [
            samples[key] if first[key] == i else copy.deepcopy(samples[key])
            for i, key in enumerate(keys)
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "settings": settings_for_worker()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        adopt_settings(state.pop("settings"))
        vars(self).update(state)


def _as_a_hit(value: Any, sample: Any) -> Any:
    """What a hit would give for it: memory of its own, and the same strides and sharing."""
    try:
        return unpacked(value)
    except UnknownClassError:
        return sample


def key_text(key: object, owner: str) -> str:
    """A key as text: of a str itself, of anything that is an integer its digits.

    ``owner``: who asks, for the message.

    Raises:
        TypeError: neither. ValueError: empty, or no valid Unicode.
    """
    if not isinstance(key, str):
        try:
            return str(operator.index(key))  # type: ignore[arg-type]
        except TypeError:
            pass
    text = checked_text(key, f"{owner}: a key", '"image-000017"', "a str or an int")
    if not text:
        raise ValueError(f"{owner}: a key is an empty str; give each sample a key of its own")
    return text


def _checked_scope(scope: object, owner: str) -> str:
    text = checked_text(scope, f"{owner}: scope", '"imagenet-224@1"')
    if not text:
        raise ValueError(
            f"{owner}: scope is an empty str; leave it out to have one made from the code"
        )
    return text
