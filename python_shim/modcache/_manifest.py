# SPDX-License-Identifier: Apache-2.0
"""Manifests: what a scope stood for when it first stored something (csrc/FORMAT.md).

Digests of the code, attributes and tensors by name, no values. They lie in the cache directory,
written once per scope, so that ``explain`` can say later, in another process, what is another now.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from modcache._code import code_alone
from modcache._digest import digest_of
from modcache._identity import Refusal, Sight, state_of
from modcache._kinds import UnidentifiedError
from modcache._names import is_installed, plain_name
from modcache._reads import Code
from modcache._records import _INTERNAL, ClassRecord, Records
from modcache._scripted import native
from modcache._walk import Walk

FORMAT = 1
_MOST_BYTES = 512 << 10  # csrc/module/manifest.h
_DIGITS = 16

Manifest = dict[str, Any]


class Scope(NamedTuple):
    """What stands for a module in an address."""

    text: str
    is_named: bool  # by the caller; else it is the fingerprint


def note_outcome(
    run: Any, module: torch.nn.Module, method: str, scope: Scope, sight: Sight | None
) -> None:
    """After a run: remembers why it was refused, and gives a new scope its manifest.

    ``sight``: an eager module as it was identified; None where the caller named the scope.
    """
    lacks, cause, message = torch.ops.cache._outcome(run)
    state_of(module).refusal = Refusal(cause, message, scope.text)
    if not lacks:
        return
    text = ""
    with contextlib.suppress(Exception):  # the model has its result
        text = json.dumps(described(module, scope, method, sight), separators=(",", ":"))
    torch.ops.cache._put_manifest(scope.text, class_name(module), method, text)


def class_name(module: torch.nn.Module) -> str:
    """Under which the scopes of a class are found again."""
    return str(getattr(module, "original_name", type(module).__name__))


def described(module: torch.nn.Module, scope: Scope, method: str, sight: Sight | None) -> Manifest:
    """The manifest of a module as it is now: where its scope is named, without a look inside.

    ``sight``: an eager module as it was identified; at a scripted one the library looks itself.
    """
    if isinstance(module, torch.jit.ScriptModule):
        text = torch.ops.cache._describe(native(module), scope.text, method, not scope.is_named)
        return dict(json.loads(text))
    manifest: Manifest = {
        "format": FORMAT,
        "face": "eager",
        "scope": scope.text,
        "class": plain_name(type(module)),
        "method": method,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "created_us": time.time_ns() // 1000,
        "pid": os.getpid(),
    }
    if sight is None:
        return manifest
    names = _names_of_tensors(module, sight.walk)
    digests = torch.ops.cache._tensor_digests(state_of(module).watch, sight.walk.tensors)
    known = dict(zip(map(id, sight.walk.tensors), digests, strict=True))
    manifest["modules"] = {path: plain_name(type(part)) for path, part in module.named_modules()}
    manifest["code"] = dict(_code_in(sight.walk))
    if sight.walk.packages is not None:
        manifest["packages"] = {
            each.name: f"{each.version} {each.digest[:_DIGITS]}"
            for each in sight.walk.packages.distributions
        }
        manifest["package_values"] = sight.walk.packages.part.digest[:_DIGITS]
    manifest["attributes"] = dict(_attributes_in(module, sight.walk, known))
    tensors = {names[id(tensor)]: known[id(tensor)][:_DIGITS] for tensor in sight.walk.tensors}
    if len(json.dumps([manifest, tensors])) < _MOST_BYTES:
        manifest["tensors"] = tensors
    return manifest


def manifest_of(scope: str) -> Manifest | None:
    """The one that lies in the directory. None: there is none that can be read."""
    try:
        found = json.loads(torch.ops.cache._manifest(scope) or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def manifests_of_class(name: str, method: str) -> list[Manifest]:
    """Of the last scopes of this class and method, the latest first."""
    scopes = reversed(torch.ops.cache._scopes_of_class(name, method))
    return [found for found in map(manifest_of, scopes) if found is not None]


def _names_of_tensors(module: torch.nn.Module, walk: Walk) -> dict[int, str]:
    """By the id of a tensor that the walk found."""
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


def _codes_in(walk: Walk) -> Iterator[tuple[str, Code]]:
    """What was followed, and the name of the class it was followed from."""
    for leaf in walk.leaves:
        if isinstance(leaf, ClassRecord):
            yield leaf.named.plain, leaf.code
        elif isinstance(leaf, Code):
            yield "", leaf


def _code_in(walk: Walk) -> Iterator[tuple[str, str]]:
    """Every class, with all that it reaches; and each of the user's own functions alone."""
    for name, code in _codes_in(walk):
        if name:
            yield f"class {name}", code.digest.hex()[:_DIGITS]
        for function in code.functions():
            if function is not None and not is_installed(function):
                yield function.__qualname__, code_alone(function).hex()[:_DIGITS]


