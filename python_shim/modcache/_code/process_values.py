# SPDX-License-Identifier: Apache-2.0
"""Globals of installed packages that have another value in each process, such as a session number.

No other process could compute a fingerprint that holds one. In Hugging Face's transformers, the
code of every model reaches such a global.
"""

from __future__ import annotations

import dis
import functools
import sys
import types

from modcache._code.scan import resolved_import

_MOST_HOPS = 8
# Functions whose results no two processes have in common.
_FRESH = frozenset(
    {
        "uuid1", "uuid4", "token_hex", "token_bytes", "token_urlsafe", "urandom",
        "getpid", "getppid", "mkdtemp", "mkstemp", "mktemp",
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
        "process_time", "now", "utcnow",
    }
)  # fmt: skip


def is_of_this_process(module_name: str, name: str) -> bool:
    """Whether the module, or the one that it imports ``name`` from, makes its value anew.

    False also where the code of the module cannot be found.
    """
    for _ in range(_MOST_HOPS):
        source = _places_of(module_name).get(name)
        if source is None or source == _MADE_ANEW:
            return source is not None
        module_name, name = source
    return False


_MADE_ANEW = ("", "")


@functools.lru_cache(maxsize=1024)
def _places_of(module_name: str) -> dict[str, tuple[str, str]]:
    """Maps names that each process makes anew to _MADE_ANEW, and imported names to their source."""
    found: dict[str, tuple[str, str]] = {}
    code = _code_of(module_name)
    package = str(getattr(sys.modules.get(module_name), "__package__", None) or "")
    level, imported = 0, ""
    is_fresh = False  # a value made by one of these functions is on the stack
    source: tuple[str, str] | None = None
    for instruction in dis.get_instructions(code) if code else ():
        operation, argument = instruction.opname, instruction.argval
        if operation.startswith("STORE_") and operation != "STORE_SUBSCR":
            if is_fresh:
                found[str(argument)] = _MADE_ANEW
            elif source is not None:
                found.setdefault(str(argument), source)
        elif operation in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"):
            is_fresh = is_fresh or argument in _FRESH
            continue
        elif operation == "IMPORT_NAME":
            imported = resolved_import("." * level + str(argument), package)
        elif type(argument) is int and operation.startswith("LOAD_"):
            level = argument
        source = (imported, str(argument)) if operation == "IMPORT_FROM" else None
        if operation.startswith(("STORE_", "POP_TOP", "RETURN_")):
            is_fresh = False
    return found


def _code_of(module_name: str) -> types.CodeType | None:
    """Finds the code that the module ran when it was imported."""
    spec = getattr(sys.modules.get(module_name), "__spec__", None)
    get_code = getattr(getattr(spec, "loader", None), "get_code", None)
    try:
        code = get_code(module_name) if get_code else None
    except (ImportError, OSError, SyntaxError):
        return None
    return code if isinstance(code, types.CodeType) else None
