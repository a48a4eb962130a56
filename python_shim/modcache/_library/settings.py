# SPDX-License-Identifier: Apache-2.0
"""Settings, counters and housekeeping: typed names for the library's operators.

The library decides which options and values are valid. This file only turns Python values into the
text that the library reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from modcache._library.explicit import note_configured
from modcache._library.log import deliver
from modcache._library.stats import Stats
from modcache._library.tasks import current_owner, obeying_tasks
from modcache._library.text import TupleKey, checked_text, key_text, path_of_text, text_of_path


@obeying_tasks
def configure(**options: str | int | float | bool | os.PathLike[str]) -> None:
    """Sets options, for instance ``configure(dir="/data/cache", memory="2GB", strict=True)``.

    Each option is also the environment variable ``MODCACHE_<NAME>``; a value given here takes
    precedence. Other options keep their values. ``settings()`` shows all. Worker processes that
    start later use the same values (docs/training.md, "Workers and ranks").

    Args:
        **options: sizes in bytes, an int or text such as ``"2GB"`` (2 * 10**9) or ``"512MiB"``:

            - ``dir``: the cache directory. Default: ``$XDG_CACHE_HOME/modcache``, else
              ``~/.cache/modcache``. ``~`` and ``~user`` are expanded.
            - ``memory``: size of the memory tier (``"1GB"``); 0: none.
            - ``disk``: size of the directory (``"100GB"``); 0: no directory is used.
            - ``policy``: which entries stay when a tier is full: ``"auto"``, ``"lru"`` or
              ``"keep"`` (docs/eviction.md).
            - ``admission``: which results are stored: ``"all"``; ``"second"``: those of keys whose
              module ran before in this process (docs/eviction.md). ``fill``, datasets and
              ``cache::store`` always store.
            - ``max_age``: seconds after which an entry is not found any more; 0: none is too old.
            - ``mode``: as ``set_mode``.
            - ``dtype``: the dtype of stored floating-point values: ``"keep"``, ``"float16"`` or
              ``"bfloat16"``. Hits return them in the module's own dtype.
            - ``codec``: ``"none"``, or ``"zstd"``: lossless compression on disk.
            - ``durability``: ``"relaxed"``: on disk after 100 ms at most; ``"strict"``: before the
              call returns.
            - ``match``: the part of the input that a hit must match: ``"input"`` (dtype, shape and
              a sample of the values; for inputs on an accelerator the samples of a scope's first
              16 calls, then of one call in 50), or ``"none"``.
            - ``strict``: True: a result that may not be cached is an error, not a warning.
            - ``namespace``: a text; entries of one namespace are not found in another.
            - ``min_run_us``: results of runs shorter than this many microseconds are not kept (0).
            - ``verify_share``: the share of hits, chosen at random, for which the module runs all
              the same, to compare (0). What differs is dropped, and a scope that goes on differing
              is switched off in this process (docs/limits.md).
            - ``io``: how files are read: ``"mmap"``, or ``"pread"`` where others may truncate them.
            - ``log``: ``"off"``, ``"error"``, ``"warning"`` or ``"info"``: the lowest level logged.
            - ``remote``: the address of a server that machines share: ``redis://host:6379/0``,
              ``rediss://`` (TLS), ``redis+cluster://host:6379,host:6379``, ``redis+unix:///socket``
              (docs/remote.md); empty: none. A password in it is not shown by ``settings``.
            - ``remote_timeout_ms``: the longest that a call waits for the server (500).
            - ``remote_ttl``: seconds after which the server drops what was stored; 0: never.

    Raises:
        TypeError: a value of another type.
        ValueError: an unknown option or a bad value; the message lists what is valid. Then the call
            changes no option.

    >>> import modcache
    >>> modcache.configure(strict=False)
    >>> modcache.settings()["strict"]
    'false'
    """
    texts = texts_of(options)
    called_with(torch.ops.cache.configure, texts)
    owner = current_owner()
    if owner is None:
        note_configured(texts)
    else:
        owner._note_configured(texts)


def called_with(operator: Callable[[dict[str, str]], Any], texts: dict[str, str]) -> Any:
    """Returns what the operator returns for these options. Raises ValueError for wrong ones."""
    try:
        return operator(texts)
    except RuntimeError as error:
        raise ValueError(str(error).split("\n", 1)[0]) from None


def texts_of(options: Mapping[str, object]) -> dict[str, str]:
    """Returns options as the library takes them.

    Raises:
        TypeError: a value of another type.
    """
    return {
        checked_text(name, "the option's name", '"memory"'): _as_text(name, value)
        for name, value in options.items()
    }


def _as_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        value = text_of_path(value) if name == "dir" else value
        return checked_text(value, f"configure({name}=...)", '"/data/cache"')
    given = "None" if value is None else f"{type(value).__name__}"
    raise TypeError(
        f"configure({name}=...) takes a str, int, float, bool or os.PathLike, but got {given}. "
        "Leave the option out to keep what it is; settings() shows all of them."
    )


@obeying_tasks
def settings() -> dict[str, str]:
    """Returns the settings in force, by option name, as text that ``configure`` takes.

    ``mode`` is that of the process, without guards of the calling thread.
    """
    found: dict[str, str] = dict(torch.ops.cache.settings())
    found["dir"] = path_of_text(found["dir"])
    return found


@obeying_tasks
def stats() -> Stats:
    """Returns the counters of this process since its start or ``reset_stats``.

    The result is a dict, which prints as a table without zeros. With one key per row, each row
    counts.

    - ``hits_memory``, ``hits_disk``, ``hits_remote``: keys that were found, by tier.
    - ``misses``: keys that were not found, so that the module ran; ``stored``: results then kept.
    - ``bypassed_off``, ``bypassed_grad``, ``bypassed_impure``, ``bypassed_type``,
      ``bypassed_rows``, ``bypassed_identity``: uncached runs, since the mode was off, the result
      requires grad, it is no function of state and input, it cannot be stored, it does not consist
      of rows, or the module cannot be identified.
    - ``bypassed_verify``: uncached runs of a scope that ``verify_share`` switched off.
    - ``key_conflicts``: keys that were stored for another input.
    - ``verified``: hits that ``verify_share`` had run and compared instead; none of them is a hit
      or a miss. ``verify_differences``: results that differ from the stored ones, in mode
      ``"verify"`` too.
    - ``evicted``: entries that others pushed out of a tier.
    - ``not_kept``: results that the directory (with ``disk=0``: memory) did not take, since it is
      full of more valuable entries, or they are too large for it.
    - ``remote_stored``: entries that the server of ``remote`` took; ``remote_dropped``: entries
      that were not written to it, since the queue was full or the server did not take them.
    - ``corrupt``: damaged entries, each of them a miss; ``errors``: failures of the cache, none of
      which failed a call.
    - ``run_us``, ``saved_us``: microseconds that modules ran on misses, and that the runs behind
      the hits had taken.
    - ``entries_memory``, ``bytes_memory``: entries and bytes in this process; ``entries_disk``,
      ``bytes_disk``: entries and bytes in the directory, of all processes.

    >>> import modcache, torch
    >>> modcache.reset_stats()
    >>> _ = modcache.lookup_or_run(torch.nn.ReLU(), torch.ones(2), "a")
    >>> modcache.stats()["misses"]
    1
    """
    return Stats(torch.ops.cache.stats())


@obeying_tasks
def metrics() -> str:
    """Returns what this process counted as the text that Prometheus reads.

    There are counters (``modcache_hits_total{tier="memory"}``, ...) and histograms of durations in
    seconds (``modcache_hit_duration_seconds``: every 16th hit is timed and stands for 16). They
    only grow while the process lives: ``reset_stats`` leaves them alone.

    >>> import modcache
    >>> "modcache_misses_total " in modcache.metrics()
    True
    """
    return str(torch.ops.cache.metrics())


@obeying_tasks
def reset_stats() -> None:
    """Sets the counters to zero, except those of entries and bytes."""
    torch.ops.cache.reset_stats()


@obeying_tasks
def flush() -> None:
    """Writes everything stored before this call to disk, so that it survives a power loss.

    A failure of the disk is counted in ``stats()["errors"]`` and logged, not raised. Earlier
    messages are in ``logging`` when this returns.
    """
    torch.ops.cache.flush()
    deliver()


@obeying_tasks
def clear(scope: str = "", *, prefix: str = "", tier: str = "all", older_than: float = 0.0) -> int:
    """Removes entries: all, or those of one scope, or those whose key starts with ``prefix``.

    Entries of other namespaces than the present one (``configure(namespace=...)``) stay. A call
    without arguments, outside of a namespace, empties the whole directory with all namespaces. The
    modes ``"read"``, ``"verify"`` and ``"off"`` forbid writing the directory, so nothing is removed
    then, except with ``tier="memory"``, which frees what this process holds. With a server
    (``configure(remote=...)``) nothing that was stored there so far in the present namespace, or
    under the scope, is found again, whatever ``prefix`` says; other machines keep what they hold.

    Args:
        scope: a ``scope`` as given to ``lookup_or_run``, or a module's ``fingerprint``; empty: all.
        prefix: the beginning of the keys; empty: all.
        tier: ``"all"``, ``"memory"``, ``"disk"`` or ``"remote"``.
        older_than: seconds; only entries that were stored longer ago are removed. 0: all.

    Returns:
        The number of removed entries, which no later call of any process finds. If the mode forbids
        it, 0, with a warning in the log.

    Raises:
        TypeError, ValueError: an argument that is no text, an unknown tier, or a time that is
            negative or no number.

    >>> import modcache, torch
    >>> _ = modcache.lookup_or_run(torch.nn.ReLU(), torch.ones(2), "a", scope="relu@1")
    >>> modcache.clear("relu@1"), modcache.contains("relu@1", "a")
    (1, False)
    """
    scope = checked_text(scope, "scope")
    prefix = checked_text(prefix, "prefix", '"train/"')
    tier = checked_text(tier, "tier", '"memory"')
    if isinstance(older_than, bool) or not isinstance(older_than, (int, float)):
        raise TypeError(f"older_than must be a number of seconds, not {older_than!r}")
    return int(
        torch.ops.cache.clear(scope, prefix=prefix, tier=tier, older_than_s=float(older_than))
    )


@obeying_tasks
def contains(scope: str, key: str | bytes | int | TupleKey) -> bool:
    """Whether the cache has the entry of ``forward`` for a whole value under ``scope`` and ``key``.

    It runs nothing and counts nothing. ``scope`` may be a module's ``fingerprint``; ``key`` is
    text, bytes in UTF-8, an integer, or a tuple of text and integers. Rows are entries of their
    own, which this function does not find; ``modcache.explain`` does.

    Raises:
        TypeError: an argument of another type.
        ValueError: an argument that is empty or no valid Unicode.

    >>> import modcache, torch
    >>> _ = modcache.lookup_or_run(torch.nn.ReLU(), torch.ones(2), "a", scope="relu@1")
    >>> modcache.contains("relu@1", "a"), modcache.contains("relu@1", "b")
    (True, False)
    """
    scope = checked_text(scope, "scope")
    return bool(torch.ops.cache.contains(scope, key_text(key, "key")))
