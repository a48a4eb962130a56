# SPDX-License-Identifier: Apache-2.0
"""Where the memory tier holds the values of a module or scope."""

from __future__ import annotations

import torch

from modcache._prefetch import scope_of
from modcache._text import checked_text


def place(
    scope: str | torch.nn.Module, place: str | torch.device, *, method: str = "forward"
) -> str:
    """Says in which memory the values of this scope are held; what is held there already moves.

    It changes where values wait, not what a call returns: a hit comes back on the device that the
    module's own result would be on, and entries on disk stay as they are. The bytes count in the
    one setting ``memory``, wherever they lie. It holds for this process and this very scope; of a
    module whose weights change, place it again.

    >>> import modcache
    >>> modcache.place("clip-vit-b32@3", "host")
    'host'

    Args:
        scope: as given to ``lookup_or_run``, or the module, whose fingerprint it then is.
        place: ``"host"``, ordinary memory, which is the default.
            ``"pinned"``: hits that come back on the CPU lie in page-locked memory, so that
            ``.to(device, non_blocking=True)`` goes on beside other work.
            ``"accelerator"``, or one device such as ``"cuda:0"``: values stay in its memory, and a
            call whose input lies there copies nothing from the host. Rows found on disk are
            brought there in the background.
        method: the method whose fingerprint is meant.

    Returns:
        The place that it is: on a machine without an accelerator ``"pinned"`` and
        ``"accelerator"`` are ``"host"``, and one message says so.

    Raises:
        TypeError: no text, device or module.
        ValueError: no such place, or a device that this machine does not have; the message lists
            what is valid.
    """
    name = str(place) if isinstance(place, torch.device) else place
    name = checked_text(name, "place", '"pinned"')
    return str(torch.ops.cache.place(scope_of(scope, method), name))
