# SPDX-License-Identifier: Apache-2.0
"""report: the page that it writes, in a real browser, and what it does not overwrite."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import DESKTOP, PHONE, browser, overflow, problems, show_as
from program import MISUSE, SUCCESS, FillDirectory, Outcome, bytes_below
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from test_why import MANIFEST, OTHER

Program = Callable[..., Outcome]
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def shown(directory: Path, writer: FillDirectory) -> Path:
    """Two versions of a model, three weeks of counters, and names that are HTML."""
    writer.put(scope="encoder@1", key="k", count=40)
    writer.put(scope="encoder@2", key="k", count=20)
    writer.put(scope=HOSTILE, namespace=HOSTILE, method=HOSTILE, key=HOSTILE)
    writer.keep_manifest("encoder@1", **MANIFEST)
    writer.keep_manifest("encoder@2", **OTHER)
    tensors = {"tensors": {HOSTILE: "1"}, "class": HOSTILE, "method": HOSTILE}
    writer.keep_manifest(HOSTILE, HOSTILE, **{**MANIFEST, **tensors})
    for days_ago in range(21):
        scope = "encoder@1" if days_ago > 9 else "encoder@2"
        saved = {"hits_disk": 30, "misses": 10, "saved_us": 60_000_000 * (30 - days_ago)}
        writer.do("count", scope=scope, days_ago=days_ago, **saved)
    writer.do("count", scope=HOSTILE, misses=1)
    writer.flush()
    writer.leave()
    return directory


@pytest.fixture
def page(modcache: Program, shown: Path, tmp_path: Path) -> Path:
    file = tmp_path / "report.html"
    outcome = modcache("report", shown, "-o", file)
    assert (outcome.status, outcome.messages) == (SUCCESS, "")
    return file


def text_of(chrome: WebDriver) -> str:
    return chrome.find_element(By.TAG_NAME, "body").text


def test_the_page_in_a_browser(page: Path) -> None:
    with browser() as chrome:
        chrome.get(page.as_uri())
        text = text_of(chrome)
        assert "74.9 %" in text, "the hit rate: 630 of 841"
        assert "7 h" in text, "the time saved"
        assert "models.Encoder" in text
        assert "weight extra, linear.weight; code Encoder.forward; torch 2.13.0 -> 2.14.0" in text
        assert len(chrome.find_elements(By.CSS_SELECTOR, "svg[role=img][aria-label]")) == 2
        bars = chrome.find_elements(By.CSS_SELECTOR, "svg rect title")
        assert len(bars) in (2 * 21, 2 * 22), "one for each day; midnight may have come"
        chrome.find_element(By.TAG_NAME, "summary").click()
        assert len(chrome.find_elements(By.CSS_SELECTOR, "tbody tr")) in (21, 22)
        assert "75.0 %" in chrome.find_element(By.TAG_NAME, "table").text
        assert problems(chrome) == []


def test_names_that_are_html_stay_text(page: Path) -> None:
    with browser() as chrome:
        chrome.get(page.as_uri())
        assert "owned" not in chrome.title
        assert chrome.find_elements(By.CSS_SELECTOR, "img, iframe, link, object") == []
        assert len(chrome.find_elements(By.TAG_NAME, "script")) == 2, "the data, and what draws it"
        names = [each.text for each in chrome.find_elements(By.CSS_SELECTOR, ".sizes b, h3")]
        assert any(HOSTILE in name for name in names)
        titles = chrome.find_elements(By.CSS_SELECTOR, "code")
        assert HOSTILE in [each.get_attribute("title") for each in titles]


def test_it_loads_nothing_and_forbids_other_scripts(page: Path) -> None:
    with browser() as chrome:
        chrome.get(page.as_uri())
        loaded = "return performance.getEntriesByType('resource').length"
        assert chrome.execute_script(loaded) == 0
        chrome.execute_script(
            "const s = document.createElement('script'); s.text = 'document.title=1';"
            "document.body.append(s)"
        )
        assert chrome.title.startswith("modcache: "), "the policy of the page forbids it"


def test_it_fits_a_telephone_and_has_a_dark_form(page: Path) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    with browser() as chrome:
        chrome.get(page.as_uri())
        seen = set()
        for width in (320, PHONE, DESKTOP):
            for dark in (False, True):
                show_as(chrome, dark=dark, width=width)
                assert overflow(chrome) == 0, width
                seen.add((dark, chrome.execute_script(background)))
        assert len(seen) == 2, "one background for each form"


def test_people_who_cannot_see_it_get_names(page: Path) -> None:
    with browser() as chrome:
        chrome.get(page.as_uri())
        assert chrome.execute_script("return document.documentElement.lang") == "en"
        levels = [
            int(each.tag_name[1]) for each in chrome.find_elements(By.CSS_SELECTOR, "h1, h2, h3")
        ]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
        for svg in chrome.find_elements(By.TAG_NAME, "svg"):
            assert "in total" in (svg.get_attribute("aria-label") or "")
        for part, by in [("th", "scope"), ("svg", "role")]:
            assert all(e.get_attribute(by) for e in chrome.find_elements(By.TAG_NAME, part))
        links = chrome.find_elements(By.CSS_SELECTOR, "a[href]")
        assert links
        for link in links:
            target = (link.get_attribute("href") or "").partition("#")[2]
            assert chrome.find_elements(By.ID, target), "a link leads somewhere on this page"


def test_a_directory_that_counted_nothing_and_a_pack(
    modcache: Program, filled: Path, tmp_path: Path
) -> None:
    assert modcache("pack", filled, tmp_path / "pack").status == SUCCESS
    file = tmp_path / "report.html"
    with browser() as chrome:
        for what, told in [
            (filled, "none counted yet"),
            (tmp_path / "pack", "a pack counts nothing"),
        ]:
            outcome = modcache("report", what, "-o", "-")
            assert (outcome.status, outcome.messages) == (SUCCESS, "")
            assert outcome.data.startswith("<!doctype html>\n")
            file.write_text(outcome.data)
            chrome.get(file.as_uri())
            assert told in text_of(chrome)
            assert "NaN" not in text_of(chrome)
            assert chrome.find_elements(By.TAG_NAME, "svg") == []
            assert problems(chrome) == []


def test_times_and_sizes_read_as_the_command_line_shows_them(page: Path) -> None:
    cases = {
        "durationText": {7: "7 us", 1500: "1.50 ms", 2_000_000: "2.00 s", 125_000_000: "2 min 5 s"},
        "sizeText": {999: "999 B", 1500: "1.50 kB", 12_345_678_901: "12.3 GB"},
    }
    axes = {1: ["0", "1 us"], 7e6: ["0", "2 s", "4 s", "6 s", "8 s"], 1e8: ["0", "1 min", "2 min"]}
    with browser() as chrome:
        chrome.get(page.as_uri())
        for function, texts in cases.items():
            for number, text in texts.items():
                assert chrome.execute_script(f"return {function}({number})") == text
        for most, ticks in axes.items():
            assert chrome.execute_script(f"return durationAxis({most}).ticks") == ticks


def test_it_tells_what_it_wrote(modcache: Program, shown: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    told = modcache("report", shown, "--output", file, "--json").json()
    assert (told["directory"], told["file"]) == (str(shown), str(file))
    assert told["file_bytes"] == file.stat().st_size
    again = modcache("report", shown, "-o", file)
    assert again.status == SUCCESS, "its own page is replaced"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "report.html"]


def test_what_it_did_not_write_stays(modcache: Program, filled: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.html").write_text("<!doctype html>\n<p>Chapter 1")
    before = bytes_below(tmp_path)
    for name, message in [
        ("thesis.html", "was not written by this command"),
        ("cache", "is a directory"),
        ("none/report.html", "folder that is not there"),
    ]:
        outcome = modcache("report", filled, "-o", tmp_path / name)
        assert (outcome.status, outcome.data) == (MISUSE, "")
        assert message in outcome.messages
    assert bytes_below(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "report needs -o FILE"),
        (["-o", ""], "report needs -o FILE"),
        (["-o", "-", "--json"], "-o -"),
    ],
)
def test_misuse(modcache: Program, filled: Path, options: list[str], message: str) -> None:
    outcome = modcache("report", filled, *options)
    assert (outcome.status, outcome.data) == (MISUSE, "")
    assert message in outcome.messages


def test_looking_changes_no_byte(modcache: Program, shown: Path) -> None:
    before = bytes_below(shown)
    assert modcache("report", shown, "-o", "-").status == SUCCESS
    assert bytes_below(shown) == before
