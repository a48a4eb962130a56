# SPDX-License-Identifier: Apache-2.0
# Defines the imported target Sodium::Sodium.
include(PreferStatic)
modcache_prefer_static(Sodium Sodium::Sodium sodium.h sodium)
