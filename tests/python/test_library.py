# SPDX-License-Identifier: Apache-2.0
"""Which of the libraries that are there is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from modcache._library import loading

HERE = ".".join(torch.__version__.split(".")[:2])
DAMAGED = ["", "no JSON", "[]", "1", '"x"', "null", '{"torch": null}', "[" * 100_000]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package without any library."""
    monkeypatch.delenv("MODCACHE_LIBRARY", raising=False)
    monkeypatch.setattr(loading, "_PACKAGE", tmp_path / "modcache")
    return tmp_path / "modcache"


def add(package: Path, minor: str, facts: str | None = None) -> Path:
    library = package / "lib" / f"torch-{minor}" / "libmodcache.so"
    library.parent.mkdir(parents=True)
    library.touch()
    library.with_suffix(".json").write_text(facts or json.dumps({"torch": f"{minor}.9"}))
    return library


def test_the_one_for_this_torch_is_taken(package: Path) -> None:
    for minor in ("0.9", "99.0"):
        add(package, minor)
    library = add(package, HERE)
    assert loading._library_for_this_torch() == library


def test_without_one_those_there_are_are_named(package: Path) -> None:
    for minor in ("0.9", "99.0"):
        add(package, minor)
    with pytest.raises(ImportError, match=rf"none for torch {HERE}, only for torch 0.9, 99.0"):
        loading._library_for_this_torch()


@pytest.mark.parametrize("facts", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_facts_of_another_library_do_no_harm(package: Path, facts: str) -> None:
    add(package, "0.9", facts or " ")
    library = add(package, HERE, facts or " ")
    assert loading._library_for_this_torch() == library


def test_facts_can_be_a_folder_or_missing(package: Path) -> None:
    add(package, "0.9").with_suffix(".json").unlink()
    library = add(package, HERE)
    library.with_suffix(".json").unlink()
    library.with_suffix(".json").mkdir()
    assert loading._library_for_this_torch() == library


def test_one_that_is_named_may_tell_nothing(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libmodcache.so"
    library.touch()
    monkeypatch.setenv("MODCACHE_LIBRARY", str(library))
    assert loading._library_for_this_torch() == library
    assert loading._built_for(library).startswith("unknown")
