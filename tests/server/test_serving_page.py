# SPDX-License-Identifier: Apache-2.0
"""docs/serving.md: its commands print what it shows, and its options and routes exist."""

from __future__ import annotations

import doctest
import re
import subprocess

from running import ROOT, SERVER, RunningServer

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MARK = "-- the next command --"


def commands_in(block: str) -> list[tuple[str, str]]:
    """Each command of a block, and what it shows."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert parts[0] == "", "a block begins with a command"
    pairs = (part.partition("\n") for part in parts[1:])
    return [(command, shown) for command, _, shown in pairs]


def test_commands_of_the_page(server: RunningServer) -> None:
    wrong = []
    assert len(BLOCKS) >= 3
    for block in BLOCKS:  # one session each
        commands = commands_in(block)
        lines = f"\necho '{MARK}'\n".join(command for command, _ in commands)
        session = lines.replace(":8080", f":{server.port}")
        done = subprocess.run(["bash", "-c", session], capture_output=True, text=True, check=False)
        outputs = done.stdout.split(f"{MARK}\n")
        assert len(outputs) == len(commands), done.stderr
        for (command, shown), got in zip(commands, outputs, strict=True):
            options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            if not doctest.OutputChecker().check_output(shown, got, options):
                wrong.append(f"$ {command}\n{shown}--- and it was:\n{got}")
    assert not wrong, "\n".join(wrong)


def test_options_of_the_page_exist() -> None:
    help_text = subprocess.run(
        [SERVER, "--help"], check=True, capture_output=True, text=True
    ).stdout
    serve = (ROOT / "examples" / "serve").read_text(encoding="utf-8")
    named = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", PAGE)) - {"--json"}  # an option of curl
    assert len(named) >= 8
    for option in named:
        assert option in help_text or option in serve, option


def test_routes_are_on_the_page(server: RunningServer) -> None:
    assert SERVER.exists()
    routes = server.ask("GET", "/nowhere").error.rpartition("valid are ")[2].split(", ")
    assert len(routes) == 7
    for route in routes:
        assert f"`{route}`" in PAGE, route
