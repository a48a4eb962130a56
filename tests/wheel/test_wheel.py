# SPDX-License-Identifier: Apache-2.0
"""The wheel that ./python_shim/make_wheel made: installed without a compiler, for every torch.

`./tests/run --only wheel` makes it. MODCACHE_TORCHES names folders of packages with a torch each,
one for each version to try.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TORCHES = [Path(s) for s in os.environ.get("MODCACHE_TORCHES", "").split(os.pathsep) if s]

pytestmark = pytest.mark.skipif(not TORCHES, reason="./tests/run --only wheel makes the wheel")


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def supported_minors() -> list[str]:
    """What pyproject.toml says: 2.13, 2.14 and so on."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ((first, end),) = re.findall(r'"torch>=2\.(\d+),<2\.(\d+)"', text)
    return [f"2.{minor}" for minor in range(int(first), int(end))]


def minors_with_a_library(wheel: Path) -> list[str]:
    """In the order of the versions."""
    names = " ".join(zipfile.ZipFile(wheel).namelist())
    minors = re.findall(r"modcache/lib/torch-2\.(\d+)/libmodcache\.so", names)
    return [f"2.{minor}" for minor in sorted(map(int, minors))]


def minor_of(site: Path) -> str:
    text = (site / "torch" / "version.py").read_text(encoding="utf-8")
    (minor,) = re.findall(r"__version__ = '(\d+\.\d+)", text)
    return str(minor)


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The last that was made."""
    wheels = (ROOT / "dist").glob("modcache-*-py3-none-*.whl")
    return max(wheels, key=lambda wheel: wheel.stat().st_mtime)


class Environment:
    """A virtual environment of its own, with a borrowed torch and the wheel."""

    def __init__(self, folder: Path, site: Path, wheel: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.folder = folder
        self.site = site
        self.bin = folder / "bin"
        (packages,) = folder.glob("lib/python3*/site-packages")
        for entry in site.iterdir():
            if not entry.name.startswith(("modcache", "pip", "_")):
                (packages / entry.name).symlink_to(entry)
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python")
        self.run(*pip, "install", "--no-index", "--quiet", wheel)

    def run(self, *command: str | Path, **environment: str) -> str:
        """With no compiler and no CMake to be found, unless PATH says so."""
        return run(*command, **{"PATH": str(self.bin), "HOME": str(self.folder), **environment})

    def python(self, program: str) -> str:
        return self.run(self.bin / "python", "-W", "ignore", "-c", program)


@pytest.fixture(scope="session", params=TORCHES, ids=minor_of)
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheel: Path
) -> Environment:
    return Environment(tmp_path_factory.mktemp("installed") / "venv", request.param, wheel)


@pytest.fixture(scope="session")
def model(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Python snippets of the README save, one run after the other as a reader would."""
    folder = tmp_path_factory.mktemp("snippets")
    script = folder / "snippets.py"
    script.write_text("\n".join(blocks("python")), encoding="utf-8")
    environment.run(
        "/usr/bin/env", "-C", folder, environment.bin / "python", "-W", "ignore", script
    )
    return folder / "classifier.pt"


def test_it_is_for_every_python_and_for_systems_that_auditwheel_names(wheel: Path) -> None:
    assert re.search(rf"-py3-none-manylinux_2_\d+_{platform.machine()}\.whl$", wheel.name)


def test_it_has_a_library_for_each_torch_that_it_was_made_for(wheel: Path) -> None:
    """A release is made for every supported torch; each change for the first and the newest."""
    supported = supported_minors()
    is_release = os.environ.get("MODCACHE_THOROUGH") == "on"
    expected = supported if is_release else [supported[0], supported[-1]]
    assert minors_with_a_library(wheel) == expected


