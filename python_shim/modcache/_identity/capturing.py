# SPDX-License-Identifier: Apache-2.0
"""Hooks that transformers leaves in a model at the first call that asks for hidden states.

Each call that asks installs them where they are missing, and in other calls they do nothing. So
they are no part of an identity, unless code of the user's looks at the hooks of modules.
"""

from __future__ import annotations

import types
from collections.abc import Iterable

from modcache._identity.kinds import Mark
from modcache._identity.records import codes_among

HOOK = Mark("hook")  # a leaf before each other hook
# A leaf at the end of what a walk found outside of packages.
HOOKED, NOT_HOOKED = Mark("capturing hooks"), Mark("no capturing hooks")
_MODULE, _HOOK = "transformers.utils.output_capturing", "output_capturing_hook"


def captures(hook: object) -> bool:
    """Whether a forward hook is one of these."""
    return (
        isinstance(hook, types.FunctionType)
        and hook.__name__ == _HOOK
        and hook.__globals__.get("__name__") == _MODULE
    )


def are_looked_at(leaves: Iterable[object]) -> bool:
    """Whether code of the user's may see whether the hooks are there."""
    return any("_forward_hooks" in code.names for _, code in codes_among(leaves))
