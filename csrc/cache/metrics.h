// SPDX-License-Identifier: Apache-2.0
//
// Writes what this process counted as the text that Prometheus reads. There are counters and
// histograms alone: a rate is for whoever reads them to compute, and a gauge would show what was
// true at some other time.
#pragma once

#include <string>

#include "cache/stats.h"

namespace modcache::cache {

// In Prometheus' text format 0.0.4. Numbers only grow while the process lives, whatever is reset.
std::string metrics_text(const Stats& stats);

}  // namespace modcache::cache
