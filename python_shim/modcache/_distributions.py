# SPDX-License-Identifier: Apache-2.0
"""Installed distributions, and what each of them is: its version and its files.

A distribution is told by its name, its version and what its RECORD says of its files. Scripts,
bytecode and what installers leave are no part of that: they differ between equal environments.
An edit in place leaves RECORD as it was, so each file that this process has loaded is hashed as
well. A package that no RECORD lists is told by the hashes of all its code files.

torch, NumPy, the standard library and this package itself are no distributions here: they are told
by name, since the RECORDs of their builds differ. A file that was changed after the process loaded
it (``_loaded``) says nothing of the code that runs; the distribution is then told by a number that
no other process has.
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import os
import re
import secrets
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

from modcache._loaded import is_as_on_disk, may_have_changed_since_loaded
from modcache._names import place_of, top_package

_CODE_SUFFIXES = (".py", ".so", ".pyd", ".dll", ".dylib", ".cpp", ".cu", ".cuh", ".h")
_NO_PART = (".pyc", ".pyo", ".pth")
_LARGE_BYTES = 8 << 20  # such a library is not read where its times say that nobody touched it


class Distribution:
    """What a distribution was at one look. A leaf of a walk: another look, another object."""

    def __init__(self, name: str, version: str, digest: str, *, is_certain: bool) -> None:
        self.name = name
        self.version = version
        self.digest = digest
        self.is_certain = is_certain  # False: its files changed under the running code

    def tokens(self) -> tuple[str, ...]:
        return ("distribution", self.name, self.version, self.digest)


def distribution_of(filename: str) -> Distribution | None:
    """What the distribution that has this file is now; None for files of none."""
    place = place_of(filename)
    if place is None:
        return None
    with _lock:
        return _known_of(*place).now()


def is_news() -> bool:
    """Whether Python modules came or went since this was last asked: look at all of them again."""
    count = len(sys.modules)
    with _lock:
        is_new = _modules_seen[0] != count
        _modules_seen[0] = count
        if is_new:
            for known in _by_key.values():
                known.look_again()
    return is_new


def look_again() -> None:
    """From now on every distribution is asked for files that were loaded since."""
    with _lock:
        for known in _by_key.values():
            known.look_again()


class _Known:
    """A distribution, or a package without one, in this process."""

    def __init__(self, root: str, top: str, folder: str) -> None:
        self._root = root
        self._top = top  # of a package that no RECORD lists
        self._folder = folder  # the name of its .dist-info
        self._found: Distribution | None = None
        self._is_due = True
        self._loaded: dict[str, tuple[int, int]] = {}  # files: ids of their module and its spec

    def now(self) -> Distribution | None:
        if self._found is None or self._is_due:
            self._is_due = False
            loaded = {path: _ids_of(module) for path, module in self._loaded_modules()}
            if self._found is None or loaded != self._loaded:
                self._loaded = loaded
                found = self._look()
                old = self._found
                if old is None or found.tokens() != old.tokens():
                    self._found = found
        return self._found

    def look_again(self) -> None:
        self._is_due = True

    def _loaded_modules(self) -> Iterator[tuple[str, types.ModuleType]]:
        """Those that this process has loaded of it, by their path below the root."""
        own = frozenset(self._recorded()) if self._folder else None
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            place = place_of(file) if isinstance(file, str) else None
            if place is None or place[0] != self._root:
                continue
            if place[1] in own if own is not None else _top_of(place[1]) == self._top:
                yield place[1], module

    def _recorded(self) -> dict[str, str]:
        return _record_of(self._root, self._folder)

    def _look(self) -> Distribution:
        name, version = _name_and_version(self._folder) if self._folder else (self._top, "")
        if self._folder:
            _forget_record(self._root, self._folder)
            hashes = dict(self._recorded())
        else:
            hashes = dict(_hashes_below(self._root, self._top))
        is_certain = True
        for path, module in self._loaded_modules():
            file = f"{self._root}/{path}"
            if self._folder:
                hashes[path] = self._hash_of_loaded(file, hashes.get(path, ""))
            if may_have_changed_since_loaded(file) and not is_as_on_disk(module):
                is_certain = False
        hasher = hashlib.blake2b(digest_size=16)
        for path in sorted(hashes):
            hasher.update(f"{path}\0{hashes[path]}\0".encode("utf-8", "surrogatepass"))
        digest = hasher.hexdigest() if is_certain else f"of this process: {_NONCE}"
        return Distribution(name, version, digest, is_certain=is_certain)

    def _hash_of_loaded(self, file: str, recorded: str) -> str:
        """What RECORD says, unless the file is another now."""
        try:
            state = Path(file).stat()
            if state.st_size > _LARGE_BYTES and recorded:
                written = Path(self._root, self._folder, "RECORD").stat().st_ctime_ns
                if max(state.st_ctime_ns, state.st_mtime_ns) < written:
                    return recorded
            digest = hashlib.sha256(Path(file).read_bytes()).digest()
        except OSError:  # removed, or inside of an archive
            return recorded or "unread"
        return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


_NONCE = secrets.token_hex(16)
_lock = threading.RLock()
_modules_seen = [0]
_by_key: dict[tuple[str, str, str], _Known] = {}
_by_file: dict[tuple[str, str], _Known] = {}
_records: dict[tuple[str, str], dict[str, str]] = {}


def _known_of(root: str, path: str) -> _Known:
    known = _by_file.get((root, path))
    if known is None:
        folder = _folder_that_lists(root, path)
        top = "" if folder else _top_of(path)
        known = _by_key.setdefault((root, top, folder), _Known(root, top, folder))
        _by_file[(root, path)] = known
    return known


def _ids_of(module: types.ModuleType) -> tuple[int, int]:
    return id(module), id(getattr(module, "__spec__", None))


def _top_of(path: str) -> str:
    return path.split("/", 1)[0]


def _name_and_version(folder: str) -> tuple[str, str]:
    name, _, version = folder.removesuffix(".dist-info").partition("-")
    return _plain(name), version


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _folder_that_lists(root: str, path: str) -> str:
    """The .dist-info whose RECORD has this file; "" where none has."""
    try:
        folders = sorted(path.name for path in Path(root).glob("*.dist-info"))
    except OSError:
        return ""
    wanted = _plain(_top_of(path).split(".", 1)[0])
    # Most packages are called as their distribution is: the others' RECORDs need not be read.
    folders.sort(key=lambda folder: _name_and_version(folder)[0] != wanted)
    return next((folder for folder in folders if path in _record_of(root, folder)), "")


def _forget_record(root: str, folder: str) -> None:
    _records.pop((root, folder), None)


def _record_of(root: str, folder: str) -> dict[str, str]:
    """What RECORD says of the files that count, by their path below the root."""
    known = _records.get((root, folder))
    if known is None:
        known = _records[(root, folder)] = dict(_lines_of_record(root, folder))
    return known


def _lines_of_record(root: str, folder: str) -> Iterator[tuple[str, str]]:
    try:
        with Path(root, folder, "RECORD").open(encoding="utf-8", newline="") as stream:
            for row in csv.reader(stream):
                path = row[0] if row else ""
                is_left_out = path.startswith(("../", "/")) or ".dist-info/" in path
                if path and not is_left_out and not path.endswith(_NO_PART):
                    yield path, row[1] if len(row) > 1 else ""
    except (OSError, UnicodeDecodeError, csv.Error):
        return


def _hashes_below(root: str, top: str) -> Iterator[tuple[str, str]]:
    """Of every code file of a package that no RECORD lists."""
    start = Path(root, top)
    files = [start] if start.is_file() else sorted(_code_files(start))
    for file in files:
        try:
            digest = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
        except OSError:
            digest = "unread"
        yield str(file.relative_to(root)), digest


def _code_files(start: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(start):
        below[:] = [name for name in below if name != "__pycache__"]
        for name in names:
            if name.endswith(_CODE_SUFFIXES) or ".so." in name:
                yield Path(folder, name)


def distribution_of_import(name: str) -> Distribution | None:
    """What ``import name`` leads to, without importing it."""
    module = sys.modules.get(name) or sys.modules.get(top_package(name))
    file = getattr(module, "__file__", None)
    if file is None and module is None:
        file = _file_of_import(top_package(name))
    return distribution_of(file) if file else None


@functools.lru_cache(maxsize=1024)
def _file_of_import(top: str) -> str | None:
    import importlib.util

    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    return getattr(spec, "origin", None)


def _renew_lock_in_child() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock_in_child)
