# SPDX-License-Identifier: Apache-2.0
"""Whatever a user changes of the code and the values that a forward uses, no old output is seen.

The next hole is one line in ``CASES``. ``pytest -s`` prints how many were tried, by group.
"""

from __future__ import annotations

import itertools

import pytest
from processes import ProcessRunner
from user_code import FORMS, Case, Seen, fill, tried_in_new_process, tried_in_process

_OTHER = "import sys, types\nother = sys.modules[__name__ + '_o'] = types.ModuleType(__name__ + '_o')\nother.S = 2.0\n"
PACKAGE = """
p = installed(__name__ + "_package", '''
KNOWN = {"plain": lambda x: x * 2}
class Registry:
    _all = {}
    @classmethod
    def register(cls, name, f): cls._all[name] = f
    def __getitem__(self, name): return self._all[name]
REGISTRY = Registry()
def call(name, x): return KNOWN[name](x)
def ask(name, x): return REGISTRY[name](x)
''')
"""

CASES = [
    # Functions.
    Case("function", "edited", "def f(x): return x * 2", "return f(x)", "def f(x): return x * 3"),
    Case("function", "that a function calls", "def g(x): return x * 2\ndef f(x): return g(x)", "return f(x)", "def g(x): return x * 3"),
    Case("function", "its code replaced", "def f(x): return x * 2\ndef g(x): return x * 3", "return f(x)", "f.__code__ = g.__code__"),
    Case("function", "default", "def f(x, by=2.0): return x * by", "return f(x)", "f.__defaults__ = (3.0,)"),
    Case("function", "keyword default", "def f(x, *, by=2.0): return x * by", "return f(x)", "f.__kwdefaults__ = {'by': 3.0}"),
    Case("function", "keyword default written in place", "def f(x, *, by=2.0): return x * by", "return f(x)", "f.__kwdefaults__['by'] = 3.0"),
    Case("function", "attribute", "def f(x): return x * f.by\nf.by = 2.0", "return f(x)", "f.by = 3.0"),
    Case("function", "closure", "def make():\n    by = 2.0\n    def f(x): return x * by\n    def put(v):\n        nonlocal by\n        by = v\n    return f, put\nf, put = make()", "return f(x)", "put(3.0)"),
    Case("function", "iterator that a closure holds", "def make(s):\n    values = iter([s] * 100)\n    def f(x): return x * next(values)\n    return f\nf = make(2.0)", "return f(x)", "f = make(3.0)", "holds state that Python cannot see"),
    Case("function", "lambda", "f = lambda x: x * 2", "return f(x)", "f = lambda x: x * 3"),
    Case("function", "inner function's constant", "def f(x):\n    def g(y): return y * 2\n    return g(x)", "return f(x)", "def f(x):\n    def g(y): return y * 3\n    return g(x)"),
    Case("function", "generator", "def f(x):\n    for i in range(2): yield x * i", "return sum(f(x))", "def f(x):\n    for i in range(3): yield x * i"),
    Case("function", "decorated", "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def g(x): return f(x) * 2\n    return g\n@twice\ndef f(x): return x", "return f(x)", "@twice\ndef f(x): return x + 1"),
    Case("function", "decorator", "def deco(f):\n    def g(x): return f(x) * 2\n    return g\n@deco\ndef f(x): return x", "return f(x)", "def deco(f):\n    def g(x): return f(x) * 3\n    return g\n@deco\ndef f(x): return x"),
    Case("function", "partial's argument", "import functools\nf = functools.partial(torch.mul, other=2.0)", "return f(x)", "f = functools.partial(torch.mul, other=3.0)"),
    Case("function", "partial's function", "import functools\ndef g(b, x): return x * b\nf = functools.partial(g, 2.0)", "return f(x)", "def g(b, x): return x * b * 2\nf = functools.partial(g, 2.0)"),
    Case("function", "in a dict", "def g(x): return x * 2\nfs = {'a': g}", "return fs['a'](x)", "fs['a'] = lambda x: x * 3"),
    Case("function", "by getattr of a computed name", "class K:\n    def fa(self, x): return x * 2\nk = K()", "return getattr(k, 'f' + 'a')(x)", "K.fa = lambda self, x: x * 3"),
    Case("function", "single dispatch", "import functools\n@functools.singledispatch\ndef f(x): return x * 2", "return f(x)", "@f.register(torch.Tensor)\ndef g(x): return x * 3", "changed"),
    # Values of the module.
    Case("global", "number", "S = 2.0", "return x * S", "S = 3.0"),
    Case("global", "tensor", "S = torch.ones(3)", "return x * S", "S = torch.ones(3) * 2"),
    Case("global", "tensor written in place", "S = torch.ones(3)", "return x * S", "S.mul_(2)"),
    Case("global", "array", "import numpy\nS = numpy.ones(3)", "return x * torch.as_tensor(S)", "S[1] = 5.0"),
    Case("global", "list", "S = [1.0, 2.0]", "return x * S[1]", "S[1] = 3.0"),
    Case("global", "dict in a dict", "S = {'a': {'b': 2.0}}", "return x * S['a']['b']", "S['a']['b'] = 3.0"),
    Case("global", "set", "S = {1, 2}", "return x * sum(S)", "S.add(5)"),
    Case("global", "frozenset", "S = frozenset({1, 2})", "return x * sum(S)", "S = frozenset({1, 5})"),
    Case("global", "deque", "import collections\nS = collections.deque([1, 2])", "return x * sum(S)", "S.append(5)"),
    Case("global", "dataclass", "import dataclasses\n@dataclasses.dataclass\nclass C:\n    s: float = 2.0\nc = C()", "return x * c.s", "c.s = 3.0"),
    Case("global", "slots", "class C:\n    __slots__ = ('s',)\nc = C()\nc.s = 2.0", "return x * c.s", "c.s = 3.0"),
    Case("global", "named tuple", "import collections\nC = collections.namedtuple('C', 's')\nc = C(2.0)", "return x * c.s", "c = C(3.0)"),
    Case("global", "pattern", "import re\nS = re.compile('a+')", "return x * len(S.findall('aba'))", "S = re.compile('b+')"),
    Case("global", "path", "import pathlib\nS = pathlib.Path('/a/b')", "return x * len(S.parts)", "S = pathlib.Path('/a')"),
    Case("global", "deleted, so the builtin is meant", "def abs(x): return x * 2", "return abs(x)", "del abs"),
    Case("global", "that hides a builtin", "", "return x * max(1, 2)", "def max(*a): return 5"),
    Case("global", "scripted function", "g = torch.jit.CompilationUnit('def f(x):\\n    return x * 2\\n').f", "return g(x)", "g = torch.jit.CompilationUnit('def f(x):\\n    return x * 3\\n').f"),
    # Classes.
    Case("class", "method", "class K:\n    def f(self, x): return x * 2\nk = K()", "return k.f(x)", "K.f = lambda self, x: x * 3"),
    Case("class", "attribute", "class K:\n    s = 2.0\nk = K()", "return x * k.s", "K.s = 3.0"),
    Case("class", "attribute of a base", "class B:\n    s = 2.0\nclass K(B): pass\nk = K()", "return x * k.s", "B.s = 3.0"),
    Case("class", "list in a class", "class K:\n    s = [2.0]\nk = K()", "return x * k.s[0]", "K.s[0] = 3.0"),
    Case("class", "base exchanged", "class A:\n    s = 2.0\nclass B:\n    s = 3.0\nclass K(A): pass\nk = K()", "return x * k.s", "K.__bases__ = (B,)"),
    Case("class", "property", "class K:\n    @property\n    def s(self): return 2.0\nk = K()", "return x * k.s", "K.s = property(lambda self: 3.0)"),
    Case("class", "cached property", "import functools\nclass K:\n    @functools.cached_property\n    def s(self): return 2.0", "return x * K().s", "class K:\n    @functools.cached_property\n    def s(self): return 3.0"),
    Case("class", "static method", "class K:\n    @staticmethod\n    def f(x): return x * 2", "return K.f(x)", "K.f = staticmethod(lambda x: x * 3)"),
    Case("class", "class method", "class K:\n    @classmethod\n    def f(cls, x): return x * 2", "return K.f(x)", "K.f = classmethod(lambda cls, x: x * 3)"),
    Case("class", "operator", "class K:\n    def __mul__(self, x): return x * 2\nk = K()", "return k * x", "K.__mul__ = lambda self, x: x * 3"),
    Case("class", "__getattr__", "class K:\n    def __getattr__(self, name): return 2.0\nk = K()", "return x * k.anything", "K.__getattr__ = lambda self, name: 3.0"),
    Case("class", "descriptor", "class D:\n    def __get__(self, o, t): return 2.0\nclass K:\n    s = D()\nk = K()", "return x * k.s", "D.__get__ = lambda self, o, t: 3.0"),
    Case("class", "metaclass", "class T(type):\n    def __call__(cls, x): return x * 2\nclass K(metaclass=T): pass", "return K(x)", "T.__call__ = lambda cls, x: x * 3"),
    Case("class", "in a dict", "class A:\n    s = 2.0\nclass B:\n    s = 3.0\nks = {'a': A}", "return x * ks['a'].s", "ks['a'] = B"),
    Case("class", "of an object", "class A:\n    s = 2.0\nclass B:\n    s = 3.0\nk = A()", "return x * k.s", "k.__class__ = B"),
    Case("class", "autograd function", "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return x * 2", "return F.apply(x)", "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return x * 3"),
    Case("class", "enum's value", "import enum\nclass E(enum.Enum): A = 2", "return x * E.A.value", "class E(enum.Enum): A = 3"),
    Case("class", "attribute of an enum's member", "import enum\nclass E(enum.Enum): A = 1\nE.A.s = 2.0", "return x * E.A.s", "E.A.s = 3.0"),
    Case("class", "attribute of a member that a list holds", "import enum\nclass E(enum.Enum): A = 1\nE.A.s = 2.0\nes = [E.A]", "return x * es[0].s", "E.A.s = 3.0"),
    Case("class", "subclasses", "class B: s = 2.0\nclass K(B): s = 3.0", "return x * sum(k.s for k in B.__subclasses__())", "class L(B): s = 4.0", "__subclasses__"),
    Case("class", "dataclass that is made in forward", "import dataclasses\n@dataclasses.dataclass\nclass C:\n    s: float = 2.0", "return x * C().s", "import dataclasses\n@dataclasses.dataclass\nclass C:\n    s: float = 3.0"),
    Case("class", "default factory of a dataclass", "import dataclasses\n@dataclasses.dataclass\nclass C:\n    s: list = dataclasses.field(default_factory=lambda: [2.0])", "return x * C().s[0]", "import dataclasses\n@dataclasses.dataclass\nclass C:\n    s: list = dataclasses.field(default_factory=lambda: [3.0])"),
    Case("class", "all of whose methods have a decorator of the standard library", "import contextlib\nclass C:\n    @contextlib.contextmanager\n    def f(self): yield 2.0", "with C().f() as s: return x * s", "import contextlib\nclass C:\n    @contextlib.contextmanager\n    def f(self): yield 3.0"),
    Case("class", "methods under autocast, of another dtype", "def of(d):\n    class C:\n        @torch.autocast('cpu', dtype=d)\n        def f(self, x): return x.reshape(1, 3) @ x.reshape(3, 1) * 1.001\n    return C()\nc = of(torch.bfloat16)", "return c.f(x * 1.01).double()", "c = of(torch.float16)"),
    # The module itself.
    Case("module", "forward replaced in the class", "", "return x * 2", "M.forward = lambda self, x: x * 3"),
    Case("module", "forward replaced on the instance", "", "return x * 2", "m.forward = lambda x: x * 3"),
    Case("module", "method replaced on the instance", "class M(nn.Module):\n    def f(self, x): return x * 2\n    def forward(self, x): return self.f(x)", "", "m.f = lambda x: x * 3"),
    Case("module", "hook", "", "return x * 2", "m.register_forward_hook(lambda m, i, o: o * 2)"),
    Case("module", "hook edited", "S = 2.0\ndef hook(m, i, o): return o * S\nclass M(nn.Module):\n    def forward(self, x): return x\nm = M()\nm.register_forward_hook(hook)", "", "S = 3.0"),
    Case("module", "attribute", "class M(nn.Module):\n    s = 2.0\n    def forward(self, x): return x * self.s", "", "m.s = 3.0"),
    Case("module", "weight", "torch.manual_seed(0)\nm = nn.Linear(3, 3).requires_grad_(False)", "", "m.weight.add_(1)"),
    Case("module", "child exchanged", "m = nn.Sequential(nn.ReLU())", "", "m[0] = nn.Sigmoid()"),
    Case("module", "child's class", "class A(nn.Module):\n    def forward(self, x): return x * 2\nclass B(nn.Module):\n    def forward(self, x): return x * 3\nm = nn.Sequential(A())", "", "m[0].__class__ = B"),
    Case("module", "made in forward", "class A(nn.Module):\n    def forward(self, x): return x * 2", "return A()(x)", "class A(nn.Module):\n    def forward(self, x): return x * 3"),
    Case("module", "eval", "m = nn.Dropout(0.9).eval()\nclass M(nn.Module):\n    def forward(self, x): return x * (2 if self.training else 3)\nm = M()", "", "m.eval()"),
    # Other modules of the user's.
    Case("import", "attribute of a module", _OTHER, "return x * other.S", "other.S = 3.0"),
    Case("import", "import_module in forward", _OTHER + "import importlib", "return x * importlib.import_module(__name__ + '_o').S", "other.S = 3.0", "import_module"),
    Case("import", "import_module by another name", _OTHER + "from importlib import import_module as load", "return x * load(__name__ + '_o').S", "other.S = 3.0", "imports by load"),
    Case("import", "sys.modules in forward", _OTHER, "return x * sys.modules[__name__ + '_o'].S", "other.S = 3.0", "sys.modules"),
    Case("import", "sys.modules by another name", _OTHER + "from sys import modules", "return x * modules[__name__ + '_o'].S", "other.S = 3.0", "sys.modules"),
    Case("import", "import statement in forward", _OTHER + "sys.modules['user_code_in_forward'] = other", "import user_code_in_forward\nreturn x * user_code_in_forward.S", "other.S = 3.0", "imports user_code_in_forward"),
    Case("import", "__globals__ of a function", "S = 2.0\ndef f(): pass", "return x * f.__globals__['S']", "S = 3.0", "__globals__"),
    Case("import", "__globals__ by getattr", "S = 2.0\ndef f(): pass", "return x * getattr(f, '__globals__')['S']", "S = 3.0", "__globals__"),
    Case("import", "the frame's globals", "import sys\nS = 2.0", "return x * sys._getframe().f_globals['S']", "S = 3.0", "f_globals"),
    Case("import", "globals()", "S = 2.0", "return x * globals()['S']", "S = 3.0", "globals()"),
    # What torch dispatches.
    Case("operator", "custom_op edited", "@torch.library.custom_op(__name__ + '::f', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * 2", "return f(x)", "@torch.library.custom_op(__name__ + '::f', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * 3"),
    Case("operator", "custom_op through torch.ops, edited", "@torch.library.custom_op(__name__ + '::f', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * 2\nn = __name__", "return getattr(torch.ops, n).f(x)", "@torch.library.custom_op(__name__ + '::f', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * 3", "computed name"),
    # The old value of g would call an operator that torch has freed.
    Case("operator", "custom_op as a value, edited", "@torch.library.custom_op(__name__ + '::f', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * 2\ng = getattr(torch.ops, __name__).f", "return g(x)", "@torch.library.custom_op(__name__ + '::f', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * 3\ng = getattr(torch.ops, __name__).f"),
    Case("operator", "custom_op by its name, edited", "@torch.library.custom_op('user_code::by_name', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * 2", "return torch.ops.user_code.by_name(x)", "@torch.library.custom_op('user_code::by_name', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * 3"),
    Case("operator", "what a custom_op reads", "S = 2.0\n@torch.library.custom_op('user_code::reads', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * S", "return torch.ops.user_code.reads(x)", "S = 3.0"),
    Case("operator", "kernel registered for the CPU", "@torch.library.custom_op('user_code::kernel', mutates_args=())\ndef f(x: torch.Tensor) -> torch.Tensor: return x * 2", "return torch.ops.user_code.kernel(x)", "@f.register_kernel('cpu')\ndef g(x): return x * 3"),
    Case("operator", "Library.impl, registered anew", "lib = torch.library.Library('user_lib', 'DEF')\nlib.define('f(Tensor x) -> Tensor')\nlib.impl('f', lambda x: x * 2, 'CPU')", "return torch.ops.user_lib.f(x)", "lib._destroy()\nlib = torch.library.Library('user_lib', 'DEF')\nlib.define('f(Tensor x) -> Tensor')\nlib.impl('f', lambda x: x * 3, 'CPU')", "kernel in Python"),
    Case("operator", "Library.impl, which reads a global", "S = 2.0\nlib = torch.library.Library('user_lib2', 'DEF')\nlib.define('f(Tensor x) -> Tensor')\nlib.impl('f', lambda x: x * S, 'CPU')", "return torch.ops.user_lib2.f(x)", "S = 3.0", "kernel in Python"),
    Case("mode", "is_grad_enabled", "", "return x * (2 if torch.is_grad_enabled() else 3)", "torch.set_grad_enabled(True)"),
    Case("mode", "is_grad_enabled imported", "from torch import is_grad_enabled", "return x * (2 if is_grad_enabled() else 3)", "torch.set_grad_enabled(True)"),
    Case("mode", "is_inference_mode_enabled", "", "return x * (2 if torch.is_inference_mode_enabled() else 3)", "guard = torch.inference_mode()\nguard.__enter__()"),
    Case("mode", "default dtype", "", "return x + torch.full((3,), 0.1).double()", "torch.set_default_dtype(torch.float64)"),
    # Memos.
    Case("memo", "lru_cache of a function, edited", "import functools\n@functools.lru_cache\ndef f(): return 2.0", "return x * f()", "@functools.lru_cache\ndef f(): return 3.0"),
    Case("memo", "lru_cache answers with the old value", "import functools\nS = 2.0\n@functools.lru_cache\ndef f(): return S", "return x * f()", "S = 3.0\nlook_up()\nf.cache_clear()"),
    Case("memo", "lru_cache of a method", "import functools\nS = 2.0\nclass M(nn.Module):\n    @functools.lru_cache\n    def f(self): return S\n    def forward(self, x): return x * self.f()", "", "S = 3.0\nlook_up()\nM.f.cache_clear()"),
    Case("memo", "lru_cache in a chain", "import functools\nS = {'a': 2.0}\n@functools.lru_cache(maxsize=None)\ndef f(k): return S[k]\ndef g(): return f('a')", "return x * g()", "S['a'] = 3.0\nlook_up()\nf.cache_clear()"),
    # Classes of arguments.
    Case("input", "method of a named tuple", "import typing\nclass P(typing.NamedTuple):\n    a: torch.Tensor\n    def total(self): return self.a * 2\ngiven = (P(torch.ones(3)),)", "return x.total()", "P.total = lambda self: self.a * 3"),
    Case("input", "what a method of a named tuple reads", "import typing\nS = 2.0\nclass P(typing.NamedTuple):\n    a: torch.Tensor\n    def total(self): return self.a * S\ngiven = (P(torch.ones(3)),)", "return x.total()", "S = 3.0"),
    Case("input", "method of an enum", "import enum\nclass E(enum.Enum):\n    A = 1\n    def by(self): return 2.0\ngiven = (E.A,)", "return torch.ones(3) * x.by()", "E.by = lambda self: 3.0"),
    Case("input", "attribute of an enum's member", "import enum\nclass E(enum.Enum): A = 1\nE.A.s = 2.0\ngiven = (E.A,)", "return torch.ones(3) * x.s", "E.A.s = 3.0"),
    # What installed packages dispatch to the user's code.
    Case("registry", "function in a package's dict, edited", PACKAGE + "def f(x): return x * 2\np.KNOWN['a'] = f", "return p.call('a', x)", "def f(x): return x * 3\np.KNOWN['a'] = f"),
    Case("registry", "function in a dict of a package's class, edited", PACKAGE + "def f(x): return x * 2\np.Registry.register('a', f)", "return p.ask('a', x)", "def f(x): return x * 3\np.Registry.register('a', f)"),
    Case("registry", "function in a dict of a package's class, another registered", PACKAGE + "def f(x): return x * 2\ndef g(x): return x * 3\np.Registry.register('a', f)", "return p.ask('a', x)", "p.Registry.register('a', g)"),
    Case("registry", "what a registered function reads", PACKAGE + "S = 2.0\ndef f(x): return x * S\np.Registry.register('a', f)", "return p.ask('a', x)", "S = 3.0"),
    Case("registry", "closure that is registered", PACKAGE + "def make(s): return lambda x: x * s\np.Registry.register('a', make(2.0))", "return p.ask('a', x)", "p.Registry.register('a', make(3.0))"),
    Case("registry", "object that is registered", PACKAGE + "class K:\n    s = 2.0\n    def __call__(self, x): return x * self.s\nk = K()\np.Registry.register('a', k)", "return p.ask('a', x)", "k.s = 3.0"),
    Case("registry", "class that is registered", PACKAGE + "class K(nn.Module):\n    def forward(self, x): return x * 2\np.KNOWN['a'] = lambda x: K()(x)", "return p.call('a', x)", "class K(nn.Module):\n    def forward(self, x): return x * 3"),
    Case("registry", "a package's function replaced", PACKAGE + "def f(name, x): return x * 3", "return p.call('plain', x)", "p.call = f"),
]  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Seen]]:
    """By form and title. All cases of a form share a process."""
    found = {}
    for form in FORMS:
        runner = ProcessRunner(tmp_path_factory.mktemp("grid"))
        if form == "in a new process":
            directory = tmp_path_factory.mktemp("filled")
            runner.run(fill, CASES, directory)
            found[form] = runner.run(tried_in_new_process, CASES, directory, True).value
            found["unchanged"] = runner.run(tried_in_new_process, CASES, directory, False).value
        else:
            found[form] = runner.run(tried_in_process, CASES, form).value
        runner.kill_all()
    return found


BY_TITLE = {case.title: case for case in CASES}


def test_every_case_has_a_title_of_its_own() -> None:
    assert len(BY_TITLE) == len(CASES)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("title", BY_TITLE)
def test_no_old_output(outcomes: dict[str, dict[str, Seen]], title: str, form: str) -> None:
    seen = outcomes[form][title]
    assert seen.did_change, "the case tries nothing"
    assert seen.is_right


@pytest.mark.parametrize("title", BY_TITLE)
def test_unchanged_it_hits_in_a_new_process(
    outcomes: dict[str, dict[str, Seen]], title: str
) -> None:
    seen, reason = outcomes["unchanged"][title], BY_TITLE[title].bypass
    assert seen.is_right
    if seen.counted["hits_disk"] == 0:
        assert reason, seen.refusal
        assert reason in seen.refusal


def test_how_many_were_tried(outcomes: dict[str, dict[str, Seen]]) -> None:
    for group, cases in itertools.groupby(CASES, lambda case: case.group):
        titles = [case.title for case in cases]
        right = sum(outcomes[form][title].is_right for form in FORMS for title in titles)
        print(f"{group}: {len(titles) * len(FORMS)} tried, {right} survived")
        assert right == len(titles) * len(FORMS)
