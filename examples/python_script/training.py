# SPDX-License-Identifier: Apache-2.0
"""Training the head, one epoch at a time; where the features come from is the only difference."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import modcache
import torch
from torch import Tensor, nn
from tqdm import tqdm

BATCH = 64
LEARNING_RATE = 1e-3
SEED = 0
HIT_COUNTERS = ("hits_memory", "hits_disk", "hits_remote")

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Samples:
    """Texts ready for the model: int64 `ids` and `mask` [N, T], N `keys`, int64 `labels` [N]."""

    ids: Tensor
    mask: Tensor
    keys: list[str]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Tensor) -> Samples:
        keys = [self.keys[row] for row in rows.tolist()]
        return Samples(self.ids[rows], self.mask[rows], keys, self.labels[rows])

    def batches(self, order: Tensor | None = None) -> list[Samples]:
        if order is None:
            order = torch.arange(len(self))
        return [self.take(rows) for rows in order.split(BATCH)]


@dataclass(frozen=True)
class Epoch:
    seconds: float
    hits: int


@dataclass
class Run:
    """One training of a head: its weights, its optimizer and what its epochs took.

    `logits_of(batch, rows)` is the forward pass of a batch; `rows` says which samples are in it.
    """

    name: str
    head: nn.Module
    logits_of: Callable[[Samples, Tensor], Tensor]
    epochs: list[Epoch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._optimizer = torch.optim.Adam(self.head.parameters(), lr=LEARNING_RATE)

    def train_epoch(self, samples: Samples, *, progress: bool = False) -> None:
        """One pass over `samples`, in an order that depends on the epoch's number alone."""
        generator = torch.Generator().manual_seed(SEED + len(self.epochs))
        order = torch.randperm(len(samples), generator=generator)
        title = f"{self.name}, epoch {len(self.epochs) + 1}"
        hits_before = count_hits()
        started = time.perf_counter()
        with text_progress(title, len(samples), enabled=progress) as bar:
            for rows in order.split(BATCH):
                batch = samples.take(rows)
                loss = nn.functional.cross_entropy(self.logits_of(batch, rows), batch.labels)
                self._optimizer.zero_grad()
                loss.backward()
                self._optimizer.step()
                bar.update(len(rows))
        self.epochs.append(Epoch(time.perf_counter() - started, count_hits() - hits_before))

    def weights(self) -> Weights:
        return {name: value.clone() for name, value in self.head.state_dict().items()}


def count_hits() -> int:
    """How many lookups of this process the cache answered so far."""
    stats = modcache.stats()
    return sum(stats[name] for name in HIT_COUNTERS)


def same_bits(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@torch.no_grad()
def seconds_per_text(features_of: Callable[[Samples], Tensor], batches: Sequence[Samples]) -> float:
    """What the encoder's part of an epoch over `batches` takes, by text."""
    started = time.perf_counter()
    for batch in batches:
        features_of(batch)
    return (time.perf_counter() - started) / sum(len(batch) for batch in batches)


@torch.no_grad()
def features_of_all(model: torch.jit.ScriptModule, samples: Samples, title: str) -> Tensor:
    """float32 [N, FEATURES] through the model's own encoder and cache, batch by batch."""
    rows = []
    with text_progress(title, len(samples)) as bar:
        for batch in samples.batches():
            rows.append(model.features(batch.ids, batch.mask, batch.keys))
            bar.update(len(batch))
    return torch.cat(rows)


@torch.no_grad()
def accuracy(head: nn.Module, features: Tensor, labels: Tensor) -> float:
    return (head(features).argmax(1) == labels).float().mean().item()


def text_progress(title: str, total: int, *, enabled: bool = True) -> tqdm[Any]:
    """A bar that counts texts, shown from the second second on; in a log, a line now and then."""
    interval_s = 0.2 if sys.stderr.isatty() else 5.0
    return tqdm(
        desc=title, total=total, unit=" texts", mininterval=interval_s, delay=1, disable=not enabled
    )
