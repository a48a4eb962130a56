# SPDX-License-Identifier: Apache-2.0
"""The device memory in which the memory tier holds the values of a scope."""

from __future__ import annotations

import torch

from modcache._library.text import checked_text
from modcache._lookup.prefetch import scope_of


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
