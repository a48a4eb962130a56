# SPDX-License-Identifier: Apache-2.0
"""What holds for every page of recipes."""

from __future__ import annotations

from pathlib import Path

import pytest
import recipe

PAGES = sorted(page.stem for page in recipe.FOLDER.glob("*.md") if page.stem != "README")


@pytest.mark.parametrize("name", PAGES)
def test_a_recipe_has_at_most_40_lines(name: str) -> None:
    assert len(recipe.code(name).splitlines()) <= 40


@pytest.mark.parametrize("name", PAGES)
def test_a_recipe_has_a_test(name: str) -> None:
    assert (Path(__file__).parent / f"test_{name.replace('-', '_')}.py").exists()


@pytest.mark.parametrize("name", PAGES)
def test_the_index_names_the_recipe(name: str) -> None:
    assert f"({name}.md)" in (recipe.FOLDER / "README.md").read_text(encoding="utf-8")
