# SPDX-License-Identifier: Apache-2.0
"""Whether the code that a process runs is still the code in its file.

A file that was last touched before the process began has not changed since it was loaded. A file
that was touched later may have been written before its import (a notebook installs a package) or
after it (an upgrade under a running process). Then the file is compiled again, and the module is
compared with the outcome. A library is the same while the mapped file is the one of that name.
"""

from __future__ import annotations

import dis
import logging
import os
import time
import types
from collections.abc import Iterator
from pathlib import Path

from modcache._code.objects import attribute_of, is_a
from modcache._code.scan import with_inner
from modcache._code.tokens import ATOMS

_SLACK_S = 0.010  # the kernel's clocks for files and for processes differ by that


def _beginning() -> float:
    """Returns when this interpreter or its parent by fork began, in seconds since the epoch."""
    found = [time.time(), float(getattr(logging, "_startTime", time.time()))]
    if found[1] > 1e12:  # Python 3.13 counts in nanoseconds
        found[1] /= 1e9
    try:
        text = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        ticks = int(text.rpartition(")")[2].split()[19])
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        found.append(time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    return min(found)


_BEGAN_S = _beginning()


def may_have_changed_since_loaded(file: str) -> bool:
    """False only for a file that was last touched before this process began."""
    try:
        state = Path(file).stat()
    except OSError:
        return Path(file).parent.is_dir()  # removed, unless it is inside of an archive
    return max(state.st_ctime, state.st_mtime) > _BEGAN_S + _SLACK_S


def is_as_on_disk(module: types.ModuleType) -> bool:
    """Whether a module has the functions and constants of its file."""
    file = str(module.__file__)
    if not file.endswith(".py"):
        return _is_mapped(file)
    code = _compiled(file)
    if code is None:
        return False
    known = _codes_below(code)
    functions = _functions_of(module, file)
    return all(_is_among(function.__code__, known) for function in functions) and all(
        name not in vars(module) or _is_same(vars(module)[name], value)
        for name, value in _constants_of(code).items()
    )


def is_code_on_disk(code: types.CodeType) -> bool:
    """Whether the file of this code still has it."""
    compiled = _compiled(code.co_filename)
    return compiled is not None and _is_among(code, _codes_below(compiled))


_compiled_files: dict[str, tuple[tuple[int, int, int], types.CodeType | None]] = {}


def _compiled(file: str) -> types.CodeType | None:
    try:
        state = Path(file).stat()
        stamp = (state.st_mtime_ns, state.st_ctime_ns, state.st_size)
        known = _compiled_files.get(file)
        if known is None or known[0] != stamp:
            known = (stamp, compile(Path(file).read_bytes(), file, "exec", dont_inherit=True))
            _compiled_files[file] = known
    except (OSError, SyntaxError, ValueError):
        return None
    return known[1]


def _codes_below(code: types.CodeType) -> dict[tuple[str, int], list[types.CodeType]]:
    found: dict[tuple[str, int], list[types.CodeType]] = {}
    for each in with_inner(code):
        found.setdefault((each.co_name, each.co_firstlineno), []).append(each)
    return found


def _is_among(code: types.CodeType, known: dict[tuple[str, int], list[types.CodeType]]) -> bool:
    return code in known.get((code.co_name, code.co_firstlineno), ())


def _functions_of(module: types.ModuleType, file: str) -> Iterator[types.FunctionType]:
    """Finds the functions of the module and its classes that come from its file."""
    for value in list(vars(module).values()):
        is_own = is_a(value, type) and value.__module__ == module.__name__
        for each in [value, *(vars(value).values() if is_own else ())]:
            found = attribute_of(each, "__func__", attribute_of(each, "fget", each))
            if is_a(found, types.FunctionType) and found.__code__.co_filename == file:
                yield found


def _constants_of(code: types.CodeType) -> dict[str, object]:
    """Finds the names to which the module assigns a constant, and assigns only once."""
    found: dict[str, object] = {}
    again: set[str] = set()
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_NAME", "STORE_GLOBAL"):
            name = str(instruction.argval)
            if name in found or before is None or before.opname != "LOAD_CONST":
                again.add(name)
            else:
                found[name] = before.argval
        before = instruction
    return {
        name: value
        for name, value in found.items()
        if name not in again and type(value) in ATOMS and not name.startswith("__")
    }


def _is_same(value: object, constant: object) -> bool:
    return type(value) is type(constant) and repr(value) == repr(constant)


def _is_mapped(file: str) -> bool:
    """Whether the library that is mapped is the file of that name, not one that it replaced."""
    try:
        inode = Path(file).stat().st_ino
        with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as stream:
            return any(
                int(parts[4]) == inode
                for parts in (line.split(None, 5) for line in stream)
                if len(parts) == 6 and parts[5].strip() == file
            )
    except (OSError, ValueError):
        return False