def test_it_has_the_library_for_servers_and_no_library_of_others(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "modcache/lib/libmodcache_remote.so" in names
    others = "libtorch|libc10|libsqlite|libssl|libcrypto"
    assert not [name for name in names if re.search(others, name)]


def test_it_has_the_compiled_part_for_each_python_whose_headers_can_be_had(wheel: Path) -> None:
    names = " ".join(zipfile.ZipFile(wheel).namelist())
    pythons = set(re.findall(r"modcache/lib/_guards\.cpython-(\d+)-", names))
    expected = {f"{sys.version_info.major}{sys.version_info.minor}"}
    if Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        expected |= {"313", "314"}  # later releases of Debian have them
    assert pythons >= expected


def test_the_library_for_the_torch_that_is_there_is_loaded(environment: Environment) -> None:
    told = environment.python("import json, modcache; print(json.dumps(modcache.build_info()))")
    info = json.loads(told)
    minor = minor_of(environment.site)
    assert info["library"].endswith(f"/modcache/lib/torch-{minor}/libmodcache.so")
    assert info["torch"].startswith(f"{minor}.")
    assert info["built_for_torch"].startswith(f"{minor}.")
    assert info["compiled_part"].endswith(".so")


_REMOTE = """
import modcache, torch
assert not any("modcache_remote" in line for line in open("/proc/self/maps"))
modcache.configure(remote="redis://127.0.0.1:1/0", remote_timeout_ms=5000)
modcache.lookup_or_run(torch.nn.ReLU(), torch.ones(2), "a")
print(any("modcache_remote" in line for line in open("/proc/self/maps")))
"""


def test_the_library_for_servers_is_opened_by_who_sets_remote(environment: Environment) -> None:
    assert environment.python(_REMOTE).strip() == "True"


def test_the_program_and_python_name_the_same_library(environment: Environment) -> None:
    named = environment.run(environment.bin / "modcache", "path")
    assert named == environment.python("import modcache; print(modcache.library_path())")


def test_the_snippets_of_the_readme_run(model: Path) -> None:
    assert model.exists()


def test_a_cpp_host_built_with_the_wheel_alone_hits_what_python_stored(
    environment: Environment, model: Path, tmp_path: Path
) -> None:
    """The host of the README, which asks for the key that a Python program has stored."""
    (source,) = blocks("cpp")
    (cmake,) = blocks("cmake")
    (tmp_path / "host.cpp").write_text(
        source.replace("\n}\n", "\n  std::cout << modcache::stats().at(\"misses\") << '\\n';\n}\n"),
        encoding="utf-8",
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(readme LANGUAGES CXX)\n"
        f"set(CMAKE_CXX_STANDARD 20)\nadd_executable(host host.cpp)\n{cmake}",
        encoding="utf-8",
    )
    prefix = environment.python("import modcache; print(modcache.cmake_prefix_path())").strip()
    tools = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    build = tmp_path / "build"
    run("cmake", "-S", tmp_path, "-B", build, "-GNinja", f"-DCMAKE_PREFIX_PATH={prefix}", **tools)
    run("cmake", "--build", build, **tools)
    environment.python(
        f"import modcache, torch; modcache.configure(dir={str(tmp_path / 'cache')!r})\n"
        f"model = torch.jit.load({str(model)!r}); x = torch.ones(1, 32)\n"
        "model(x, 'request/1'); torch.ops.cache.lookup_or_run(model.encoder, x, 'request/2')\n"
        "modcache.flush()"
    )
    printed = run(build / "host", model, MODCACHE_DIR=str(tmp_path / "cache"))
    assert printed.splitlines()[-1] == "0"


def test_a_torch_without_a_library_is_refused_and_those_there_are_are_named(
    environment: Environment, wheel: Path
) -> None:
    refusal = environment.python(
        "import torch; torch.__version__ = '2.99.0'\n"
        "try:\n    import modcache\nexcept ImportError as error:\n    print(error)"
    )
    assert "torch 2.99" in refusal
    assert ", ".join(minors_with_a_library(wheel)) in refusal
    assert "pip install --no-build-isolation ." in refusal


def test_a_library_for_another_torch_registers_nothing_and_says_why(
    environment: Environment, wheel: Path, tmp_path: Path
) -> None:
    minor = minor_of(environment.site)
    other = next(there for there in minors_with_a_library(wheel) if there != minor)
    library = Path(environment.run(environment.bin / "modcache", "path", "--torch", other).strip())
    alone = tmp_path / "libmodcache.so"  # without the facts that would refuse it before
    shutil.copy(library, alone)
    refusal = environment.python(
        f"import os; os.environ['MODCACHE_LIBRARY'] = {str(alone)!r}\n"
        "try:\n    import modcache\nexcept ImportError as error:\n    print(error)"
    )
    assert str(alone) in refusal
    said = environment.python(
        "import ctypes, os, sys, torch; os.dup2(1, 2)\n"
        f"try:\n    ctypes.CDLL({str(library)!r})\nexcept OSError as error:\n    print(error)\n"
        "print('registered:', hasattr(torch.ops.cache, 'lookup_or_run'))"
    )
    assert "registered: False" in said
    assert f"built for torch {other} and this process has torch {minor}" in said or (
        "undefined symbol" in said  # the linker refused it before
    )


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_it_works_without_the_compiled_part(
    environment: Environment, tmp_path: Path, state: str
) -> None:
    (lib,) = environment.folder.glob("lib/python3*/site-packages/modcache/lib")
    part = lib / f"_guards{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    moved = shutil.move(part, tmp_path)
    try:
        if state == "damaged":
            part.write_bytes(b"no library")
        program = "import modcache; print(modcache.build_info()['compiled_part'])"
        assert environment.python(program).startswith("none: ")
    finally:
        shutil.move(moved, part)
