# SPDX-License-Identifier: Apache-2.0
"""Every snippet and command of README.md works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from installed import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Where each command of the README is run, since a test cannot run the tests.
RUN_BY = {
    "./examples/run": (".ci/run", 'for command in "./examples/run" "./tests/run --all"; do'),
    "./tests/run": (".ci/run", 'for command in "./examples/run" "./tests/run --all"; do'),
    "pip install --no-build-isolation .": ("tests/setup.sh", "pip_that_builds install"),
    "./python_shim/make_wheel": ("tests/run", '"$ROOT/python_shim/make_wheel"'),
}

PRINT_PREFIX = "import modcache; print(modcache.cmake_prefix_path())"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    result = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command}:\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs the Python snippets, one after the other as a reader would; they save a model."""
    folder = tmp_path_factory.mktemp("readme")
    snippets = folder / "snippets.py"
    snippets.write_text("\n".join(blocks("python")), encoding="utf-8")
    run(sys.executable, "-W", "ignore", snippets, cwd=folder)
    return folder / "classifier.pt"


def test_the_python_snippets(model: Path) -> None:
    assert model.exists()


def test_the_cpp_host(model: Path, tmp_path: Path) -> None:
    (source,) = blocks("cpp")
    (cmake,) = blocks("cmake")
    (tmp_path / "host.cpp").write_text(source, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(readme LANGUAGES CXX)\n"
        f"set(CMAKE_CXX_STANDARD 20)\nadd_executable(host host.cpp)\n{cmake}",
        encoding="utf-8",
    )
    build = tmp_path / "build"
    prefix = run(sys.executable, "-W", "ignore", "-c", PRINT_PREFIX, cwd=tmp_path).strip()
    run("cmake", "-S", ".", "-B", build, "-GNinja", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=tmp_path)
    run("cmake", "--build", build, cwd=tmp_path)
    cache = tmp_path / "cache"
    printed = [run(build / "host", model, cwd=tmp_path, MODCACHE_DIR=str(cache)) for _ in range(2)]
    assert printed[0] == printed[1]
    assert any(cache.rglob("*.seg"))
    off = run(build / "host", model, cwd=tmp_path, MODCACHE_MODE="off")
    assert off == printed[0]


@pytest.mark.parametrize(
    "command", [line for block in blocks("sh") for line in block.splitlines() if line]
)
def test_the_commands_are_run_by(command: str) -> None:
    file, words = RUN_BY[command]
    assert words in (ROOT / file).read_text(encoding="utf-8")
