# SPDX-License-Identifier: Apache-2.0
"""Finds libmodcache.so and loads it into torch.

The build writes ``libmodcache.json`` beside the library: the version of modcache and of the
torch it was built against. Nothing here knows what the library does.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path

import torch

_LIBRARY_NAME = "libmodcache.so"


def _candidates() -> list[Path]:
    """Where the library may be, best place first."""
    chosen = os.environ.get("MODCACHE_LIBRARY")
    if chosen:
        return [Path(chosen)]
    package = Path(__file__).resolve().parent
    places = [package / _LIBRARY_NAME, package / "lib" / _LIBRARY_NAME]
    checkout = package.parent.parent
    if (checkout / "csrc").is_dir():
        built = [
            *checkout.glob(f"build/*/{_LIBRARY_NAME}"),
            *checkout.glob(f"build/*/*/{_LIBRARY_NAME}"),
        ]
        sanitized = ("asan", "tsan")  # cannot be loaded into an ordinary Python
        usable = [path for path in built if not any(word in str(path) for word in sanitized)]
        places += sorted(usable, key=lambda path: path.stat().st_mtime, reverse=True)
    return places


def _build_facts(library: Path) -> dict[str, str]:
    """What the build wrote about ``library``; empty when it wrote nothing."""
    try:
        facts = json.loads(library.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in facts.items()}


def _failure(tried: list[Path], library: Path | None, reason: str) -> ImportError:
    """The one error of this file: everything needed to see what is wrong."""
    facts = _build_facts(library) if library else {}
    built_for = facts.get("torch", "unknown (no build facts beside the library)")
    lines = [
        f"modcache cannot load its native library: {reason}",
        "tried: " + ", ".join(str(path) for path in tried),
        f"torch here: {torch.__version__}; the library was built for torch: {built_for}",
        "Install modcache against this torch (pip install --no-build-isolation .), or set "
        "MODCACHE_LIBRARY to the path of a libmodcache.so that was built for it.",
    ]
    return ImportError("\n  ".join(lines))


def _load_guards(library: Path) -> None:
    """Has ``from modcache import _guards`` find what lies beside the library.

    Where it was built without Python's headers nothing is there, or for another Python: the package
    works without, and is slower.
    """
    path = library.parent / f"_guards{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    spec = importlib.util.spec_from_file_location("modcache._guards", path)
    if spec is None or spec.loader is None or not path.is_file():
        return
    guards = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(guards)
    sys.modules["modcache._guards"] = guards


def load() -> tuple[str, str]:
    """Loads the library, once per process.

    Returns:
        Its absolute path, and the version of modcache it was built from.

    Raises:
        ImportError: no library, or one that this torch cannot load. The message has the paths
            tried, the torch version seen and the one it was built for.
    """
    tried = _candidates()
    library = next((path for path in tried if path.is_file()), None)
    if library is None:
        raise _failure(tried, None, f"{_LIBRARY_NAME} is not there")
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        torch.ops.cache.lookup_or_run  # noqa: B018  (an attribute error if it registered nothing)
    except (OSError, RuntimeError, AttributeError) as error:
        raise _failure(tried, library, str(error)) from error
    _load_guards(library.resolve())
    return str(library.resolve()), _build_facts(library).get("version", "unknown")
