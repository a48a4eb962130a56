# SPDX-License-Identifier: Apache-2.0
"""``modcache.fill``: runs everything that a loader yields through the cache once."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from modcache._cached.call_key import check_no_content_of_padding
from modcache._cached.function import looked_up_in
from modcache._fill.batch import BatchReader, Target, bytes_of, target_of
from modcache._fill.progress import Progress
from modcache._fill.share import batches_of, share_of
from modcache._fill.summary import FillSummary
from modcache._library import log
from modcache._library import settings as of_current
from modcache._library.mode import mode as effective_mode
from modcache._library.mode import where_set
from modcache._library.text import checked_text
from modcache._lookup.lookup import lookup_or_run, lookup_or_run_any

_HITS = ("hits_memory", "hits_disk", "hits_remote")
_CAUSES = {
    "bypassed_off": "the mode of this thread or of the directory forbids it",
    "bypassed_grad": "the results require grad",
    "bypassed_impure": "the results are no function of the module's state and input (the warning "
    "before this one names the culprit)",
    "bypassed_type": "an input or a result is of a type that cannot be cached",
    "bypassed_rows": "the results do not consist of rows, or padding changes them (the warning "
    "before this one says how)",
    "bypassed_identity": "the module cannot be identified (the warning before this one says why)",
    "bypassed_verify": "verify_share has switched the scope off (the message before says why)",
    "errors": "the cache failed (modcache.stats() counts, the log says why)",
}


def fill(
    module: Any,
    loader: Iterable[Any],
    *,
    key: Callable[[Any], Any] | str | int | None = None,
    input: Callable[[Any], Any] | str | int | None = None,
    progress: Any = True,
    scope: str = "",
    rank: int | None = None,
    world_size: int | None = None,
    mask: str | int | None = None,
    lengths: str | int | None = None,
) -> FillSummary:
    """Runs a module over all that a loader yields, so that later calls hit.

    It does not run what is stored already: a second fill runs only what the first one left out. It
    may be interrupted at any time. Then it flushes what was done, prints a summary, and passes the
    ``KeyboardInterrupt``, or any other exception, on to the caller. A process that is killed loses
    at most the last 100 ms. Runs are under ``torch.no_grad()``. What ``cached`` or ``lazy`` of a
    ``Cache`` made fills that cache.

    >>> import modcache, torch
    >>> encoder = torch.nn.Linear(4, 2).eval()
    >>> batches = [(torch.randn(3, 4), torch.arange(3)), (torch.randn(3, 4), torch.arange(3, 6))]
    >>> done = modcache.fill(encoder, batches, key=1)
    >>> done.rows, done.runs
    (6, 6)
    >>> modcache.fill(encoder, batches, key=1).runs
    0

    Args:
        module: a module or a function, cached (``modcache.cached``) or plain. For a cached method
            of a module, the bound method: ``fill(vae.encode, loader)``.
        loader: anything that yields batches, such as a DataLoader.
        key: a function that takes the key from a batch, the place (int) or name (str) of the
            batch's item that is the key, or ``"content"``: one key for the batch, made from the
            input (``modcache.content_keys``: one per row). As for ``lookup_or_run``, a list or an
            int64 tensor has one key per row, and a str is one key for the batch. A cached target
            needs no key here: then a batch holds the arguments of a call, in a tuple or list by
            place (a keyword that only the cache takes is last), in a dict by name.
        input: how to take the input from a batch, in the same ways. By default it is the batch
            itself if that is a tensor, and the first item of a tuple or list. For a dict, it must
            be given.
        progress: True: a bar on the standard error stream, if that is a terminal (only rank 0);
            False: nothing; a file: a bar there. It shows batches, rows per second, the share of
            hits, seconds saved and bytes.
        scope: as for ``lookup_or_run``; by default the cached target's own.
        rank: this process runs every ``world_size``-th batch, beginning with this one. The default
            is the rank in ``torch.distributed``, if that is initialised, else 0. A loader with a
            DistributedSampler is split already.
        world_size: the number of processes that share the batches. The default is that of
            ``torch.distributed``, if initialised, else 1.
        mask: as for ``lookup_or_run``: the argument that says which part of each row is true, where
            rows have lengths of their own; by default the cached target's own.
        lengths: the same for an argument that has the lengths.

    Returns:
        A summary of what this process did, by the counters of ``modcache.stats``. Where the mode of
        the process, thread or directory forbids storing (``"off"``, ``"read"``, ``"verify"``), it
        runs nothing, logs one warning, and returns a summary whose ``skipped`` says why; a mode
        that is set during the fill ends it after the batch. The summary leaves out
        what the loader looks up between the fill's own calls, and includes what other threads do
        during these calls.

    Raises:
        TypeError, ValueError: a mistake in the arguments, or a batch without the named item.
        Any exception of the loader, the module and the functions.

    Warns:
        UserWarning: results are not cached (once, with the cause).
    """
    target = target_of(module)
    reader = BatchReader(target, key, input)
    scope = checked_text(scope, "scope") or target.scope
    rows = dict(target.rows)
    if mask is not None or lengths is not None:
        rows.update(mask=mask, lengths=lengths)
    check_no_content_of_padding("fill", key, rows.get("mask"), rows.get("lengths"))
    own = share_of(rank, world_size)
    batches, count = batches_of(loader, own)
    tally = _Tally(target.cache)
    if tally.is_switched_off():
        return tally.finish(is_complete=True)
    with Progress(progress, own.rank == 0, count) as bar:
        try:
            with torch.no_grad():
                for batch in batches:
                    if tally.is_switched_off():
                        break
                    given, keys = reader.read(batch)
                    with tally.lookup():
                        output = _looked_up(target, given, keys, scope, rows)
                    tally.note(1 if isinstance(keys, str) else len(keys), bytes_of(output))
                    bar.show(tally.done)
        except BaseException as error:
            summary = tally.finish(is_complete=False)
            if not summary.rows and isinstance(error, Exception):  # a mistake in the arguments
                raise
            text = f"modcache.fill: {summary}. Started again, it runs only what is missing."
            if bar.is_silent:
                error.add_note(text)
            else:
                bar.say(text)
            raise
        return tally.finish(is_complete=True)


def _looked_up(target: Target, given: Any, keys: Any, scope: str, rows: dict[str, Any]) -> Any:
    if not target.method:
        return looked_up_in(target.module, given, keys, scope, rows)
    if rows:
        return lookup_or_run(target.module, given, keys, scope=scope, method=target.method, **rows)
    # Rows that do not fit together are no error here.
    return lookup_or_run_any(target.module, given, keys, scope=scope, method=target.method)


@contextlib.contextmanager
def _storing_all() -> Iterator[None]:
    """Has the calling thread's results stored whatever ``admission`` is."""
    before = torch.ops.cache._store_all(True)
    try:
        yield
    finally:
        torch.ops.cache._store_all(before)


