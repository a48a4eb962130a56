# SPDX-License-Identifier: Apache-2.0
"""Entries brought from disk into memory before they are asked for."""

from __future__ import annotations

import torch

from modcache._lazy import Lazy
from modcache._lookup import fingerprint
from modcache._mode import obeying_tasks
from modcache._rows import checked_keys
from modcache._text import checked_text


def scope_of(scope: str | torch.nn.Module, method: str = "forward") -> str:
    """A scope as it was given, a lazy module's own, or a module's fingerprint."""
    if isinstance(scope, Lazy) and scope._source.scope:
        return scope._source.scope
    if isinstance(scope, torch.nn.Module):
        return fingerprint(scope, method=method)
    return checked_text(scope, "scope", '"clip-vit-b32@3", or a torch.nn.Module')


@obeying_tasks
def prefetch(
    scope: str | torch.nn.Module,
    keys: str | list[str] | list[int] | torch.Tensor,
    *,
    method: str = "forward",
) -> int:
    """Brings entries from disk into memory ahead of use, and says how many keys are cached.

    Returns at once: a thread of the library reads the values, and a call that comes earlier finds
    them on disk. Found are rows and whole values alike, of calls whose input held nothing but
    tensors, under the calling thread's autocast state. Counts no hit and no miss.

    What is brought pushes out what was used longest ago, within the setting ``memory``; but entries
    of one call never push each other out: the last ones stay on disk when they are too many.

    >>> import modcache, torch
    >>> scope = "doubled@1"
    >>> rows = torch.ops.cache.store(scope, "a", torch.ones(2))
    >>> modcache.prefetch(scope, ["a", "b"])
    1

    Args:
        scope: as given to ``lookup_or_run``, or the module, whose fingerprint it then is.
        keys: as ``lookup_or_run`` takes them: texts, ids, or one text. Equal keys count once.
        method: the method whose results are meant.

    Returns:
        How many of the distinct keys are cached, in memory or on disk; 0 where the mode may not
        read.

    Raises:
        TypeError: a scope or keys of another type, or a module that has no fingerprint.
        ValueError: an empty scope or key.
    """
    scope = scope_of(scope, method)
    method = checked_text(method, "method", '"forward"')
    wanted = (
        [checked_text(keys, "key", '"image-000017"')]
        if isinstance(keys, str)
        else checked_keys(keys)
    )
    return int(torch.ops.cache.prefetch(scope, wanted, method=method))
