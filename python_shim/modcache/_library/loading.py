# SPDX-License-Identifier: Apache-2.0
"""Finds the libmodcache.so for the present version of torch, and loads it into torch.

A library is for one minor version of torch. The package has one for each version that it supports,
``lib/torch-2.13/libmodcache.so``; a source checkout has those that were built there. The build
writes ``libmodcache.json`` beside each library, with the versions of modcache and of the torch that
it was built against. This module does not depend on what the library does.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

_LIBRARY_NAME = "libmodcache.so"
_PACKAGE = Path(__file__).resolve().parent.parent
_COMPILED_PART = "MODCACHE_COMPILED_PART"
_CURE = (
    "Take a version of torch that there is a library for, or install modcache against this torch, "
    "from its sources: pip install --no-build-isolation . MODCACHE_LIBRARY may name a "
    "libmodcache.so that was built for it."
)


@dataclass(frozen=True)
class Loaded:
    """The loaded library, and what it was built from."""

    library: str
    """Absolute path of libmodcache.so."""
    version: str
    """The version of modcache."""
    built_for_torch: str
    """The version of torch that the library was built against."""
    compiled_part: str
    """Absolute path of the package's compiled part, or ``none`` and the reason."""


def _minor(version: str) -> str:
    """Returns ``2.13`` for ``2.13.0+cpu``."""
    return ".".join(version.split(".")[:2])


def _built_in_checkout() -> list[Path]:
    """Finds the libraries that were built in a source checkout, newest first."""
    checkout = _PACKAGE.parent.parent
    if not (checkout / "csrc").is_dir():
        return []
    built = [
        *checkout.glob(f"build/*/{_LIBRARY_NAME}"),
        *checkout.glob(f"build/*/*/{_LIBRARY_NAME}"),
    ]
    return sorted(built, key=lambda path: path.stat().st_mtime, reverse=True)


def _candidates() -> list[Path]:
    """Finds all libraries, for any torch. The first one for a torch is used."""
    chosen = os.environ.get("MODCACHE_LIBRARY")
    if chosen:
        return [Path(chosen)]
    return [*sorted(_PACKAGE.glob(f"lib/torch-*/{_LIBRARY_NAME}")), *_built_in_checkout()]


def _build_facts(library: Path) -> dict[str, str]:
    """Reads what the build wrote about ``library``; {} if it wrote nothing."""
    try:
        facts = json.loads(library.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(facts, dict):
        return {}
    return {str(name): value for name, value in facts.items() if isinstance(value, str)}


def _torch_of(library: Path) -> str:
    """Returns the version of torch; "" if neither the facts nor the folder name it."""
    folder = library.parent.name
    of_folder = folder.removeprefix("torch-") if folder.startswith("torch-") else ""
    return _build_facts(library).get("torch", of_folder)


def _built_for(library: Path) -> str:
    return _torch_of(library) or "unknown (no build facts beside the library)"


def _failure(reason: str, tried: list[Path]) -> ImportError:
    """Makes the error for all failures here, with everything needed to see what is wrong."""
    lines = [
        f"modcache cannot load its native library: {reason}",
        f"torch here: {torch.__version__}",
    ]
    if tried:
        lines += [f"tried: {path}, built for torch {_built_for(path)}" for path in tried]
    else:
        lines.append(f"tried: {_PACKAGE / 'lib' / 'torch-*' / _LIBRARY_NAME}")
    return ImportError("\n  ".join([*lines, _CURE]))


def _library_for_this_torch() -> Path:
    """Chooses the library to load.

    Raises:
        ImportError: there is no library, or none for this minor version of torch.
    """
    there = [path for path in _candidates() if path.is_file()]
    if not there:
        raise _failure(f"{_LIBRARY_NAME} is not there", _candidates())
    wanted = _minor(str(torch.__version__))
    minors = {path: _minor(_torch_of(path)) for path in there}
    # A library of unknown version may be for this torch: if not, loading it fails.
    for minor in (wanted, ""):
        for path in there:
            if minors[path] == minor:
                return path
    offered = ", ".join(dict.fromkeys(minors.values()))
    raise _failure(f"there is none for torch {wanted}, only for torch {offered}", there)


def _is_wanted() -> bool:
    """Whether the environment lets the compiled part be loaded."""
    value = os.environ.get(_COMPILED_PART) or "on"
    if value not in ("on", "off"):
        warnings.warn(
            f"environment variable {_COMPILED_PART} is '{value}'; valid are on and off. Taking on.",
            stacklevel=2,
        )
    return value != "off"


def _load_compiled_part(library: Path) -> str:
    """Makes ``from modcache import _guards`` find the part that is compiled for this Python.

    Returns:
        Its path; or ``none`` and the reason. The package also works without it, but slower.
    """
    if not _is_wanted():
        return f"none: {_COMPILED_PART}=off"
    name = f"_guards{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    # A build has it beside the library; the package has one for each Python.
    path = next((p for p in (library.parent / name, _PACKAGE / "lib" / name) if p.is_file()), None)
    if path is None:
        return f"none: this package has no {name}"
    spec = importlib.util.spec_from_file_location("modcache._guards", path)
    if spec is None or spec.loader is None:
        return f"none: Python cannot import {path}"
    try:
        guards = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(guards)
    except ImportError as error:
        return f"none: {error}"
    sys.modules["modcache._guards"] = guards
    return str(path)


def load() -> Loaded:
    """Loads the library, once per process.

    Raises:
        ImportError: no library for this torch, or one that does not load. The message has the paths
            that were tried, the version of torch, the versions with a library, and the cure.
    """
    library = _library_for_this_torch().resolve()
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        torch.ops.cache.lookup_or_run  # noqa: B018  (an attribute error if it registered nothing)
    except AttributeError:
        reason = "it registered no operators, as one does that was built for another torch"
        raise _failure(reason, [library]) from None
    except (OSError, RuntimeError) as error:
        raise _failure(str(error), [library]) from error
    return Loaded(
        library=str(library),
        version=_build_facts(library).get("version", "unknown"),
        built_for_torch=_built_for(library),
        compiled_part=_load_compiled_part(library),
    )


def cmake_prefix_path() -> str:
    """Returns the folder for ``CMAKE_PREFIX_PATH``, for ``find_package(modcache)``.

    It is like ``torch.utils.cmake_prefix_path``, which a host needs for ``find_package(Torch)``.

    Raises:
        FileNotFoundError: this is a source checkout, which has no CMake package.
    """
    prefix = _PACKAGE / "share" / "cmake"
    if not (prefix / "modcache" / "modcacheConfig.cmake").is_file():
        raise FileNotFoundError(
            f"no CMake package in {prefix}: modcache is imported from a source checkout. Install "
            "it with pip, or take the prefix of `cmake --install BUILD --prefix PREFIX`."
        )
    return str(prefix)
