# SPDX-License-Identifier: Apache-2.0
"""Settings, counters and housekeeping: typed names for the library's operators.

What is a valid option or value is the library's knowledge; this file only turns Python values
into the text that the library reads.
"""

from __future__ import annotations

import os

import torch

from modcache._logging import deliver
from modcache._mode import obeying_tasks
from modcache._stats import Stats
from modcache._text import checked_text
from modcache._workers import note_configured


def configure(**options: str | int | float | bool | os.PathLike[str]) -> None:
    """Sets options, for instance ``configure(dir="/data/cache", memory="2GB", strict=True)``.

    Each is also the environment variable ``MODCACHE_<NAME>``; what is given here wins. Other
    options stay what they are. ``settings()`` shows all.

    Args:
        **options: sizes in bytes, an int or text such as ``"2GB"`` (2 * 10**9) or ``"512MiB"``:

            - ``dir``: the cache directory. Default: ``$XDG_CACHE_HOME/modcache``, else
              ``~/.cache/modcache``.
            - ``memory``: size of the memory tier (``"1GB"``); 0: none. When it is used up, what was
              used longest ago goes.
            - ``disk``: size of the directory (``"100GB"``); when it is used up nothing more is
              stored.
            - ``mode``: as ``set_mode``.
            - ``dtype``: what floating-point values are stored as: ``"keep"``, ``"float16"`` or
              ``"bfloat16"``. They come back in the module's own dtype.
            - ``codec``: ``"none"``, or ``"zstd"``: lossless compression on disk.
            - ``durability``: ``"relaxed"``: on disk after 100 ms at most; ``"strict"``: before the
              call returns.
            - ``match``: what of the input a hit must match: ``"input"`` (dtype, shape and a sample
              of the values), ``"shape"`` (dtype and shape), ``"dtype"`` or ``"none"``.
            - ``match_device_share``: of inputs on an accelerator the sample of a scope's first
              calls is compared, then that of this share of them: 0.02; 1: of all, 0: of no more.
            - ``strict``: True: what may not be cached is an error, not a warning.
            - ``namespace``: a text; entries of one namespace are not found in another.
            - ``max_rows``: how many rows one run on a partly missing batch may have; 0: all.
            - ``min_run_us``: results of runs shorter than so many microseconds are not kept (0).
            - ``verify_rtol``: the relative tolerance of mode ``"verify"`` (0.0001).
            - ``io``: how files are read: ``"mmap"``, or ``"pread"`` where others may truncate them.
            - ``log``: ``"off"``, ``"error"``, ``"warning"`` or ``"info"``: the least that is said.

    Raises:
        TypeError: a value of another type.
        ValueError: an unknown option or a bad value; the message lists what is valid. Nothing is
            changed then, also not by the other options of the call.
    """
    texts = {
        checked_text(name, "the option's name", '"memory"'): _as_text(name, value)
        for name, value in options.items()
    }
    try:
        torch.ops.cache.configure(texts)
    except RuntimeError as error:
        raise ValueError(str(error).split("\n", 1)[0]) from None
    note_configured(texts)


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
        return checked_text(value, f"configure({name}=...)", '"/data/cache"')
    given = "None" if value is None else f"{type(value).__name__}"
    raise TypeError(
        f"configure({name}=...) takes a str, int, float, bool or os.PathLike, but got {given}. "
        "Leave the option out to keep what it is; settings() shows all of them."
    )


def settings() -> dict[str, str]:
    """The settings in force, by option name, as the text that ``configure`` would take.

    ``mode`` is the process's: guards of the calling thread do not show.
    """
    return dict(torch.ops.cache.settings())


def stats() -> Stats:
    """Counters of this process since its start or ``reset_stats``: a dict; printed, a table.

    The table leaves out what is zero. With one key per row each row counts.

    - ``hits_memory``, ``hits_disk``, ``hits_remote``: keys that were found, by tier.
    - ``misses``: keys that were not, so that the module ran; ``stored``: results then kept.
    - ``bypassed_off``, ``bypassed_grad``, ``bypassed_impure``, ``bypassed_type``: run uncached,
      since the mode was off, the result requires grad, it was no function of state and input, or
      it cannot be stored.
    - ``key_conflicts``: keys that were stored for an input of another dtype or shape.
    - ``verify_differences``: results that differ from the stored ones, in mode ``"verify"``.
    - ``evicted``: entries that others pushed out of a tier.
    - ``not_kept``: results that the directory (with ``disk=0``: memory) did not take: it is full
      of what is rather kept, or they are too large for it.
    - ``corrupt``: damaged entries, each of them a miss; ``errors``: failures of the cache, none of
      which failed a call.
    - ``run_us``, ``saved_us``: microseconds that modules ran on misses, and that the runs of what
      hit had taken.
    - ``entries_memory``, ``bytes_memory``: what this process holds; ``entries_disk``,
      ``bytes_disk``: what the directory holds, whoever wrote it.
    """
    return Stats(torch.ops.cache.stats())


def reset_stats() -> None:
    """Sets the counters to zero; entries and bytes stay what they are."""
    torch.ops.cache.reset_stats()


def flush() -> None:
    """Returns when everything stored before this call survives a power loss.

    A disk that cannot take it is counted in ``stats()["errors"]`` and logged, not raised.
    Messages that arose before are in ``logging`` when this returns.
    """
    torch.ops.cache.flush()
    deliver()


@obeying_tasks
def clear(scope: str = "", *, prefix: str = "", tier: str = "all", older_than: float = 0.0) -> int:
    """Removes entries: all, or those of one scope, or those whose key starts with ``prefix``.

    Entries of other namespaces than the one that is set (``configure(namespace=...)``) stay.
    Without any argument and without a namespace the whole directory is emptied, and so are all
    namespaces in it. In the modes ``"read"``, ``"verify"`` and ``"off"`` nothing is removed, apart
    from ``tier="memory"``, which frees what this process holds: the directory may not be written.

    Args:
        scope: a ``scope`` as given to ``lookup_or_run``, or a module's ``fingerprint``; empty: all.
        prefix: the beginning of the keys; empty: all.
        tier: ``"all"``, ``"memory"`` or ``"disk"``.
        older_than: seconds; only what was stored longer ago. 0: whatever its age.

    Returns:
        How many entries were removed; the next call of every process sees that they are gone. 0,
        and a warning in the log, where the mode forbids it.

    Raises:
        TypeError, ValueError: an argument that is no text, an unknown tier, or a time that is
            negative or no number.
    """
    scope = checked_text(scope, "scope", '"clip-vit-b32@3"')
    prefix = checked_text(prefix, "prefix", '"train/"')
    tier = checked_text(tier, "tier", '"memory"')
    if isinstance(older_than, bool) or not isinstance(older_than, (int, float)):
        raise TypeError(f"older_than must be a number of seconds, not {older_than!r}")
    return int(
        torch.ops.cache.clear(scope, prefix=prefix, tier=tier, older_than_s=float(older_than))
    )


@obeying_tasks
def contains(scope: str, key: str) -> bool:
    """Whether the whole-value entry of ``forward`` under ``scope`` and ``key`` is there.

    Runs nothing and counts nothing. ``scope`` may be a module's ``fingerprint``. Rows are entries
    of their own, which it does not see: ``modcache.explain`` does.

    Raises:
        TypeError: an argument that is no text.
        ValueError: one that is empty or no valid Unicode.
    """
    scope = checked_text(scope, "scope", '"clip-vit-b32@3"')
    return bool(torch.ops.cache.contains(scope, checked_text(key, "key", '"image-000017"')))
