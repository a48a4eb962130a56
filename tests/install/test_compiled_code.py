# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of code whose effect no result shows."""

from __future__ import annotations

import re
import subprocess

import pytest
from installed import BUILD


@pytest.fixture(scope="module")
def functions_that_prefetch() -> set[str]:
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn"]
    listing = subprocess.run(
        [*command, str(BUILD / "libmodcache.so")], capture_output=True, text=True, check=True
    ).stdout
    found = set()
    function = ""
    for line in listing.splitlines():
        if heading := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function = heading[1]
        elif re.search(r"\t(prefetch[a-z]|prfm)", line):
            found.add(function)
    return found


# GCC 12 took a function that only prefetches for one without effect, and left out all calls of it.
@pytest.mark.parametrize(
    "what",
    [
        "tensor::InputSampler::SampledTensor::add_row",
        "tensor::RowsOutput::",
        "cache::MemoryStore::get_some",
        "store::BatchLookup::expect_stored",
        "store::BatchLookup::take_known",
        "store::SharedIndex::find_all",
        "store::Lookup::current_sequences",
    ],
)
def test_a_batch_fetches_what_it_reads_next(functions_that_prefetch: set[str], what: str) -> None:
    assert [name for name in functions_that_prefetch if what in name]