def _attributes_in(
    module: torch.nn.Module, walk: Walk, known: dict[int, str]
) -> Iterator[tuple[str, str]]:
    """Plain attributes by their path, and the values that the code reads from outside."""
    values = _Values(known)
    asks = {leaf.named.cls(): leaf.code for leaf in walk.leaves if isinstance(leaf, ClassRecord)}
    asks_anywhere = any(
        code.mentions_training and not str(getattr(cls, "__module__", "")).startswith("torch.")
        for cls, code in asks.items()
    )
    for path, part in module.named_modules():
        code = asks.get(type(part))
        for name, value in vars(part).items():
            if name == "training" and not (asks_anywhere or (code and code.mentions_training)):
                continue
            if name not in _INTERNAL and not isinstance(value, torch.Tensor):
                yield f"{path}.{name}" if path else name, values.digest(value)
        hooks = [*part._forward_pre_hooks.values(), *part._forward_hooks.values()]
        if hooks:
            yield f"{path}.hooks" if path else "hooks", values.digest(hooks)
    for _, code in _codes_in(walk):
        for read in code.reads:
            yield f"global {read.name}", values.digest(read.value())


class _Values:
    """Digests of plain values, by the same walk that identifies them."""

    def __init__(self, known: dict[int, str]) -> None:
        self._known = known  # of tensors, by id
        self._records = Records()

    def digest(self, value: object) -> str:
        holder = torch.nn.Module()
        holder.__dict__["value"] = value
        try:
            walk = Walk(holder, self._records)
            text = digest_of(walk.leaves)
        except UnidentifiedError:
            return "unknown"
        tensors = [self._known.get(id(tensor), "") for tensor in walk.tensors]
        return "+".join([text[:_DIGITS], *(digest[:_DIGITS] for digest in tensors)])


@dataclass(frozen=True)
class Changes:
    """What differs between two manifests, by name."""

    weights: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def all(self) -> list[str]:
        return [*self.weights, *self.code, *self.attributes, *self.others]


def changes_between(before: Manifest, now: Manifest) -> Changes:
    """What became other, new or gone. Of two faces nothing else can be compared."""
    if before.get("face") != now.get("face"):
        return Changes(others=[f"face {before.get('face')} -> {now.get('face')}"])
    code = _differing(before, now, "code")
    functions = [name for name in code if not name.startswith("class ")]
    # A class is made of its functions: itself it is named only where none of them says more.
    if functions:
        code = functions
    others = []
    if before.get("class") != now.get("class"):
        others.append(f"class {before.get('class')} -> {now.get('class')}")
    if _compiled_by(before) != _compiled_by(now):
        others.append(f"python {before.get('python')} -> {now.get('python')}")
    others += _packages_between(before, now)
    was_modules, modules = before.get("modules", {}), now.get("modules", {})
    for path in {**was_modules, **modules}:
        was, is_now = was_modules.get(path, "nothing"), modules.get(path, "nothing")
        if was_modules and modules and path and was != is_now:
            others.append(f"{path} {was} -> {is_now}")
    return Changes(
        _differing(before, now, "tensors"), code, _differing(before, now, "attributes"), others
    )


def _packages_between(before: Manifest, now: Manifest) -> Iterator[str]:
    """Installed packages, by the names and versions that installers know."""
    if "packages" not in before or "packages" not in now:
        return
    was, is_now = before["packages"], now["packages"]
    changed = [name for name in {**was, **is_now} if was.get(name) != is_now.get(name)]
    for name in changed:
        old, new = (str(found.get(name, "none")).split(" ", 1)[0] for found in (was, is_now))
        if old == new:
            yield f"{name} {new} (its files changed)".replace("  ", " ")
        else:
            yield f"{name} {old} -> {new}"
    if not changed and before.get("package_values") != now.get("package_values"):
        yield "values or functions that installed packages hold"


def _compiled_by(manifest: Manifest) -> list[str]:
    """Another minor version of Python compiles code differently."""
    return str(manifest.get("python", "")).split(".")[:2]


def _differing(before: Manifest, now: Manifest, kind: str) -> list[str]:
    if kind not in before or kind not in now:
        return []
    was, is_now = before[kind], now[kind]
    return [name for name in {**was, **is_now} if was.get(name) != is_now.get(name)]
