# SPDX-License-Identifier: Apache-2.0
"""Settings, counters and housekeeping: typed names for the library's operators.

What is a valid option or value is the library's knowledge; this file only turns Python values
into the text that the library reads.
"""

from __future__ import annotations

import os

import torch

from modcache._logging import deliver
from modcache._stats import Stats
from modcache._text import checked_text
from modcache._workers import note_configured


def configure(**options: str | int | float | bool | os.PathLike[str]) -> None:
    """Sets options, for instance ``configure(dir="/data/cache", memory="2GB", strict=True)``.

    Args:
        **options: sizes in bytes (an int, or text such as ``"512MiB"``), times in seconds, paths
            as text or ``os.PathLike``, switches as bool. An option given here wins over its
            environment variable ``MODCACHE_<NAME>``.

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
    """Counters of this process since its start or ``reset_stats``.

    A dict, by name; printed, it is a table of what is not zero.

    ``run_us`` and ``saved_us`` are microseconds, ``bytes_memory`` and ``bytes_disk`` bytes.
    ``entries_disk`` and ``bytes_disk`` are the directory's, whoever wrote them.
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


def clear(scope: str = "", *, prefix: str = "", tier: str = "all") -> int:
    """Removes entries: all, or those of one scope, or those whose key starts with ``prefix``.

    Args:
        scope: a ``scope`` as given to ``lookup_or_run``, or a module's ``fingerprint``.
        prefix: the beginning of the keys.
        tier: ``"all"`` or ``"memory"``, or ``"disk"``.

    Returns:
        How many entries were removed. The next call of every process sees that they are gone.

    Raises:
        TypeError, ValueError: an argument that is no text, or an unknown tier.
    """
    scope = checked_text(scope, "scope", '"clip-vit-b32@3"')
    prefix = checked_text(prefix, "prefix", '"train/"')
    tier = checked_text(tier, "tier", '"memory"')
    return int(torch.ops.cache.clear(scope, prefix=prefix, tier=tier))


def contains(scope: str, key: str) -> bool:
    """Whether the whole-value entry of ``forward`` under ``scope`` and ``key`` is there.

    Runs nothing and counts nothing. ``scope`` may be a module's ``fingerprint``.

    Raises:
        TypeError: an argument that is no text. ValueError: one that is empty or no valid Unicode.
    """
    scope = checked_text(scope, "scope", '"clip-vit-b32@3"')
    return bool(torch.ops.cache.contains(scope, checked_text(key, "key", '"image-000017"')))
