// SPDX-License-Identifier: Apache-2.0
//
// The objects of one address: their paths, and the bytes of those that say where values are
// (csrc/FORMAT.md). What is decoded here comes from a server and is not trusted: kCorruption is
// what fails its checksum or a bound, kUnsupportedVersion what a newer modcache wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "base/status.h"

namespace modcache::backends {

inline constexpr std::size_t kMostNameBytes = 1024;
inline constexpr std::size_t kMostSegmentBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMostWriters = 10'000;
inline constexpr std::size_t kMostSegments = 8192;  // of one writer
inline constexpr std::size_t kMostHeadBytes = 32 + 12 * kMostSegments;
inline constexpr std::size_t kMostWritersBytes = 24 + 16 * kMostWriters;

enum class PlaceKind : std::uint8_t {
  kRemoved = 0,
  kPacked = 1,   // a part of a pack
  kWhole = 2,    // an object of its own
  kControl = 3,  // an object of its own that is read anew each time
};

// Where a value is. Of two places of one name the one with the later time counts.
struct Place {
  std::int64_t time_us = 0;
  std::uint64_t writer = 0;  // this, and the three below: of a packed value
  std::uint32_t pack = 0;
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
  PlaceKind kind = PlaceKind::kRemoved;

  friend bool operator==(const Place& a, const Place& b) {
    return a.time_us == b.time_us && a.writer == b.writer && a.pack == b.pack &&
           a.offset == b.offset && a.size == b.size && a.kind == b.kind;
  }
};

struct PlacedName {
  std::string name;
  Place place;
};

// The segments of a writer that one segment stands for: itself, or those it was merged from.
struct SegmentRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::uint32_t size_bytes = 0;
};

struct Head {
  std::uint64_t writer = 0;
  std::vector<SegmentRange> segments;
};

struct ListedWriter {
  std::uint64_t id = 0;
  std::int64_t announced_us = 0;
};

// --- Paths, below the server's URL ---

inline constexpr const char* kWritersPath = "/writers";
std::string head_path(std::uint64_t writer);
std::string segment_path(std::uint64_t writer, const SegmentRange& range);
std::string pack_path(std::uint64_t writer, std::uint32_t pack);
std::string whole_path(const Digest128& name);
std::string control_path(const Digest128& name);

// --- Bytes ---

// Sorts the names. Of one that is there twice, both places are kept.
std::string encode_segment(std::vector<PlacedName> names);
using VisitPlace = std::function<void(std::string_view name, const Place& place)>;
// All that was visited before a failure shows was well-formed.
Status decode_segment(std::string_view bytes, const VisitPlace& visit);

std::string encode_head(const Head& head);
// kCorruption, too, where the head is another writer's.
Result<Head> decode_head(std::string_view bytes, std::uint64_t writer);

std::string encode_writers(const std::vector<ListedWriter>& writers);
Result<std::vector<ListedWriter>> decode_writers(std::string_view bytes);

// A control value's object: a byte that says whether there is one, then the value.
std::string encode_control(std::string_view value);
std::string encode_removed_control();
// False: it was removed, or is none.
bool decode_control(std::string_view bytes, std::string_view& value);

}  // namespace modcache::backends
