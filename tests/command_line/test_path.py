# SPDX-License-Identifier: Apache-2.0
"""path: the library is found where the program was installed, wherever that is."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from program import FINDINGS, MISUSE, SUCCESS, Outcome, binary


def path_of(program: Path, *options: str, **environment: str) -> Outcome:
    done = subprocess.run(
        [program, "path", *options], env=environment, capture_output=True, text=True, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The program in the `bin` of a prefix of its own."""
    program = tmp_path / "a prefix" / "bin" / "modcache"
    program.parent.mkdir(parents=True)
    shutil.copy(binary("modcache"), program)
    return program


@pytest.mark.parametrize(
    "place",
    [
        "lib",
        "lib/python3.11/site-packages/modcache/lib/torch-2.13",
        "lib64/python3.12/site-packages/modcache/lib/torch-2.15",
        "local/lib/python3.11/dist-packages/modcache/lib/torch-2.13",
        "lib/python3/dist-packages/modcache/lib/torch-2.13",
        "modcache/lib/torch-2.13",
        ".",
    ],
)
def test_it_is_found_in_the_programs_prefix(installed: Path, place: str) -> None:
    library = installed.parent.parent / place / "libmodcache.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_bytes(b"")
    assert path_of(installed) == Outcome(SUCCESS, f"{library.resolve()}\n", "")


def test_of_several_the_one_that_is_asked_for(installed: Path) -> None:
    lib = installed.parent.parent / "lib" / "python3.11" / "site-packages" / "modcache" / "lib"
    for torch in ("2.13", "2.15"):
        folder = lib / f"torch-{torch}"
        folder.mkdir(parents=True)
        (folder / "libmodcache.so").write_bytes(b"")
        (folder / "libmodcache.json").write_text(json.dumps({"torch": f"{torch}.0+cpu"}))
    undecided = path_of(installed)
    assert (undecided.status, undecided.data) == (FINDINGS, "")
    assert "--torch" in undecided.messages
    wanted = lib.resolve() / "torch-2.15" / "libmodcache.so"
    assert path_of(installed, "--torch", "2.15") == Outcome(SUCCESS, f"{wanted}\n", "")
    assert path_of(installed, "--torch", "2.15", "--json").json()["torch"] == "2.15"
    for wrong in ("", "two"):
        misuse = path_of(installed, "--torch", wrong)
        assert misuse.status == MISUSE
        assert "2.13" in misuse.messages
    unknown = path_of(installed, "--torch", "2.16")
    assert unknown.status == FINDINGS
    assert "2.13, 2.15" in unknown.messages


def test_where_it_is_not_the_places_are_said(installed: Path) -> None:
    outcome = path_of(installed)
    assert (outcome.status, outcome.data) == (FINDINGS, "")
    assert str(installed.parent.parent / "lib" / "libmodcache.so") in outcome.messages
    assert "MODCACHE_LIBRARY" in outcome.messages


def test_the_environment_overrules(installed: Path, tmp_path: Path) -> None:
    library = tmp_path / "elsewhere.so"
    library.write_bytes(b"")
    assert path_of(installed, MODCACHE_LIBRARY=str(library)).data == f"{library}\n"
    assert path_of(installed, MODCACHE_LIBRARY=str(tmp_path / "none.so")).status == FINDINGS


def test_a_library_of_the_environment_answers_for_its_own_torch(
    installed: Path, tmp_path: Path
) -> None:
    library = tmp_path / "libmodcache.so"
    library.write_bytes(b"")
    library.with_suffix(".json").write_text(json.dumps({"torch": "2.13.0"}))
    told = path_of(installed, "--json", MODCACHE_LIBRARY=str(library)).json()
    assert (told["library"], told["torch"]) == (str(library), "2.13")
    assert path_of(installed, "--torch", "2.13", MODCACHE_LIBRARY=str(library)).status == SUCCESS
    other = path_of(installed, "--torch", "2.15", MODCACHE_LIBRARY=str(library))
    assert (other.status, other.data) == (FINDINGS, "")
    assert path_of(installed, "--torch", "two", MODCACHE_LIBRARY=str(library)).status == MISUSE


@pytest.mark.parametrize("torch", ["", "torch-2.13"])
def test_the_folder_of_the_cache_for_triton(installed: Path, torch: str) -> None:
    lib = installed.parent.parent / "lib"
    assert path_of(installed, "--triton-caches").status == FINDINGS
    library = lib / ("python3.11/site-packages/modcache/lib" if torch else "") / torch
    library.mkdir(parents=True)
    (library / "libmodcache.so").write_bytes(b"")
    missing = path_of(installed, "--triton-caches")
    assert (missing.status, missing.data) == (FINDINGS, "")
    caches = (library.parent if torch else library).resolve() / "triton_caches"
    assert f"'{caches}'" in missing.messages
    (caches / "modcache").mkdir(parents=True)
    (caches / "modcache" / "libtritoncache_modcache.so").write_bytes(b"")
    assert path_of(installed, "--triton-caches") == Outcome(SUCCESS, f"{caches}\n", "")
    told = path_of(installed, "--triton-caches", "--json").json()
    assert told == {"triton_caches": str(caches)}


def test_the_program_needs_neither_torch_nor_python_nor_what_is_linked_into_it() -> None:
    listed = subprocess.run(
        ["readelf", "--dynamic", "-W", binary("modcache")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    needed = [line for line in listed.splitlines() if "(NEEDED)" in line]
    assert needed
    for name in ("torch", "c10", "python", "sqlite", "sodium", "zstd", "modcache"):
        assert not [line for line in needed if name in line], name
