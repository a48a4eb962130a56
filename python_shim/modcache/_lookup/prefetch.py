# SPDX-License-Identifier: Apache-2.0
"""Brings entries from disk into memory before a call needs them."""

from __future__ import annotations

import torch

from modcache._call.keys import Keys, checked_keys
from modcache._lazy.model import Lazy
from modcache._library.tasks import obeying_tasks
from modcache._library.text import checked_text
from modcache._lookup.lookup import fingerprint


def scope_of(scope: str | torch.nn.Module, method: str = "forward") -> str:
    """Returns the given scope, a lazy module's own, or a module's fingerprint."""
    if isinstance(scope, Lazy) and scope._source.scope:
        return scope._source.scope
    if isinstance(scope, torch.nn.Module):
        return fingerprint(scope, method=method)
    return checked_text(scope, "scope", '"clip-vit-b32@3", or a torch.nn.Module')


@obeying_tasks
def prefetch(
    scope: str | torch.nn.Module,
    keys: Keys,
    *,
    method: str = "forward",
) -> int:
    """Brings entries from disk into memory ahead of use, and returns how many keys are cached.

    It returns at once: a thread of the library reads the values, and a call that comes earlier
    finds them on disk. It finds rows and whole values of calls whose input held only tensors, under
    the calling thread's autocast state. It counts no hit and no miss.

    These entries push out those that were used longest ago, within the setting ``memory``. Entries
    of one call never push each other out: if they are too many, the last ones stay on disk.

    >>> import modcache, torch
    >>> scope = "doubled@1"
    >>> rows = torch.ops.cache.store(scope, "a", torch.ones(2))
    >>> modcache.prefetch(scope, ["a", "b"])
    1

    Args:
        scope: as given to ``lookup_or_run``, or a module, for the scope that is its fingerprint.
        keys: as for ``lookup_or_run``: one key, or one for each of many. Equal keys count once.
        method: the method that made the results.

    Returns:
        The number of distinct keys that are cached, in memory or on disk; 0 if the mode forbids
        reading.

    Raises:
        TypeError: a scope or keys of another type, or a module that has no fingerprint.
        ValueError: an empty scope or key.
    """
    scope = scope_of(scope, method)
    method = checked_text(method, "method")
    wanted = checked_keys(keys)
    texts = [wanted] if isinstance(wanted, str) else wanted
    return int(torch.ops.cache.prefetch(scope, texts, method=method))


@obeying_tasks
def place(
    scope: str | torch.nn.Module, place: str | torch.device, *, method: str = "forward"
) -> str:
    """Chooses the memory that holds the values of a scope, and moves those that are held already.

    It does not change what a call returns: a hit is on the device that the module's own result
    would be on. Entries on disk do not change. The bytes count in the one setting ``memory``, in
    any place. The choice holds for this process and this very scope; after a module's weights
    change, call it again.

    >>> import modcache
    >>> modcache.place("clip-vit-b32@3", "host")
    'host'

    Args:
        scope: as given to ``lookup_or_run``, or a module, for the scope that is its fingerprint.
        place: ``"host"``: ordinary memory, the default.
            ``"pinned"``: hits on the CPU are in page-locked memory, so that
            ``.to(device, non_blocking=True)`` runs beside other work.
            ``"accelerator"``, or one device such as ``"cuda:0"``: values stay in its memory, and a
            call whose input is there copies nothing from the host. Rows found on disk are brought
            there in the background.
        method: the method whose fingerprint is the scope.

    Returns:
        The chosen place. On a machine without an accelerator, ``"pinned"`` and ``"accelerator"``
        become ``"host"``, with one message in the log.

    Raises:
        TypeError: an argument is no text, device or module.
        ValueError: no such place, or a device that this machine does not have; the message lists
            what is valid.
    """
    name = str(place) if isinstance(place, torch.device) else place
    name = checked_text(name, "place", '"pinned"')
    return str(torch.ops.cache.place(scope_of(scope, method), name))
