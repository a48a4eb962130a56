# SPDX-License-Identifier: Apache-2.0
"""Manifests: what a scope stood for when it first stored something (csrc/FORMAT.md).

A manifest has digests of code, attributes and tensors by name, and no values. It is written once
per scope into the cache directory, so that ``explain`` can later say, in another process, what
changed. The call that writes it spends a bounded time on it: what is not described by then is left
out, and the manifest names the kinds that are incomplete.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import platform
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from modcache._code.names import is_installed, plain_name
from modcache._code.objects import is_a
from modcache._code.traversal import code_alone
from modcache._code.wrapped import class_behind
from modcache._identity.capturing import captures
from modcache._identity.digest import digest_of
from modcache._identity.kinds import StoppedError, UnidentifiedError
from modcache._identity.module_state import Refusal, SeenState, state_of
from modcache._identity.records import _INTERNAL, ClassRecord, Records, codes_among
from modcache._identity.scratch import package_asked, scratch_of_module
from modcache._identity.scripted import native
from modcache._identity.walk import Walk, walk_over

FORMAT = 1
MANIFEST_S = 0.04  # of a call for each of the look at the module and the description of it
clock = time.perf_counter
_MOST_BYTES = 512 << 10  # csrc/module/call/manifest.h
_DIGITS = 16
_INCOMPLETE = "incomplete"
_HOLDER = "modcache._call.holder.Holder"
"""The module class that wraps a cached function."""

Manifest = dict[str, Any]


class Scope(NamedTuple):
    """The part of an address that identifies the module."""

    text: str
    is_named: bool  # the caller named it; False: it is the fingerprint


NOTHING_TO_SAY = (False, "", "")
"""The outcome of a run whose result no rule refused, in a scope that has its manifest."""


def note_outcome(
    run: Any,
    outcome: tuple[bool, str, str],
    module: torch.nn.Module,
    method: str,
    scope: Scope,
    seen: SeenState | None,
) -> None:
    """Remembers after a run why its result was refused, and gives a new scope its manifest.

    ``outcome``: that of ``run``. ``seen``: the look that identified an eager module; None if the
    caller named the scope.
    """
    lacks, cause, message = outcome
    state_of(module).refusal = Refusal(cause, message, scope.text)
    if not lacks:
        return
    text = ""
    with contextlib.suppress(Exception):  # the result of the call is there already
        manifest = described(module, scope, method, seen, Budget(MANIFEST_S))
        text = json.dumps(manifest, separators=(",", ":"))
    run.put_manifest(class_name(module), text)


def class_name(module: torch.nn.Module) -> str:
    """Names the class of a module, also of a scripted one. Scopes are listed by that name."""
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", type(module).__name__))
    # A cached function is held by a module that has the function's name.
    name = vars(module).get("original_name")
    return name if type(name) is str and name else type(module).__name__


def shown_name(module: torch.nn.Module) -> str:
    """Names a module for people: its class, or the function that it holds, as in ``train.embed``.

    A function of a script is named after the file, as if another program had imported it.
    """
    kind = plain_name(type(module))
    if kind != _HOLDER:
        return kind
    forward = vars(module).get("forward")
    parts = [forward]
    if isinstance(forward, functools.partial):  # a method, with its object
        parts = [forward.func, *forward.args]
    for part in parts:
        if isinstance(part, types.FunctionType) and part.__module__ in ("__main__", "__mp_main__"):
            return _name_of_script() + class_name(module)
    return class_name(module)


def _name_of_script() -> str:
    """Returns the name that importing the running script would need, with a dot; "": none."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # python -m
        name = str(spec.name).removesuffix(".__main__")
    else:
        name = Path(file).stem if file else ""
    return f"{name}." if name else ""


class _OutOfTimeError(StoppedError):
    """The time for a manifest is used up."""


class Budget:
    """The time that a manifest may take."""

    def __init__(self, seconds: float) -> None:
        self._end = clock() + seconds

    def check(self) -> None:
        """Raises _OutOfTimeError if the time is used up."""
        if clock() > self._end:
            raise _OutOfTimeError


