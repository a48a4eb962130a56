# SPDX-License-Identifier: Apache-2.0
"""Compares the code that a run called with the code that identifies its module.

A look at a module follows names. Code can reach other code in more ways: through a registry,
torch's dispatcher, or objects in C. So a run whose result is to be stored is observed: the look
before it must have followed every function of the user's own that the run calls. If not, the result
is not stored, since nobody would notice a change of that function.

Other threads, compiled code, functions of C, and which of several closures over one code was called
are not observed. Code of installed packages may be called: its distribution identifies it.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from modcache._code.names import TRUSTED_MODULES, is_installed_file, top_package
from modcache._code.scan import with_inner
from modcache._identity.records import codes_among
from modcache._library.compiled_part import guards

if TYPE_CHECKING:
    from modcache._identity.walk import Walk

# Code that runs inside these functions is not observed: handlers of log messages do not change a
# result, and importing a module only defines what later looks find.
_PASSED_OVER = [
    logging.Logger.handle.__code__,
    vars(importlib._bootstrap)["_find_and_load"].__code__,
]
# Cached functions are code of this package with the globals of their targets.
_THIS_PACKAGE = __file__.removesuffix("_identity/observed.py")
_RESUMED = "torch_dynamo_resume_in_"
_COMPILER = "torch._dynamo.convert_frame"

# Before Python 3.11.3, a garbage collection that meets a generator that runs under a profiler reads
# freed memory (python/cpython#101975).
_COLLECTS_SAFELY = sys.version_info >= (3, 11, 3)

_Seen = list[tuple[types.CodeType, dict[str, Any]]]


def called(run: Callable[[], Any]) -> tuple[Any, _Seen]:
    """Calls ``run``, and returns its output and the code that it ran, without harmless code."""
    if _COLLECTS_SAFELY:
        return _observed(run)
    with _collections:
        return _observed(run)


def _observed(run: Callable[[], Any]) -> tuple[Any, _Seen]:
    _pass_over_compiler()
    observer = _Observer() if guards is None else guards.CallObserver()
    observer.start()
    try:
        output = run()
    finally:
        seen = observer.stop()
    return output, seen


class _CollectionsOff:
    """Keeps automatic garbage collections off until the last of all threads has left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._was_on = gc.isenabled()
            self._inside += 1
            gc.disable()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._was_on:
                gc.enable()


_collections = _CollectionsOff()


def _pass_over_compiler() -> None:
    """Passes over torch.compile's compiler, including a backend of the user's."""
    compiler = getattr(sys.modules.get(_COMPILER), "CatchErrorsWrapper", object)
    code = getattr(vars(compiler).get("__call__"), "__code__", None)
    if code is not None and code not in _PASSED_OVER:
        _PASSED_OVER.append(code)
        if guards is not None:
            guards.pass_over(code)


def unfollowed(seen: _Seen, followed: Callable[[], set[types.CodeType]]) -> str:
    """Returns a clause that names a function that ran and was not followed; "" for none."""
    own = list(_own_code(seen))
    if not own:
        return ""
    known = followed()
    for code in own:
        if code in known or _is_compiled_from(code, known):
            continue
        where = f"{code.co_filename}:{code.co_firstlineno}"
        name = code.co_qualname
        return f"its run called {name} ({where}), which was not found by looking at the module"
    return ""


def _own_code(seen: _Seen) -> Iterator[types.CodeType]:
    for code, names in seen:
        if not _is_harmless(code, names):
            yield code
        elif guards is not None:
            guards.note_harmless(code)
        else:
            _harmless[id(code)] = code


def _is_harmless(code: types.CodeType, names: dict[str, Any]) -> bool:
    file, name = code.co_filename, str(names.get("__name__"))
    if is_installed_file(file) or top_package(name) in TRUSTED_MODULES:
        return True
    if file.startswith(_THIS_PACKAGE):
        return True
    if not file.startswith("<"):
        return False
    # A graph that torch.compile made of code that was followed.
    if file.startswith("<eval_with_key>") and _COMPILER in sys.modules:
        return True
    # Dataclasses and named tuples make code at run time, whose globals say where it comes from.
    if name.startswith("namedtuple_") or file.startswith("<attrs generated"):
        return True
    return top_package(name) in sys.stdlib_module_names or is_installed_file(
        str(names.get("__file__") or "")
    )


def _is_compiled_from(code: types.CodeType, known: set[types.CodeType]) -> bool:
    """Whether torch.compile made this code of code that was followed, and runs it instead."""
    if "torch._dynamo" not in sys.modules:
        return False
    is_rest = code.co_name.startswith(_RESUMED)
    return any(
        each.co_filename == code.co_filename
        and (is_rest or each.co_firstlineno == code.co_firstlineno)
        for each in known
    )


def codes_of(walk: Walk) -> Iterator[types.CodeType]:
    """Finds the code of all functions that a walk has followed."""
    of_packages = walk.packages.leaves if walk.packages is not None else ()
    for _, code in codes_among(itertools.chain(walk.leaves, *of_packages)):
        for function in code.functions():
            if function is not None:
                yield from with_inner(function.__code__)


class _Observer:
    """The observer in Python, for a package without the compiled part."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[types.CodeType, dict[str, Any]]] = {}
        self._previous: Any = None
        self._is_seeing = False
        self._depth = 0

    def start(self) -> None:
        self._previous = sys.getprofile()
        # A profiler in C cannot be called from here, so nothing is observed beside it.
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


if guards is not None:
    for _code in _PASSED_OVER:
        guards.pass_over(_code)
