# SPDX-License-Identifier: Apache-2.0
"""Caches beside the default one of the process."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch

from modcache._cached import decorator
from modcache._explain import report
from modcache._fill import fill_pass
from modcache._lazy import model
from modcache._library import settings as of_current
from modcache._library.stats import Stats
from modcache._library.tasks import enter, leave, maker
from modcache._library.text import text_of_path
from modcache._lookup import lookup, prefetch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _in_cache(function: Callable[_P, _R]) -> Any:
    """Returns a method of Cache that calls the function while the cache is the current one."""

    @functools.wraps(function)
    def method(self: Cache, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self:
            return function(*args, **kwargs)

    return method


class Cache:
    """A cache of its own, with its own settings, memory, server and counters.

    >>> import modcache, tempfile, torch
    >>> cache = modcache.Cache(dir=tempfile.mkdtemp(), memory="100MB")
    >>> encoder = torch.nn.Linear(4, 2).requires_grad_(False)
    >>> features = cache.lookup_or_run(encoder, torch.ones(1, 4), "sample")
    >>> with cache:
    ...     again = modcache.lookup_or_run(encoder, torch.ones(1, 4), "sample")
    >>> cache.stats()["hits_memory"]
    1

    ``with cache:`` makes it the current one: functions of this package and cached modules use it in
    this thread, or in this asyncio task and the tasks that it starts, until the block is left. A
    task that goes on after that uses the cache around the block. Operators that are called
    directly, as in scripted and exported models, use the innermost ``with`` of their thread;
    threads of torch.jit.fork inherit it, other threads do not. What ``cache.cached`` and
    ``cache.lazy`` make always uses this cache.

    Environment variables set the default cache alone. The modes of the process, of threads and of
    directories apply to all caches. Caches with one directory share its store, and nothing else. A
    pickled Cache is its settings: in another process they make one Cache there, however often they
    are unpickled. A Cache lives as long as something uses it.

    Args:
        **options: as for ``modcache.configure``; others have their defaults.

    Raises:
        TypeError: a value of a wrong type.
        ValueError: an unknown option or a bad value; the message lists what is valid. Or another
            Cache of this process uses the directory with another ``disk``, ``durability`` or
            ``io``.
    """

    def __init__(self, **options: str | int | float | bool | os.PathLike[str]) -> None:
        self._options = of_current.texts_of(options)
        self._registered_as: tuple[tuple[str, str], ...] = ()  # in _by_options
        self._held = of_current.called_with(torch.ops.cache._make_cache, self._options)
        self._note_configured(self._options)

    def __enter__(self) -> Cache:
        enter(self, cache=self._held)
        return self

    def __exit__(self, *_: object) -> None:
        if not leave(self):
            raise RuntimeError(
                "a Cache is left by a thread that has not entered it; `with cache:` holds for one "
                "thread, so leave it in the thread that entered it"
            )

    def __repr__(self) -> str:
        seen = self.settings()  # without the password of `remote`
        shown = ", ".join(f"{name}={seen[name]!r}" for name in sorted(self._options))
        return f"modcache.Cache({shown})"

    def __reduce__(self) -> tuple[Callable[..., Cache], tuple[tuple[str, str], ...]]:
        return _cache_of, self._sent_options()

    def _sent_options(self) -> tuple[tuple[str, str], ...]:
        """Returns the options that travel in a pickle: not the password of a server."""
        seen = self.settings()
        return tuple(
            (name, value)
            for name, value in sorted(self._options.items())
            if name != "remote" or value == seen[name]
        )

    def _note_configured(self, texts: dict[str, str]) -> None:
        """Records options that were set, with an absolute directory."""
        self._options = {**self._options, **texts}
        self._directory = text_of_path(self.settings()["dir"])
        if "dir" in texts:
            self._options["dir"] = self._directory
        if _by_options.get(self._registered_as) is self:  # older pickles have other settings
            del _by_options[self._registered_as]
        self._registered_as = self._sent_options()
        _by_options.setdefault(self._registered_as, self)

    def cached(self, *args: Any, **options: Any) -> Any:
        """Does as ``modcache.cached``; what it returns always uses this cache.

        Code of TorchScript and programs of torch.export cannot name a cache: they use the one that
        is current when they run. So torch.jit.script raises TypeError for a module that this method
        made; make it with ``modcache.cached``, and run the scripted or exported model inside
        ``with cache:``.
        """
        with _making(self):
            return decorator.cached(*args, **options)

    def lazy(self, *args: Any, **options: Any) -> model.Lazy:
        """Does as ``modcache.lazy``; what it returns always uses this cache."""
        with _making(self):
            return model.lazy(*args, **options)

    clear = _in_cache(of_current.clear)
    configure = _in_cache(of_current.configure)
    contains = _in_cache(of_current.contains)
    explain = _in_cache(report.explain)
    fill = _in_cache(fill_pass.fill)
    flush = _in_cache(of_current.flush)
    lookup_or_run = _in_cache(lookup.lookup_or_run)
    lookup_or_run_any = _in_cache(lookup.lookup_or_run_any)
    metrics = _in_cache(of_current.metrics)
    place = _in_cache(prefetch.place)
    prefetch = _in_cache(prefetch.prefetch)
    reset_stats = _in_cache(of_current.reset_stats)
    settings = _in_cache(of_current.settings)

    def stats(self) -> Stats:
        """Returns the counters of this cache; see ``modcache.stats``."""
        with self:
            return of_current.stats()


@contextlib.contextmanager
def _making(cache: Cache) -> Iterator[None]:
    """Has what ``cached`` and ``lazy`` make belong to the cache."""
    token = maker.set(cache)
    try:
        yield
    finally:
        maker.reset(token)


# One for equal settings.
_by_options: weakref.WeakValueDictionary[tuple[tuple[str, str], ...], Cache] = (
    weakref.WeakValueDictionary()
)


def _cache_of(*options: tuple[str, str]) -> Cache:
    """Returns the Cache of this process with these settings. Pickles name this function."""
    known = _by_options.get(options)
    return Cache(**dict(options)) if known is None else known