def described(
    module: torch.nn.Module,
    scope: Scope,
    method: str,
    seen: SeenState | None,
    budget: Budget | None = None,
) -> Manifest:
    """Makes the manifest of a module as it is now; of a named scope, without its contents.

    ``seen``: the look that identified an eager module. The library looks at a scripted one itself.
    ``budget`` None: it may take as long as it takes.
    """
    if isinstance(module, torch.jit.ScriptModule):
        held = torch.classes.cache.ScriptedModule(native(module))
        return dict(json.loads(held.describe(scope.text, method, not scope.is_named)))
    manifest: Manifest = {
        "format": FORMAT,
        "face": "eager",
        "scope": scope.text,
        "class": shown_name(module),
        "method": method,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "created_us": time.time_ns() // 1000,
        "pid": os.getpid(),
    }
    if seen is None:
        return manifest
    budget = budget or Budget(math.inf)
    names = _names_of_tensors(module, seen.walk)
    digests = state_of(module).watch.digests(seen.walk.tensors)
    known = dict(zip(map(id, seen.walk.tensors), digests, strict=True))
    if seen.walk.packages is not None:
        manifest["packages"] = {
            each.name: f"{each.version} {each.digest[:_DIGITS]}"
            for each in seen.walk.packages.part.distributions
        }
        manifest["package_values"] = seen.walk.packages.part.digest[:_DIGITS]
    modules = ((path, plain_name(type(part))) for path, part in module.named_modules())
    _describe(manifest, "modules", modules, budget)
    _describe(manifest, "code", _code_in(seen.walk), budget)
    _describe(manifest, "attributes", _attributes_in(module, seen.walk, known, budget), budget)
    tensors = {names[id(tensor)]: known[id(tensor)][:_DIGITS] for tensor in seen.walk.tensors}
    if len(json.dumps([manifest, tensors])) < _MOST_BYTES:
        manifest["tensors"] = tensors
    return manifest


def _describe(
    manifest: Manifest, kind: str, entries: Iterator[tuple[str, str]], budget: Budget
) -> None:
    """Adds the entries of one kind, as many as the budget allows."""
    found = manifest[kind] = {}
    try:
        budget.check()
        for name, text in entries:
            found[name] = text
            budget.check()
    except _OutOfTimeError:
        manifest.setdefault(_INCOMPLETE, []).append(kind)


