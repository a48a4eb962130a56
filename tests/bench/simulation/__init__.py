# SPDX-License-Identifier: Apache-2.0
"""Many trainers with near tiers of their own, and the servers that they share, as a simulation.

`python -m simulation --help`; it needs what requirements.txt lists. `check` compares small cases
with modcache itself.
"""
