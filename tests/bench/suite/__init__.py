# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite: this cache, other caches and the machine's limits, measured in turn.

`./tests/bench/run --help` says how to start it, README.md in the folder above what is measured.
"""
