# SPDX-License-Identifier: Apache-2.0
"""The status page in a real browser: the switch, the counters, and text that is not markup."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import modcache
import pytest
import torch
from browser import DESKTOP, PHONE, browser, overflow, picture, problems, show_as
from load import Load
from running import ROOT, RunningServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from test_load import modcache as program

Start = Callable[..., RunningServer]
PICTURES = ROOT / "build" / "pictures"  # for people to look at
MARKUP = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
LOOKS = [(dark, width) for dark in (False, True) for width in (DESKTOP, PHONE)]


@pytest.fixture(scope="module")
def chrome() -> Iterator[webdriver.Chrome]:
    with browser() as driver:
        yield driver


def text_of(chrome: webdriver.Chrome, id: str) -> str:
    script = "return document.getElementById(arguments[0])?.textContent ?? ''"
    text: str = chrome.execute_script(script, id)  # at once: an element may be replaced meanwhile
    return text


def number_of(chrome: webdriver.Chrome, id: str) -> int:
    """A number of the totals; -1 before the first answer."""
    return int(text_of(chrome, id).replace(",", "") or -1)


def until(chrome: webdriver.Chrome, holds: Callable[[], object]) -> None:
    WebDriverWait(chrome, 15, 0.1).until(lambda _: holds())


def open_page(chrome: webdriver.Chrome, server: RunningServer) -> None:
    chrome.get(f"http://127.0.0.1:{server.port}/")
    problems(chrome)  # those of the page before
    until(chrome, lambda: number_of(chrome, "total-requests") >= 0)


@pytest.mark.parametrize(("dark", "width"), LOOKS)
def test_switch_and_counters(
    start: Start, chrome: webdriver.Chrome, dark: bool, width: int
) -> None:
    server = start()
    show_as(chrome, dark=dark, width=width)
    open_page(chrome, server)
    assert text_of(chrome, "mode-title") == "Cache on"
    for _ in range(4):
        server.predict(1, "a")
    until(chrome, lambda: number_of(chrome, "total-hits") >= 2)
    until(chrome, lambda: text_of(chrome, "rate").endswith("%"))

    switch = chrome.find_element(By.ID, "switch")
    switch.click()
    until(chrome, lambda: text_of(chrome, "mode-title") == "Cache off")
    assert server.mode() == "off"
    assert switch.get_attribute("aria-checked") == "false"
    hits, bypassed = (number_of(chrome, f"total-{name}") for name in ("hits", "bypassed"))
    server.predict(1, "a")
    until(chrome, lambda: number_of(chrome, "total-bypassed") == bypassed + 1)
    assert number_of(chrome, "total-hits") == hits

    switch.send_keys(Keys.SPACE)  # without a pointer
    until(chrome, lambda: text_of(chrome, "mode-title") == "Cache on")
    assert server.mode() == "on"
    server.predict(1, "a")
    until(chrome, lambda: number_of(chrome, "total-hits") == hits + 1)

    assert overflow(chrome) == 0
    assert problems(chrome) == []
    picture(chrome, PICTURES / f"status-{'dark' if dark else 'light'}-{width}.png")


def test_each_mode_has_a_button(start: Start, chrome: webdriver.Chrome) -> None:
    server = start()
    show_as(chrome, dark=False)
    open_page(chrome, server)
    for mode in ("read", "refresh", "verify", "off", "on"):
        buttons = chrome.find_elements(By.CSS_SELECTOR, "#modes button")
        (button,) = [button for button in buttons if button.text == mode]
        button.click()
        until(chrome, lambda mode=mode: server.mode() == mode)
        until(chrome, lambda button=button: button.get_attribute("aria-pressed") == "true")


def test_mode_of_the_directory_is_shown(start: Start, chrome: webdriver.Chrome) -> None:
    server = start()
    server.predict(1, "a")
    open_page(chrome, server)
    program("mode", "off", server.directory)
    until(chrome, lambda: text_of(chrome, "mode-title") == "Cache off")
    assert "the directory allows less" in text_of(chrome, "mode-note")
    assert str(server.directory) in text_of(chrome, "mode-note")
    program("mode", "on", server.directory)
    until(chrome, lambda: text_of(chrome, "mode-title") == "Cache on")
    until(chrome, lambda: text_of(chrome, "mode-note") == "")


def test_clicks_under_load_lose_no_request(start: Start, chrome: webdriver.Chrome) -> None:
    server = start("--connections", "90", run_ms=12)
    show_as(chrome, dark=False)
    open_page(chrome, server)
    running = Load(server, seconds=300)
    bypassed = []
    for _ in range(2):
        chrome.find_element(By.ID, "switch").click()
        until(chrome, lambda: text_of(chrome, "mode-title") == "Cache off")
        before = number_of(chrome, "total-bypassed")
        until(chrome, lambda before=before: number_of(chrome, "total-bypassed") > before + 50)
        bypassed.append(number_of(chrome, "total-bypassed") - before)
        chrome.find_element(By.ID, "switch").click()
        until(chrome, lambda: text_of(chrome, "mode-title") == "Cache on")
    counted = running.stop()
    assert counted.errors == 0
    assert min(bypassed) > 50
    until(chrome, lambda: text_of(chrome, "p99").endswith("s"))
    picture(chrome, PICTURES / "status-load.png")
    assert problems(chrome) == []


def test_scopes_are_text_and_not_markup(
    start: Start, chrome: webdriver.Chrome, tmp_path: Path
) -> None:
    directory = tmp_path / "cache"
    modcache.configure(dir=directory)
    torch.ops.cache.store(MARKUP, "a", torch.ones(100))
    modcache.flush()
    server = start(dir=directory)
    open_page(chrome, server)
    until(chrome, lambda: MARKUP in text_of(chrome, "scopes"))
    assert chrome.find_elements(By.CSS_SELECTOR, "#scopes img, #scopes script") == []
    assert chrome.title != "taken"
    assert problems(chrome) == []


def test_the_page_loads_nothing_else(server: RunningServer, chrome: webdriver.Chrome) -> None:
    open_page(chrome, server)
    loaded = chrome.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    own = f"http://127.0.0.1:{server.port}/status"
    assert loaded
    assert all(name.startswith(own) for name in loaded), loaded
    answer = server.ask("GET", "/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http:" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in answer.text


def test_lost_server_is_shown_and_found_again(start: Start, chrome: webdriver.Chrome) -> None:
    server = start()
    server.predict(1, "a")
    open_page(chrome, server)
    server.kill()
    until(chrome, lambda: "No answer from the server" in text_of(chrome, "lost"))
    problems(chrome)  # the browser's own, of a server that is not there
    start("--port", str(server.port))
    until(chrome, lambda: text_of(chrome, "lost") == "")
    until(chrome, lambda: number_of(chrome, "total-requests") == 0)


PAGE_OF_ANOTHER_SITE = """<!doctype html><title>another site</title><script>
const told = [];
const headers = { "Content-Type": "application/json" };
const put = { method: "PUT", body: '{"mode": "off"}', headers };
const ways = [["fetch", put], ["without CORS", { ...put, mode: "no-cors" }],
  ["as text", { method: "POST", body: put.body, mode: "no-cors" }]];
(async () => {
  for (const [name, request] of ways) {
    await fetch("URL/cache/mode", request).then(() => told.push(name), () => 0);
  }
  document.title = "done";
})();
</script>"""


def test_page_of_another_site_cannot_set_the_mode(
    server: RunningServer, chrome: webdriver.Chrome, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text(PAGE_OF_ANOTHER_SITE.replace("URL", f"http://127.0.0.1:{server.port}"))
    chrome.get(page.as_uri())
    until(chrome, lambda: chrome.title == "done")
    assert server.mode() == "on"
