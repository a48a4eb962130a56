# SPDX-License-Identifier: Apache-2.0
"""Whatever an upgrade, or a running process, changes in an installed package: no old output.

The next hole is one line in ``package_cases.CASES``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from package_cases import CASES, LOOKS, NEW, OLD, install, record, tried
from processes import ProcessRunner

NAMES = [case.name for case in CASES]
CHANGED = [case.name for case in CASES if case.change]
Outcomes = dict[str, list[Any]]  # by name: the module's own output, what the cache gave, hits


def run(folder: Path, site: Path, look: str = "") -> Outcomes:
    """Every case in a process of its own, which imports from ``site``."""
    found: Outcomes = ProcessRunner(folder).run(tried, site, folder / "cache", look).value
    return found


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcomes]:
    """What came of it before and after an upgrade, by what the upgrade was like."""
    found = {}
    for form in ("recorded", "folder", "edited"):
        folder = tmp_path_factory.mktemp(form)
        site = folder / "site-packages"
        install(site, OLD, "folder" if form == "folder" else "recorded")
        run(folder, site)
        found[f"{form} again"] = run(folder, site)
        install(site, NEW, form)
        found[form] = run(folder, site)
        if form == "recorded":
            other = folder / "other" / "site-packages"
            install(other, NEW, "folder")
            for case in CASES:
                record(other, case.package, f"{NEW}.0", salt="x")
            found["other environment"] = run(folder, other)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["recorded", "folder", "edited"])
def test_an_upgrade_is_seen(upgraded: dict[str, Outcomes], form: str, name: str) -> None:
    assert upgraded[form][name] == [NEW, NEW, 0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["recorded again", "folder again"])
def test_the_same_package_hits(upgraded: dict[str, Outcomes], form: str, name: str) -> None:
    assert upgraded[form][name] == [OLD, OLD, 1]


@pytest.mark.parametrize("name", NAMES)
def test_an_equal_environment_hits(upgraded: dict[str, Outcomes], name: str) -> None:
    assert upgraded["other environment"][name] == [NEW, NEW, 1]


@pytest.fixture(scope="module", params=LOOKS)
def changed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("changed")
    install(folder / "site-packages", OLD, "recorded")
    return run(folder, folder / "site-packages", request.param)


@pytest.mark.parametrize("name", CHANGED)
def test_a_change_in_the_process_is_seen(changed: Outcomes, name: str) -> None:
    assert changed[name][:2] == [NEW, NEW]
