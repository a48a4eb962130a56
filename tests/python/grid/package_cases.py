# SPDX-License-Identifier: Apache-2.0
"""Changes of an installed package, one line each, and how they are tried.

Each case is a package of its own, made of what ``made`` gives for a number, whose ``Net.forward``
returns the expression ``forward``. An upgrade is the same package made for another number.
``change`` does the same in a running process, as code in the package's namespace.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OLD, NEW = 2, 3
LOOKS = {"looked at in full": 1, "recognized by a snapshot": 6}
_HEAD = """
import dataclasses, enum, functools, re, sys, types
import numpy as np, torch
from torch import nn
{made}
class Net(nn.Module):
    def forward(self, x):
        return {forward}
"""


@dataclass(frozen=True)
class Case:
    name: str
    made: str  # {v}: the number; {name}: of the package
    forward: str
    change: str = ""

    @property
    def package(self) -> str:
        return "package_" + "".join(c if c.isalnum() else "_" for c in self.name)

    def source(self, number: int) -> str:
        made = self.made.replace("{v}", str(number)).replace("{name}", self.package)
        forward = self.forward.replace("{name}", self.package)
        return _HEAD.format(made=made, forward=forward)


_CALL = "class H:\n    def __call__(self, x): return x * {v}\n"
_TIMES_3 = "lambda *a: a[-1] * 3"
CASES = [
    Case("global float", "S = {v}.0", "x * S", "S = 3.0"),
    Case("function", "def h(x): return x * {v}", "h(x)", "h = lambda x: x * 3"),
    Case("code of a function", "def h(x): return x * {v}", "h(x)",
         "h.__code__ = (lambda x: x * 3).__code__"),
    Case("default", "def h(x, k={v}): return x * k", "h(x)", "h.__defaults__ = (3,)"),
    Case("closure", "def make(k):\n    def h(x): return x * k\n    return h\nh = make({v})", "h(x)",
         "h.__closure__[0].cell_contents = 3"),
    Case("function attribute", "def h(x): return x * h.k\nh.k = {v}", "h(x)", "h.k = 3"),
    Case("class attribute", "class C:\n    s = {v}", "x * C.s", "C.s = 3"),
    Case("class made in forward", _CALL, "H()(x)", f"H.__call__ = {_TIMES_3}"),
    Case("static method", "class H:\n    @staticmethod\n    def f(x): return x * {v}", "H.f(x)",
         "H.f = staticmethod(lambda x: x * 3)"),
    Case("method through a name",
         "class H:\n    def f(self, x): return x * {v}\ndef make(): return H()",
         "make().f(x)", f"H.f = {_TIMES_3}"),
    Case("submodule made in forward",
         "class H(nn.Module):\n    def forward(self, x): return x * {v}", "H()(x)",
         f"H.forward = {_TIMES_3}"),
    Case("method of the module", "class B(nn.Module):\n    def f(self, x): return x * {v}\n"
         "nn_Module = nn.Module\nnn = types.SimpleNamespace(Module=B)", "self.f(x)",
         f"B.f = {_TIMES_3}"),
    Case("autograd function", "class Fn(torch.autograd.Function):\n    @staticmethod\n"
         "    def forward(ctx, x): return x * {v}", "Fn.apply(x)",
         "Fn.forward = staticmethod(lambda ctx, x: x * 3)"),
    Case("tensor", "S = torch.tensor({v}.0)", "x * S", "S.fill_(3)"),
    Case("another tensor", "S = torch.tensor({v}.0)", "x * S", "S = torch.tensor(3.0)"),
    Case("array", "S = np.array({v}.0)", "x * float(S)", "S[...] = 3"),
    Case("frozenset", "S = frozenset(range({v}))", "x * len(S)", "S = frozenset(range(3))"),
    Case("list", "S = [{v}]", "x * S[0]", "S[0] = 3"),
    Case("enum", "class E(enum.Enum):\n    A = {v}", "x * E.A.value", "E.A._value_ = 3"),
    Case("dataclass",
         "@dataclasses.dataclass\nclass D:\n    s: float = {v}\nCFG = D()", "x * CFG.s",
         "CFG.s = 3"),
    Case("object with a method", "class D:\n    def f(self, x): return x * {v}\nOBJ = D()",
         "OBJ.f(x)", f"D.f = {_TIMES_3}"),
    Case("namespace", "S = types.SimpleNamespace(s={v})", "x * S.s", "S.s = 3"),
    Case("pattern", "S = re.compile('a{{v}}')", "x * int(S.pattern[2])", "S = re.compile('a{3}')"),
    Case("lambda", "f = lambda x: x * {v}", "f(x)", "f = lambda x: x * 3"),
    Case("dict of functions", "def a(x): return x * {v}\nREG = {'a': a}", "REG['a'](x)",
         "REG['a'] = lambda x: x * 3"),
    Case("dict of classes", _CALL + "REG = {'a': H}", "REG['a']()(x)", f"H.__call__ = {_TIMES_3}"),
    Case("registry", "class R:\n    _all = {}\n    @classmethod\n    def register(cls, n, f):"
         " cls._all[n] = f\n    def __getitem__(self, n): return self._all[n]\nALL = R()\n"
         "R.register('a', lambda x: x * {v})", "ALL['a'](x)", "R.register('a', lambda x: x * 3)"),
    Case("lru_cache", "@functools.lru_cache\ndef s(): return {v}", "x * s()", "s = lambda: 3"),
    Case("scripted function", "@torch.jit.script\ndef s(x: torch.Tensor): return x * {v}", "s(x)",
         "s = lambda x: x * 3"),
    Case("singledispatch", "@functools.singledispatch\ndef s(x): return x * {v}", "s(x)",
         "s = lambda x: x * 3"),
    Case("decorated", "@torch.no_grad()\ndef s(x): return x * {v}", "s(x)", "s = lambda x: x * 3"),
    Case("partial", "def _s(x, k): return x * k\ns = functools.partial(_s, k={v})", "s(x)",
         "s.keywords['k'] = 3"),
    Case("import in a function",
         "S = {v}\ndef f(x):\n    from {name} import S as q\n    return x * q",
         "f(x)", "S = 3"),
    Case("custom operator", "@torch.library.custom_op('{name}::s', mutates_args=())\n"
         "def s(x: torch.Tensor) -> torch.Tensor: return x * float({v})",
         "torch.ops.{name}.s(x)"),
    Case("property of a base", "class M:\n    @property\n    def s(self): return {v}\n"
         "class B(M): pass", "x * B().s", "M.s = property(lambda self: 3)"),
]  # fmt: skip


def install(site: Path, number: int, form: str) -> None:
    """Puts every package for ``number`` into ``site``.

    ``form``: ``recorded`` (as installers do), ``folder`` (no RECORD), ``edited`` (files alone are
    another, RECORD stays as it was).
    """
    for case in CASES:
        folder = site / case.package
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(case.source(number))
        if form == "recorded":
            for old in site.glob(f"{case.package}-*.dist-info"):
                shutil.rmtree(old)
            record(site, case.package, f"{number}.0", salt="")


def record(site: Path, package: str, version: str, salt: str) -> None:
    """What an installer writes; ``salt`` stands in what differs between equal environments."""
    info = site / f"{package}-{version}.dist-info"
    info.mkdir()
    data = (site / package / "__init__.py").read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    (info / "INSTALLER").write_text(f"installer {salt}")
    lines = [
        f"../../../bin/{package},sha256={salt}script,10",
        f"{package}/__init__.py,sha256={digest},{len(data)}",
        f"{package}/__pycache__/__init__.cpython-{salt}.pyc,,",
        f"{info.name}/INSTALLER,sha256={salt}installer,3",
        f"{info.name}/direct_url.json,sha256={salt}url,3",
        f"{info.name}/RECORD,,",
    ]
    (info / "RECORD").write_text("\n".join(lines) + "\n")


def tried(site: Path, cache: Path, look: str = "") -> dict[str, list[Any]]:
    """In a process of its own: every case, changed after its looks where ``look`` names some.

    By name: the module's own output, what the cache gave, hits.
    """
    import modcache
    import torch

    sys.dont_write_bytecode = True  # an edit in the same second is seen
    sys.path.insert(0, str(site))
    modcache.configure(dir=cache, log="off")
    x = torch.ones(2)

    def looked_up(module: torch.nn.Module) -> list[Any]:
        before = modcache.stats()
        seen = float(modcache.lookup_or_run(module, x, "key")[0])
        now = modcache.stats()
        hits = sum(now[name] - before[name] for name in ("hits_memory", "hits_disk"))
        return [float(module(x)[0]), seen, hits]

    found: dict[str, list[Any]] = {}
    with torch.no_grad():
        for case in CASES:
            package = importlib.import_module(case.package)
            module = package.Net().eval()
            for _ in range(LOOKS.get(look, 1)):
                found[case.name] = looked_up(module)
            if look and case.change:
                exec(case.change, vars(package))
                found[case.name] = looked_up(module)
    modcache.flush()
    return found
