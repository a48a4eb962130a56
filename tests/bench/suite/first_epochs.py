# SPDX-License-Identifier: Apache-2.0
"""What storing adds to the first epoch of a real model, where each text is a miss."""

from __future__ import annotations

import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

import modcache
import torch
from torch import Tensor, nn

from suite import ours, stores, timing
from suite.epochs import of_example
from suite.measurement import Comparison, Figures, Measurement, Place

BATCH = 4
# What costs time at intervals, as reading weights again does, would charge a subject for the turns
# of others if these were single calls.
TURN = 4
TURNS = 6
TOKENS = 64

Batch = tuple[Tensor, Tensor]


def encoder() -> nn.Module:
    """MiniLM's architecture with random weights: a BERT of 6 layers, 12 heads and 384 features."""
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    torch.manual_seed(7)
    bert = transformers.BertModel(config, add_pooling_layer=False)
    module: nn.Module = of_example("encoder").SentenceEncoder(bert)
    return module.requires_grad_(False).eval()


def batches(number: int) -> list[Batch]:
    """Random token ids and masks, int64 [BATCH, TOKENS]; texts have 8 to TOKENS tokens."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(number):
        ids = torch.randint(1000, 30000, (BATCH, TOKENS), generator=generator)
        lengths = torch.randint(8, TOKENS + 1, (BATCH, 1), generator=generator)
        mask = (torch.arange(TOKENS) < lengths).to(torch.int64)
        made.append((ids * mask, mask))
    return made


def scripted() -> nn.Module:
    """The same, traced, since Hugging Face's BERT does not script."""
    ids, mask = batches(1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace: Any = torch.jit.trace
        traced: nn.Module = trace(encoder(), (ids[:1], mask[:1]), check_trace=False)
    return traced


class FirstEpoch(Measurement):
    """Turns of subjects that store and of one in mode off, over the same texts.

    The processor time of the calling thread is measured, since two percent of a wall time cannot be
    told from other work on the machine. A subject's figure is the one of mode off times the median
    of the ratios of its turns.
    """

    matches = ("input",)

    def __init__(self, form: str, module: Callable[[], nn.Module]) -> None:
        self.form, self.module = form, module
        self.name = f"first epoch, {form}"
        self.title = f"a first epoch of BERT (6 layers), {form}; processor time per {BATCH} texts"

    def missing(self) -> str:
        return "" if stores.is_there("transformers") else "transformers is not installed"

    def comparisons(self) -> list[Comparison]:
        path = f"first epoch of BERT, {self.form}, batches of {BATCH}, beside mode off"
        return [
            Comparison(path, "modcache", 1.02, "mode off"),
            Comparison(f"{path}, scope", "modcache, scope", 1.005, "mode off"),
        ]

    def measure(self, place: Place) -> Figures:
        ours.use(place, f"modcache-{place.round}")
        module, texts, numbers = self.module(), batches(TURN), count()

        def turn(scope: str = "") -> float:
            started = time.thread_time_ns()
            for batch in texts:
                keys = [f"text-{next(numbers):08d}" for _ in range(BATCH)]
                modcache.lookup_or_run(module, batch, keys, scope=scope)
            return (time.thread_time_ns() - started) / 1e3 / TURN

        def turn_off() -> float:
            with modcache.mode("off"):
                return turn()

        subjects: dict[str, Callable[[], float]] = {
            "mode off": turn_off,
            "modcache": turn,
            "modcache, scope": lambda: turn(scope=ours.SCOPE),
        }
        times: dict[str, list[float]] = {name: [] for name in subjects}
        with torch.no_grad(), timing.no_collection():
            for work in subjects.values():
                work()
            for names in timing.turns(subjects, place.of(TURNS, 2), place.round):
                for name in names:
                    times[name].append(subjects[name]())
        if modcache.stats()["stored"] != 2 * (1 + len(times["mode off"])) * TURN * BATCH:
            raise timing.WrongValueError("modcache did not store each text")
        off = times["mode off"]
        return {
            name: statistics.median(off)
            * statistics.median(mine / theirs for mine, theirs in zip(of_name, off, strict=True))
            for name, of_name in times.items()
        }


def measurements() -> list[Measurement]:
    return [FirstEpoch("scripted", scripted), FirstEpoch("eager", encoder)]
