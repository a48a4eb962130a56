// SPDX-License-Identifier: Apache-2.0
#include "store/directory/directory.h"

#include <algorithm>
#include <utility>

namespace modcache::store {
namespace {

constexpr char kDigits[] = "0123456789abcdef";
constexpr char kSuffix[] = ".seg";
constexpr char kRetiredSuffix[] = ".gone";
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

std::string Directory::retired_path(std::uint64_t id) const {
  return segments_path() + "/" + segment_name(id) + kRetiredSuffix;
}

Result<std::vector<std::uint64_t>> Directory::segments() const { return segments_with(kSuffix); }

Result<std::vector<std::uint64_t>> Directory::retired_segments() const {
  return segments_with(kRetiredSuffix);
}

Result<std::vector<std::uint64_t>> Directory::segments_with(std::string_view suffix) const {
  auto names = file_system_.list(segments_path());
  if (names.is_not_found()) return std::vector<std::uint64_t>{};
  if (!names.is_ok()) return names.status();
  std::vector<std::uint64_t> ids;
  for (const std::string& name : names.value()) {
    if (name.size() != kNameDigits + suffix.size()) continue;
    if (name.compare(kNameDigits, std::string::npos, suffix) != 0) continue;
    if (const auto id = parse_segment_name(name.substr(0, kNameDigits))) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

Result<std::uint64_t> Directory::folder_bytes(const std::string& path) const {
  auto names = file_system_.list(path);
  if (names.is_not_found()) return std::uint64_t{0};
  if (!names.is_ok()) return names.status();
  std::uint64_t total = 0;
  for (const std::string& name : names.value()) {
    auto info = file_system_.name_info(path + "/" + name);
    // Another process removed it meanwhile, so it takes no space.
    if (info.is_not_found()) continue;
    if (!info.is_ok()) return info.status();
    if (!info.value().is_directory) total += info.value().size_bytes;
  }
  return total;
}

Result<std::uint64_t> Directory::size_bytes() const {
  std::uint64_t total = 0;
  for (const std::string& path : {path_, segments_path(), notes_path(), counters_path()}) {
    MODCACHE_ASSIGN_OR_RETURN(auto size_bytes, folder_bytes(path));
    total += size_bytes;
  }
  return total;
}

Status of_another_version(const std::string& file, std::int64_t version, std::int64_t ours) {
  return Status::unsupported_version(
      "'" + file + "' has format version " + std::to_string(version) +
      ", but this modcache reads " + "only version " + std::to_string(ours) + ": " +
      (version < ours ? "an older" : "a newer") +
      " modcache wrote this directory, and nothing in it was changed. Choose another directory "
      "(option dir), or delete this one");
}

}  // namespace modcache::store
