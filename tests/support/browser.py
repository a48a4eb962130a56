# SPDX-License-Identifier: Apache-2.0
"""A headless browser for the pages that modcache makes: Debian's chromium, driven by selenium.

    with browser(dark=True, width=390) as chrome:
        chrome.get("http://127.0.0.1:8080/")      # or path.as_uri()
        ...
        assert problems(chrome) == []

It reaches this machine alone, and downloads nothing. ./tests/run installs what it needs, so a
browser that is missing fails a test and does not skip it.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver

PHONE = 390  # CSS pixels, as a phone that is held upright has them
DESKTOP = 1280
PACKAGES = "chromium chromium-driver"
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # root has none, and only pages of this tree are shown
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


def _installed(name: str) -> str:
    path = shutil.which(name, path="/usr/bin:/usr/lib/chromium") or shutil.which(name)
    if path is None:
        raise RuntimeError(
            f"there is no '{name}' on this machine. Please run, as root: "
            f"apt-get install --no-install-recommends {PACKAGES}"
        )
    return path


@contextmanager
def browser(
    *, dark: bool = False, width: int = DESKTOP, height: int = 900
) -> Iterator[webdriver.Chrome]:
    """A browser with one empty page of ``width`` x ``height`` CSS pixels, closed at the end."""
    options = webdriver.ChromeOptions()
    options.binary_location = _installed("chromium")
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # With a driver that is named, selenium looks for none and fetches none.
    driver = webdriver.Chrome(options, webdriver.ChromeService(_installed("chromedriver")))
    try:
        driver.set_page_load_timeout(60)
        driver.set_script_timeout(30)
        show_as(driver, dark=dark, width=width, height=height)
        yield driver
    finally:
        driver.quit()


def show_as(
    driver: webdriver.Chrome, *, dark: bool, width: int = DESKTOP, height: int = 900
) -> None:
    """Gives the page another size and colour scheme. A window cannot be as narrow as a phone."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= PHONE},
    )


def problems(driver: webdriver.Chrome) -> list[str]:
    """Errors and warnings of the console since the last call, refused loads among them."""
    return [
        f"{entry['level']}: {entry['message']}"
        for entry in driver.get_log("browser")
        if entry["level"] in ("SEVERE", "WARNING")
    ]


def overflow(driver: webdriver.Chrome) -> int:
    """How many CSS pixels the page is wider than the screen; 0: nobody has to scroll aside."""
    wider: int = driver.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return wider


def picture(driver: webdriver.Chrome, path: Path) -> None:
    """Writes the whole page as a PNG, also what is below the fold."""
    size = driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(shot["data"]))
