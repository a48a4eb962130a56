# SPDX-License-Identifier: Apache-2.0
"""A package whose files change under a running process: what was loaded counts.

Code of before that meets files of after is told by neither version, so it leaves no output for
processes that have the one or the other.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import modcache
import pytest
from processes import ProcessRunner

SOURCE = """
import torch
S = {v}.0
def f(x):
    from package.later import K
    return x * K
class Net(torch.nn.Module):
    def forward(self, x):
        return {forward}
"""
BEGIN = """
import importlib, sys, torch, modcache
torch.set_grad_enabled(False)
sys.dont_write_bytecode = True
sys.path.insert(0, str(site))
modcache.configure(dir=cache, log="off")
import package
x = torch.ones(2)
def seen(module, key="key"):
    return float(module(x)[0]), float(modcache.lookup_or_run(module, x, key)[0])
def upgrade():
    for file in (site / "package").glob("*.py"):
        file.write_text(file.read_text().replace("2.0", "3.0").replace("* 2", "* 3"))
"""
ASK = "print(*seen(package.Net()), modcache.stats()['hits_disk'])"
ASK_ALL = "for key in ('key', 'other', 'old'): print(*seen(package.Net(), key))"


def install(site: Path, forward: str, number: int) -> None:
    (site / "package").mkdir(parents=True, exist_ok=True)
    (site / "package" / "__init__.py").write_text(SOURCE.format(v=number, forward=forward))
    (site / "package" / "later.py").write_text(f"K = {number}.0\n")


def run(tmp_path: Path, program: str) -> list[str]:
    """What the program prints in a process of its own."""
    site, cache = tmp_path / "site-packages", tmp_path / "cache"
    return list(ProcessRunner(tmp_path).run(printed, BEGIN + program, site, cache).value)


def printed(program: str, site: Path, cache: Path) -> list[str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(program, {"__name__": "program", "site": site, "cache": cache})
    modcache.flush()
    return output.getvalue().split()


PROGRAMS = {
    "before the first look": "upgrade()\nprint(*seen(package.Net()))",
    "after the first look": "seen(package.Net())\nupgrade()\nprint(*seen(package.Net(), 'other'))",
    "reloaded": """
old = package.Net(); seen(old); upgrade(); importlib.reload(package)
print(*seen(package.Net())); seen(old, 'old')
""",
    "an object of before": """
old = package.Net(); upgrade(); importlib.reload(package)
print(*seen(old)); seen(package.Net())
""",
}


@pytest.mark.parametrize("forward", ["x * 2", "x * S", "f(x)"])
@pytest.mark.parametrize("form", PROGRAMS)
def test_no_process_sees_an_old_output(tmp_path: Path, form: str, forward: str) -> None:
    site = tmp_path / "site-packages"
    install(site, forward, 2)
    truth, given = run(tmp_path, PROGRAMS[form])
    assert given == truth
    for number, text in ((3, forward.replace("2", "3")), (2, forward)):
        install(site, text, number)
        assert run(tmp_path, ASK_ALL) == [f"{number}.0"] * 6


def test_a_package_installed_by_the_process_is_known_to_the_next(tmp_path: Path) -> None:
    install(tmp_path / "site-packages", "x * 2", 2)
    write = "(site / 'package' / '__init__.py').touch()\n"
    run(tmp_path, write + "importlib.reload(package)\n" + ASK)
    assert run(tmp_path, ASK) == ["2.0", "2.0", "1"]
