// SPDX-License-Identifier: Apache-2.0
#include "store/directory.h"

#include <algorithm>
#include <utility>

namespace modcache::store {
namespace {

constexpr char kDigits[] = "0123456789abcdef";
constexpr char kSuffix[] = ".seg";
constexpr std::size_t kNameDigits = 16;

}  // namespace

std::string segment_name(std::uint64_t id) {
  std::string name(kNameDigits, '0');
  for (std::size_t i = kNameDigits; i-- > 0; id >>= 4) name[i] = kDigits[id & 15];
  return name;
}

std::optional<std::uint64_t> parse_segment_name(const std::string& name) {
  if (name.size() != kNameDigits) return std::nullopt;
  std::uint64_t id = 0;
  for (const char digit : name) {
    const std::size_t value = std::string_view(kDigits).find(digit);
    if (value == std::string_view::npos) return std::nullopt;
    id = (id << 4) | value;
  }
  return id;
}

Directory::Directory(fs::FileSystem& file_system, std::string path)
    : file_system_(file_system), path_(std::move(path)) {}

std::string Directory::segment_path(std::uint64_t id) const {
  return segments_path() + "/" + segment_name(id) + kSuffix;
}

Result<std::vector<std::uint64_t>> Directory::segments() const {
  auto names = file_system_.list(segments_path());
  if (names.is_not_found()) return std::vector<std::uint64_t>{};
  if (!names.is_ok()) return names.status();
  std::vector<std::uint64_t> ids;
  for (const std::string& name : names.value()) {
    if (name.size() != kNameDigits + std::string_view(kSuffix).size()) continue;
    if (name.compare(kNameDigits, std::string::npos, kSuffix) != 0) continue;
    if (const auto id = parse_segment_name(name.substr(0, kNameDigits))) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

Result<std::uint64_t> Directory::size_bytes() const {
  std::vector<std::string> paths = {database_path(), wal_path(), shared_memory_path(),
                                    control_path()};
  auto ids = segments();
  if (!ids.is_ok()) return ids.status();
  for (const std::uint64_t id : ids.value()) paths.push_back(segment_path(id));
  std::uint64_t total = 0;
  for (const std::string& path : paths) {
    auto info = file_system_.info(path);
    // What another process removed meanwhile takes no room.
    if (info.is_not_found()) continue;
    if (!info.is_ok()) return info.status();
    total += info.value().size_bytes;
  }
  return total;
}

}  // namespace modcache::store
