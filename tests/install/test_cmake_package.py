# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` lays down, and what libmodcache.so shows to a host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from installed import ROOT, output_of, run, torch_folder

HOST = Path(__file__).parent / "host"


@pytest.fixture(scope="session")
def project_version() -> str:
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"project\(modcache VERSION ([0-9.]+)", text)
    return str(version)


def configure_host(
    prefix: Path, build: Path, version: str, *more: str
) -> subprocess.CompletedProcess[str]:
    options = (f"-DCMAKE_PREFIX_PATH={prefix}", f"-DVERSION_ASKED_FOR={version}", "-GNinja", *more)
    return run("cmake", "-S", HOST, "-B", build, *options)


def torch_root(build: Path) -> Path:
    (root,) = re.findall(
        r"^LibTorch_ROOT_DIR:INTERNAL=(.+)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE
    )
    return Path(root)


def test_a_host_that_calls_nothing_keeps_the_library(
    prefix: Path, tmp_path: Path, project_version: str
) -> None:
    configured = configure_host(prefix, tmp_path, project_version)
    assert configured.returncode == 0, configured.stderr
    output_of("cmake", "--build", tmp_path)
    assert output_of(tmp_path / "host").strip() == project_version


@pytest.mark.parametrize(
    "cmake_folder", ["share/cmake/Torch", "lib/x86_64-linux-gnu/cmake/Torch"], ids=["pip", "debian"]
)
def test_torch_is_found_by_the_folder_of_its_own_cmake_package(
    prefix: Path, tmp_path: Path, project_version: str, cmake_folder: str
) -> None:
    torch, build = tmp_path / "torch with a space", tmp_path / "build"
    (torch / cmake_folder).mkdir(parents=True)
    libraries = torch / cmake_folder.removesuffix("/cmake/Torch").replace("share", "lib")
    libraries.mkdir(exist_ok=True)
    for name in ("libtorch.so", "libtorch_cpu.so", "libc10.so"):
        (libraries / name).symlink_to(torch_folder() / "lib" / name)
    (torch / "include").symlink_to(torch_folder() / "include")
    option = f"-DTorch_DIR={torch / cmake_folder}"
    configured = configure_host(prefix, build, project_version, option)
    assert configured.returncode == 0, configured.stderr
    assert torch_root(build) == torch
    output_of("cmake", "--build", build)
    needed = output_of("readelf", "--dynamic", "-W", build / "host")
    assert "libtorch.so" in needed, "for its CUDA kernels, though the host calls nothing of it"


def test_a_root_of_torch_that_is_not_absolute_is_refused(
    prefix: Path, tmp_path: Path, project_version: str
) -> None:
    configured = configure_host(prefix, tmp_path, project_version, "-DLibTorch_ROOT=torch")
    assert configured.returncode != 0
    assert "LibTorch_ROOT is 'torch'" in " ".join(configured.stderr.split())


def test_a_root_of_torch_comes_before_the_folder_of_its_cmake_package(
    prefix: Path, tmp_path: Path, project_version: str
) -> None:
    options = (f"-DLibTorch_ROOT={torch_folder()}", f"-DTorch_DIR={tmp_path}")
    configured = configure_host(prefix, tmp_path, project_version, *options)
    assert configured.returncode == 0, configured.stderr
    assert torch_root(tmp_path) == torch_folder()


def test_a_later_version_is_not_there(prefix: Path, tmp_path: Path) -> None:
    configured = configure_host(prefix, tmp_path, "99.0")
    assert configured.returncode != 0
    assert 'compatible with requested version "99.0"' in " ".join(configured.stderr.split())


def test_the_licence_is_installed(prefix: Path) -> None:
    (licence,) = prefix.glob("**/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_library_exports_these_names_and_no_other(library: Path) -> None:
    symbols = output_of("nm", "--dynamic", "--defined-only", "--format=just-symbols", library)
    assert set(symbols.split()) == {
        "modcache_read_log",
        "modcache_version",
        "triton_pytorch_model_init",
        "triton_pytorch_model_fini",
        "triton_pytorch_model_release",
    }


def test_the_cache_for_triton_is_installed_and_exports_what_triton_asks_for(prefix: Path) -> None:
    program = prefix / "bin" / "modcache"
    caches = Path(output_of(program, "path", "--triton-caches", MODCACHE_LIBRARY="").strip())
    library = caches / "modcache" / "libtritoncache_modcache.so"
    symbols = output_of("nm", "--dynamic", "--defined-only", "--format=just-symbols", library)
    assert set(symbols.split()) == {
        "TRITONCACHE_CacheInitialize",
        "TRITONCACHE_CacheFinalize",
        "TRITONCACHE_CacheLookup",
        "TRITONCACHE_CacheInsert",
    }
    dynamic = output_of("readelf", "--dynamic", "-W", library)
    assert "NODELETE" in dynamic
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert "libc.so.6" in needed
    assert not [name for name in needed if re.search("torch|triton|sqlite|sodium|zstd", name)]


def test_the_header_is_installed(prefix: Path) -> None:
    source = ROOT / "torchscript_ops" / "include" / "modcache" / "modcache.h"
    assert (prefix / "include" / "modcache" / "modcache.h").read_bytes() == source.read_bytes()


def test_the_library_needs_neither_python_nor_what_is_linked_into_it(library: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "--dynamic", "-W", library))
    assert "libtorch_cpu.so" in needed
    assert not [
        name for name in needed if re.search("python|sqlite|sodium|zstd|ssl|crypto|valkey", name)
    ]


def test_the_program_is_installed_and_finds_the_library(
    prefix: Path, library: Path, project_version: str
) -> None:
    program = prefix / "bin" / "modcache"
    assert output_of(program, "--version") == f"modcache {project_version}\n"
    assert output_of(program, "path", MODCACHE_LIBRARY="") == f"{library.resolve()}\n"


def test_pip_installs_the_program_as_a_command(project_version: str) -> None:
    program = Path(sys.executable).parent / "modcache"
    assert output_of(program, "--version") == f"modcache {project_version}\n"
    module = "import modcache; print(modcache.library_path())"
    of_python = output_of(sys.executable, "-W", "ignore", "-c", module, MODCACHE_LIBRARY="")
    assert output_of(program, "path", MODCACHE_LIBRARY="") == of_python


def test_the_library_is_never_unloaded_and_has_no_writable_code(library: Path) -> None:
    dynamic = output_of("readelf", "--dynamic", "-W", library)
    assert "NODELETE" in dynamic
    assert "TEXTREL" not in dynamic