class _Tally:
    """Counts what a fill does, by the growth of the counters during its lookups.

    A loader may use the cache too, and its lookups between them do not count.

    Args:
        cache: the Cache that is filled; None: the current one.
    """

    def __init__(self, cache: Any) -> None:
        self._block = contextlib.nullcontext() if cache is None else cache
        self._start_s = time.monotonic()
        self._grown: Counter[str] = Counter()
        self._has_warned = False
        self.done = FillSummary()

    def is_switched_off(self) -> bool:
        """Whether a mode forbids storing, so that the rest of the fill is skipped."""
        with self._block:
            mode = effective_mode()
            is_off = mode in ("off", "read", "verify")
            if is_off:
                self.done = replace(self.done, skipped=where_set(mode))
            return is_off

    @contextlib.contextmanager
    def lookup(self) -> Iterator[None]:
        """Counts one lookup of a batch, which is made inside."""
        with self._block:
            before = of_current.stats()
            with _storing_all():
                yield
            self._grown.update(of_current.stats())
            self._grown.subtract(before)

    def note(self, rows: int, size_bytes: int) -> None:
        """Notes that a batch is done."""
        grown = self._grown
        hits = sum(grown[name] for name in _HITS)
        total = self.done.rows + rows
        self.done = replace(
            self.done,
            rows=total,
            hits=min(hits, total),
            runs=max(total - hits, 0),
            stored=grown["stored"],
            bytes=self.done.bytes + size_bytes,
            seconds=time.monotonic() - self._start_s,
            saved_seconds=grown["saved_us"] / 1e6,
        )
        if self.done.stored < self.done.runs and not self._has_warned:
            self._warn()

    def _warn(self) -> None:
        self._has_warned = True
        causes = [text for name, text in _CAUSES.items() if self._grown[name] > 0]
        because = "; ".join(causes) or (
            "no cause was counted; the directory's mode, disk or min_run_us may forbid it "
            "(modcache.settings())"
        )
        warnings.warn(
            f"modcache.fill: {self.done.runs - self.done.stored} of {self.done.runs} rows that "
            f"were run are not cached: {because}.",
            stacklevel=4,
        )

    def finish(self, *, is_complete: bool) -> FillSummary:
        with self._block:
            of_current.flush()
            seconds = time.monotonic() - self._start_s
            self.done = replace(self.done, seconds=seconds, is_complete=is_complete)
            if self.done.skipped:
                log.write(logging.WARNING, f"modcache.fill: {self.done}")
        return self.done
