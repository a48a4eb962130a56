# SPDX-License-Identifier: Apache-2.0
# Defines the imported target Zstd::Zstd.
include(PreferStatic)
modcache_prefer_static(Zstd Zstd::Zstd zstd.h zstd)
