// SPDX-License-Identifier: Apache-2.0
//
// Reading what writers of an address, in all processes, have written down: the list of writers, the
// head of each, and the segments that heads name. A bad object is left out, with a line in the log.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/objects/http_client.h"
#include "backends/objects/layout.h"
#include "backends/objects/object_index.h"
#include "base/result.h"
#include "base/status.h"

namespace modcache::backends {

struct WritersList {
  std::vector<ListedWriter> writers;
  bool is_there = false;
  std::string etag;  // of what is there, where the server gives one
};

// The list as it is now. One that is not there, or damaged, has no writers.
Result<WritersList> read_writers(HttpClient& client);

struct SegmentOfWriter {
  std::uint64_t writer = 0;
  SegmentRange range;
};

// Reads heads, and calls `visit` for each that is there. `checksum` tells a head from its others.
using VisitHead = std::function<void(const Head& head, std::uint64_t checksum)>;
Status read_heads(HttpClient& client, const std::vector<std::uint64_t>& writers,
                  const VisitHead& visit);

// Reads segments, a bounded number of bytes at a time, and calls `visit` for each that is there,
// until it returns false.
using VisitSegment = std::function<bool(const SegmentOfWriter& segment, const std::string& bytes)>;
Status read_segments(HttpClient& client, const std::vector<SegmentOfWriter>& segments,
                     const VisitSegment& visit);

// Brings the index up to date. A look that takes more than a few time-outs ends there; the next one
// goes on. Returns the list of writers that it found.
Result<WritersList> look_for_news(HttpClient& client, ObjectIndex& index);

// Calls `visit` for each name in all segments that begins with `prefix`, also of values that are
// not there any more, until it returns false. A name comes as often as it was written.
using VisitName = std::function<bool(std::string_view name)>;
Status visit_names(HttpClient& client, std::string_view prefix, const VisitName& visit);

// One line for an object that is damaged.
void log_damaged(const HttpClient& client, const std::string& path, const Status& why);

}  // namespace modcache::backends
