# SPDX-License-Identifier: Apache-2.0
"""What a run really called, held against what identifies its module.

An identity is found by looking at names, and code can reach other code in more ways than a look can
follow: through a registry, through the dispatcher of torch, through what C holds. So each run whose
result is to be stored is watched: every function of the user's own that it calls must be one that
the look before had followed. Else the result is not stored, since a change of that function would
not be noticed.

Not seen are other threads, compiled code, functions of C, and which of several closures over one
code was called. Code of installed packages is not asked for: a package is what it is installed as.
"""

from __future__ import annotations

import importlib
import logging
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from modcache._compiled_part import guards
from modcache._names import is_installed_file, top_package
from modcache._reads import Code
from modcache._records import ClassRecord
from modcache._scan import with_inner

if TYPE_CHECKING:
    from modcache._walk import Walk

_TRUSTED = frozenset({"torch", "numpy", "modcache"})
# What handlers of log messages do is no part of a result; a module that is imported in a run only
# defines what later looks find.
_PASSED_OVER = [
    logging.Logger.handle.__code__,
    vars(importlib._bootstrap)["_find_and_load"].__code__,
]
_RESUMED = "torch_dynamo_resume_in_"
_COMPILER = "torch._dynamo.convert_frame"

_Seen = list[tuple[types.CodeType, dict[str, Any]]]


class Followed:
    """The code that looks at one module have followed, until one finds another ``structure``."""

    def __init__(self) -> None:
        self._structure = ""
        self._codes: set[types.CodeType] = set()

    def codes(self, structure: str, walk: Walk) -> set[types.CodeType]:
        if structure != self._structure:
            self._codes = set(codes_of(walk))
            self._structure = structure
        return self._codes


def called(run: Callable[[], Any]) -> tuple[Any, _Seen]:
    """What ``run()`` returns, and the code that it ran, without what is harmless."""
    _pass_over_compiler()
    observer = _Observer() if guards is None else guards.CallObserver()
    observer.start()
    try:
        output = run()
    finally:
        seen = observer.stop()
    return output, seen


def _pass_over_compiler() -> None:
    """Has runs of torch.compile's compiler, a backend of the user's among it, passed over."""
    compiler = getattr(sys.modules.get(_COMPILER), "CatchErrorsWrapper", object)
    code = getattr(vars(compiler).get("__call__"), "__code__", None)
    if code is not None and code not in _PASSED_OVER:
        _PASSED_OVER.append(code)
        if guards is not None:
            guards.pass_over(code)


def unfollowed(seen: _Seen, followed: Callable[[], set[types.CodeType]]) -> str:
    """A clause that names a function that ran and was not followed; "" where there is none."""
    own = list(_own_code(seen))
    if not own:
        return ""
    known = followed()
    for code in own:
        if code in known or _is_compiled_from(code, known):
            continue
        where = f"{code.co_filename}:{code.co_firstlineno}"
        name = getattr(code, "co_qualname", code.co_name)
        return f"its run called {name} ({where}), which was not found by looking at the module"
    return ""


def _own_code(seen: _Seen) -> Iterator[types.CodeType]:
    for code, names in seen:
        if _is_harmless(code, names):
            _note_harmless(code)
        else:
            yield code


def _is_harmless(code: types.CodeType, names: dict[str, Any]) -> bool:
    file, name = code.co_filename, str(names.get("__name__"))
    if is_installed_file(file) or top_package(name) in _TRUSTED:
        return True
    if not file.startswith("<"):
        return False
    # A graph that torch.compile made of code that was followed.
    if file.startswith("<eval_with_key>") and _COMPILER in sys.modules:
        return True
    # Made at run time, as dataclasses and named tuples are: whose it is, its names tell.
    if name.startswith("namedtuple_") or file.startswith("<attrs generated"):
        return True
    return top_package(name) in sys.stdlib_module_names or is_installed_file(
        str(names.get("__file__") or "")
    )


def _is_compiled_from(code: types.CodeType, known: set[types.CodeType]) -> bool:
    """Whether torch.compile made this of code that was followed: such code is in its place."""
    if "torch._dynamo" not in sys.modules:
        return False
    is_rest = code.co_name.startswith(_RESUMED)
    return any(
        each.co_filename == code.co_filename
        and (is_rest or each.co_firstlineno == code.co_firstlineno)
        for each in known
    )


def codes_of(walk: Walk) -> Iterator[types.CodeType]:
    """The code of all functions that a walk has followed."""
    yield from codes_in(walk.leaves)
    for leaves in walk.packages.leaves if walk.packages is not None else ():
        yield from codes_in(leaves)


def codes_in(leaves: Iterable[object]) -> Iterator[types.CodeType]:
    """The code of all functions that are among these leaves of a walk."""
    for leaf in leaves:
        code = leaf.code if isinstance(leaf, ClassRecord) else leaf
        if isinstance(code, Code):
            for function in code.functions():
                if function is not None:
                    yield from with_inner(function.__code__)


class _Observer:
    """The same in Python, where this package has no compiled part."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[types.CodeType, dict[str, Any]]] = {}
        self._previous: Any = None
        self._is_seeing = False
        self._depth = 0

    def start(self) -> None:
        self._previous = sys.getprofile()
        # A profiler of C cannot be called from here: nothing is seen beside it.
        self._is_seeing = self._previous is None or callable(self._previous)
        if self._is_seeing:
            sys.setprofile(self._on_event)

    def stop(self) -> _Seen:
        if self._is_seeing:
            sys.setprofile(self._previous)
        return list(self._seen.values())

    def _on_event(self, frame: types.FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call":
            self._depth += code in _PASSED_OVER
            if not self._depth and id(code) not in _harmless:
                self._seen[id(code)] = (code, frame.f_globals)
        elif event == "return" and self._depth and code in _PASSED_OVER:
            self._depth -= 1
        if self._previous is not None:
            self._previous(frame, event, argument)


_harmless: dict[int, types.CodeType] = {}


def _note_harmless(code: types.CodeType) -> None:
    if guards is not None:
        guards.note_harmless(code)
    else:
        _harmless[id(code)] = code


if guards is not None:
    for _code in _PASSED_OVER:
        guards.pass_over(_code)
