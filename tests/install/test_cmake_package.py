# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` lays down, and what libmodcache.so shows to a host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
HOST = Path(__file__).parent / "host"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


def output_of(*command: str | Path) -> str:
    result = run(*command)
    assert result.returncode == 0, f"{command}:\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def project_version() -> str:
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"project\(modcache VERSION ([0-9.]+)", text)
    return str(version)


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert (BUILD / "libmodcache.so").exists(), "first: ./tests/run --only build"
    prefix = tmp_path_factory.mktemp("with a space")
    output_of("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


@pytest.fixture(scope="session")
def library(prefix: Path) -> Path:
    (library,) = prefix.glob("**/libmodcache.so")
    return library


def configure_host(prefix: Path, build: Path, version: str) -> subprocess.CompletedProcess[str]:
    options = (f"-DCMAKE_PREFIX_PATH={prefix}", f"-DVERSION_ASKED_FOR={version}", "-GNinja")
    return run("cmake", "-S", HOST, "-B", build, *options)


def test_a_host_that_calls_nothing_keeps_the_library(
    prefix: Path, tmp_path: Path, project_version: str
) -> None:
    configured = configure_host(prefix, tmp_path, project_version)
    assert configured.returncode == 0, configured.stderr
    output_of("cmake", "--build", tmp_path)
    assert output_of(tmp_path / "host").strip() == project_version


def test_a_later_version_is_not_there(prefix: Path, tmp_path: Path) -> None:
    configured = configure_host(prefix, tmp_path, "99.0")
    assert configured.returncode != 0
    assert 'compatible with requested version "99.0"' in " ".join(configured.stderr.split())


def test_the_licence_is_installed(prefix: Path) -> None:
    (licence,) = prefix.glob("**/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_library_exports_nothing_but_its_own_names(library: Path) -> None:
    symbols = output_of("nm", "--dynamic", "--defined-only", "--format=just-symbols", library)
    assert {name.split("_")[0] for name in symbols.split()} == {"modcache"}


def test_the_library_needs_neither_python_nor_what_is_linked_into_it(library: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "--dynamic", "-W", library))
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if re.search("python|sqlite|sodium|zstd", name)]


def test_the_library_is_never_unloaded_and_has_no_writable_code(library: Path) -> None:
    dynamic = output_of("readelf", "--dynamic", "-W", library)
    assert "NODELETE" in dynamic
    assert "TEXTREL" not in dynamic