def manifest_of(scope: str) -> Manifest | None:
    """Reads the manifest in the cache directory. None: there is none that can be read."""
    try:
        found = json.loads(torch.classes.cache.Explain.manifest(scope) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def manifests_of_class(name: str, method: str) -> list[Manifest]:
    """Reads the manifests of the last scopes of this class and method, the latest first."""
    scopes = reversed(torch.classes.cache.Explain.scopes_of_class(name, method))
    return [found for found in map(manifest_of, scopes) if found is not None]


def _names_of_tensors(module: torch.nn.Module, walk: Walk) -> dict[int, str]:
    """Names the tensors that the walk found, by their ids."""
    names: dict[int, str] = {}
    for held in (module.named_parameters(), module.named_buffers()):
        for name, tensor in held:
            names.setdefault(id(tensor), name)
    taken = set(names.values())
    for index, tensor in enumerate(walk.tensors):
        if id(tensor) in names:
            continue
        name = ".".join(walk.tensor_owners.get(index, (type(module).__qualname__, "tensor")))
        number = 1
        while (unique := name if number == 1 else f"{name} ({number})") in taken:
            number += 1
        taken.add(unique)
        names[id(tensor)] = unique
    return names


def _code_in(walk: Walk) -> Iterator[tuple[str, str]]:
    """Digests every class with all that it reaches, and each of the user's functions alone."""
    for name, code in codes_among(walk.leaves):
        if name:
            yield f"class {name}", code.digest.hex()[:_DIGITS]
        for function in code.functions():
            if function is not None and not is_installed(function):
                yield function.__qualname__, code_alone(function).hex()[:_DIGITS]


def _attributes_in(
    module: torch.nn.Module, walk: Walk, known: dict[int, str], budget: Budget
) -> Iterator[tuple[str, str]]:
    """Digests plain attributes, by their paths, and the values that code reads from outside."""
    values = _Values(known, walk, budget)
    asks = {leaf.named.cls(): leaf.code for leaf in walk.leaves if isinstance(leaf, ClassRecord)}
    asks_anywhere = any(
        code.mentions_training and not str(getattr(cls, "__module__", "")).startswith("torch.")
        for cls, code in asks.items()
    )
    asked = package_asked(module)
    for path, part in module.named_modules():
        code = asks.get(type(part))
        scratch = scratch_of_module(class_behind(type(part)), asked)
        for name, value in vars(part).items():
            if name == "training" and not (asks_anywhere or (code and code.mentions_training)):
                continue
            if name not in _INTERNAL | scratch and not is_a(value, torch.Tensor):
                yield f"{path}.{name}" if path else name, values.digest(value)
        given = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
        if hooks := [hook for hook in given if not captures(hook)]:
            yield f"{path}.hooks" if path else "hooks", values.digest(hooks)
    for _, code in codes_among(walk.leaves):
        for read in code.reads:
            yield f"global {read.name}", values.digest(read.value())


class _ValueWalk(Walk):
    """A walk over one value, which keeps to a budget. Packages are compared by themselves."""

    def __init__(self, root: torch.nn.Module, records: Records, budget: Budget) -> None:
        self._budget = budget
        super().__init__(root, records)

    def value(self, value: Any) -> None:
        self._budget.check()
        super().value(value)

    def text_of(self, item: object) -> str:
        self._budget.check()
        return super().text_of(item)

    def _enter_packages(self) -> None:
        pass


class _Values:
    """Digests plain values as the walk does that identified the module, with its records."""

    def __init__(self, known: dict[int, str], walk: Walk, budget: Budget) -> None:
        self._known = known  # digests of tensors, by id
        self._records = walk.records
        self._make = functools.partial(_ValueWalk, budget=budget)

    def digest(self, value: object) -> str:
        try:
            walk = walk_over(value, self._records, self._make)
            text = digest_of(walk.leaves)
        except UnidentifiedError:
            return "unknown"
        tensors = [self._known.get(id(tensor), "") for tensor in walk.tensors]
        return "+".join([text[:_DIGITS], *(digest[:_DIGITS] for digest in tensors)])


@dataclass(frozen=True)
class Changes:
    """The names of what differs between two manifests."""

    weights: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def all(self) -> list[str]:
        return [*self.weights, *self.code, *self.attributes, *self.others]


def changes_between(before: Manifest, now: Manifest) -> Changes:
    """Finds what was changed, added or removed. An eager and a scripted module differ in all."""
    if before.get("face") != now.get("face"):
        return Changes(others=[f"face {before.get('face')} -> {now.get('face')}"])
    code = _differing(before, now, "code")
    functions = [name for name in code if not name.startswith("class ")]
    # A class changes with its functions, and is named only if none of these changed.
    if functions:
        code = functions
    others = []
    classes = (before.get("class"), now.get("class"))
    if classes[0] != classes[1]:
        others.append(f"class {before.get('class')} -> {now.get('class')}")
    if _compiled_by(before) != _compiled_by(now):
        others.append(f"python {before.get('python')} -> {now.get('python')}")
    others += _packages_between(before, now)
    for path in _differing(before, now, "modules"):
        was, is_now = (each["modules"].get(path, "nothing") for each in (before, now))
        if path:
            others.append(f"{path} {was} -> {is_now}")
    return Changes(
        _differing(before, now, "tensors"), code, _differing(before, now, "attributes"), others
    )


def _packages_between(before: Manifest, now: Manifest) -> Iterator[str]:
    """Names changed packages, with the names and versions that installers use."""
    if "packages" not in before or "packages" not in now:
        return
    changed = _differing(before, now, "packages")
    for name in changed:
        both = (before["packages"], now["packages"])
        old, new = (str(found.get(name, "none")).split(" ", 1)[0] for found in both)
        if old == new:
            yield f"{name} {new} (its files changed)".replace("  ", " ")
        else:
            yield f"{name} {old} -> {new}"
    if not changed and before.get("package_values") != now.get("package_values"):
        yield "values or functions that installed packages hold"


def _compiled_by(manifest: Manifest) -> list[str]:
    """Returns the minor version of Python, since another one compiles code differently."""
    return str(manifest.get("python", "")).split(".")[:2]


def _differing(before: Manifest, now: Manifest, kind: str) -> list[str]:
    if kind not in before or kind not in now:
        return []
    was, is_now = before[kind], now[kind]
    names = {**was, **is_now}
    if any(kind in each.get(_INCOMPLETE, ()) for each in (before, now)):
        names = {name: "" for name in names if name in was and name in is_now}
    return [name for name in names if was.get(name) != is_now.get(name)]
