# SPDX-License-Identifier: Apache-2.0
"""The options of the default cache that were set explicitly, by ``configure`` and ``set_mode``.

Worker processes and unpickled objects receive these options. All others come from the environment
of each process.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from modcache._library.tasks import current_owner, in_default_cache

_own: dict[str, str] = {}  # set by code of this very process
_inherited: dict[str, str] = {}  # from the process that started this one, or an unpickled object


def note_configured(given: Mapping[str, str]) -> None:
    """Records options that were set in this process."""
    in_force = _settings()
    for name in given:
        # A relative path means the directory of now. settings() hides the password of `remote`.
        _own[name] = given[name] if name == "remote" else in_force[name]


def is_set_here(option: str) -> bool:
    """Whether code of this very process has set the option."""
    return option in _own


def directory_in_use() -> str:
    """Identifies the directory of the current cache, without a call of the library.

    "": the directory that the default cache has in this process's environment.
    """
    owner = current_owner()
    if owner is None:
        return _own.get("dir") or _inherited.get("dir", "")
    return str(owner._directory)


def explicit_options() -> dict[str, str]:
    """Returns all options that were set, here or in the process that started this one."""
    return {**_inherited, **_own}


def inherit(options: Mapping[str, str]) -> None:
    """Takes over the options of the process that started this one, as a fork does.

    They replace what importing the main module has set.
    """
    _apply(options, "the parent process")
    _own.clear()


Pickled = list[tuple[str, str, str | None]]
"""Options that travel with a pickled object: name, value, the value in the environment."""


def options_for_pickle() -> Pickled:
    """Returns the explicit options, in a fixed order, without the password of a server."""
    options = explicit_options()
    if not options:
        return []
    in_force = _settings()
    return [
        (name, options[name], os.environ.get(_variable(name)))
        for name in sorted(options)
        if name != "remote" or options[name] == in_force[name]
    ]


def adopt_pickled(sent: Iterable[tuple[str, str, str | None]]) -> None:
    """Takes over the options of an unpickled object, if this process has set none itself.

    An environment variable that differs from the one of the process that pickled wins.
    """
    if _own:
        return
    options = {
        name: value
        for name, value, variable in sent
        if _inherited.get(name) != value and os.environ.get(_variable(name), variable) == variable
    }
    _apply(options, "an unpickled object")


def make_with(options: Pickled, make: Callable[..., Any], *arguments: Any) -> Any:
    """Makes an unpickled object after taking over its options. Pickles name this function."""
    adopt_pickled(options)
    return make(*arguments)


def _apply(options: Mapping[str, str], source: str) -> None:
    if not options:
        return
    try:
        with in_default_cache():
            torch.ops.cache.configure(dict(options))
    except RuntimeError as error:
        reason = str(error).split("\n", 1)[0]
        warnings.warn(f"modcache: settings of {source} not used: {reason}", stacklevel=3)
    else:
        _inherited.update(options)


def _settings() -> Mapping[str, str]:
    """Returns the settings in force of the default cache."""
    with in_default_cache():
        found: Mapping[str, str] = torch.ops.cache.settings()
    return found


def _variable(option: str) -> str:
    return f"MODCACHE_{option.upper()}"


def _keep_as_inherited() -> None:
    """What the parent had set is inherited in a forked child."""
    _inherited.update(_own)
    _own.clear()


os.register_at_fork(after_in_child=_keep_as_inherited)
