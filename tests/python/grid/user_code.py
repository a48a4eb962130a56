# SPDX-License-Identifier: Apache-2.0
"""Changes of a user's own code and of what it reads, one line each, and how they are tried.

A case is a Python module made of ``before``, whose class ``M`` has the forward that ``forward`` is.
``change`` is run in that module. It stands for an edit (a definition anew) or for a write: in this
process after the first look-up, and in a new process before it, with the directory of another that
knew nothing of the change.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import modcache
import torch
from modcache._identity.module_state import state_of

X = torch.ones(3)
FORMS = ("looked at in full", "recognized by a snapshot", "in a new process")
_LOOKS = {"looked at in full": 1, "recognized by a snapshot": 8}


@dataclass(frozen=True)
class Case:
    """``bypass``: part of the reason why such a module may go uncached; "" for one that may not."""

    group: str
    name: str
    before: str
    forward: str
    change: str
    bypass: str = ""

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}"


@dataclass(frozen=True)
class Seen:
    """What came of the look-up after the change."""

    is_right: bool
    did_change: bool  # else the case tries nothing
    counted: dict[str, int]
    refusal: str


class Subject:
    """The module of a case."""

    def __init__(self, case: Case, number: int) -> None:
        self.key = f"case {number}"
        name = f"user_code_{number}"
        self._names = types.ModuleType(name)
        self._names.__file__ = f"/srv/{name}.py"
        vars(self._names).update(torch=torch, nn=torch.nn)
        vars(self._names).update(look_up=self.looked_up, installed=_installed)
        sys.modules[name] = self._names
        forward = textwrap.indent(case.forward, " " * 8)
        body = f"class M(nn.Module):\n    def forward(self, x):\n{forward}\n"
        self.run(f"{case.before}\n{body if case.forward else ''}")
        if "m" not in vars(self._names):
            self.run("m = M()")

    @property
    def module(self) -> Any:
        return vars(self._names)["m"]

    @property
    def given(self) -> tuple[Any, ...]:
        """The arguments: ``given``, where the case says what they are."""
        return tuple(vars(self._names).get("given", (X,)))

    def run(self, text: str) -> None:
        exec(compile(text, str(self._names.__file__), "exec"), vars(self._names))

    def end(self) -> None:
        """Leaves the mode that the change has entered."""
        guard = vars(self._names).get("guard")
        if guard is not None:
            guard.__exit__(None, None, None)

    def looked_up(self) -> torch.Tensor:
        result: torch.Tensor = modcache.lookup_or_run(self.module, self.given, self.key)
        return result

    def run_alone(self) -> torch.Tensor:
        result: torch.Tensor = self.module(*self.given)
        return result

    def seen(self, before: torch.Tensor | None) -> Seen:
        at_first = modcache.stats()
        got = self.looked_up()
        now = modcache.stats()
        wanted = self.run_alone()
        did_change = before is None or not torch.equal(before, wanted)
        counted = {name: now[name] - at_first[name] for name in now}
        refusal = state_of(self.module).refusal.message
        return Seen(torch.equal(got, wanted), did_change, counted, refusal)


def _installed(name: str, text: str) -> types.ModuleType:
    """A package's module, as if pip had put it there."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = f"/srv/site-packages/{name}.py"
    exec(compile(text, module.__file__, "exec"), vars(module))
    return module


@contextlib.contextmanager
def _modes_restored() -> Iterator[None]:
    with torch.no_grad(), contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        yield


def tried_in_process(cases: list[Case], form: str) -> dict[str, Seen]:
    outcomes = {}
    for number, case in enumerate(cases):
        with _modes_restored():
            subject = Subject(case, number)
            for _ in range(_LOOKS[form]):
                subject.looked_up()
            before = subject.run_alone()
            subject.run(case.change)
            outcomes[case.title] = subject.seen(before)
            subject.end()
    return outcomes


def fill(cases: list[Case], directory: Path) -> None:
    """In a process of its own: all modules as they are before the change."""
    modcache.configure(dir=directory)
    for number, case in enumerate(cases):
        with _modes_restored():
            Subject(case, number).looked_up()
    modcache.flush()


def tried_in_new_process(cases: list[Case], directory: Path, is_changed: bool) -> dict[str, Seen]:
    """After ``fill`` in another process."""
    modcache.configure(dir=directory)
    outcomes = {}
    for number, case in enumerate(cases):
        with _modes_restored():
            subject = Subject(case, number)
            if is_changed:
                subject.run(case.change)
            outcomes[case.title] = subject.seen(None)
            subject.end()
    return outcomes
