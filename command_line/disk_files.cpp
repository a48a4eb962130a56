// SPDX-License-Identifier: Apache-2.0
#include "command_line/disk_files.h"

#include <algorithm>
#include <string_view>

#include "fs/posix_file_system.h"
#include "store/directory/directory.h"

namespace modcache::command_line {
namespace {

using Kind = DiskFile::Kind;

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

Kind kind_of(const std::string& name) {
  if (name == "index.sqlite" || name == "index.sqlite-wal" || name == "index.sqlite-shm") {
    return Kind::kDatabase;
  }
  if (name == "index.map" || name == "policy.state") return Kind::kSharedIndex;
  if (name == "control") return Kind::kControl;
  if (name == "lock") return Kind::kLock;
  return Kind::kUnknown;
}

Kind kind_of_segment(const std::string& name) {
  if (ends_with(name, ".gone")) return Kind::kRetiredSegment;
  const bool is_segment = ends_with(name, ".seg") &&
                          store::parse_segment_name(name.substr(0, name.size() - 4)).has_value();
  return is_segment ? Kind::kSegment : Kind::kUnknown;
}

Kind kind_of_note(const std::string&) { return Kind::kNote; }
Kind kind_of_counters(const std::string&) { return Kind::kCounters; }

bool is_our_folder(const std::string& name) {
  return name == "segments" || name == "notes" || name == "counters";
}

Status add(const std::string& directory, const std::string& folder,
           Kind (*kind)(const std::string&), std::vector<DiskFile>& files) {
  fs::FileSystem& file_system = fs::posix_file_system();
  auto names = file_system.list(directory + '/' + folder);
  // When something else stands in the folder's place, its files are not ours; doctor and verify
  // report it.
  if (names.is_not_found() || names.status().code() == StatusCode::kForeign) return Status::ok();
  if (!names.is_ok()) return names.status();
  std::sort(names.value().begin(), names.value().end());
  for (const std::string& name : names.value()) {
    const std::string path = directory + '/' + folder + name;
    const auto info = file_system.name_info(path);
    if (!info.is_ok()) continue;
    if (info.value().is_directory && folder.empty() && is_our_folder(name)) continue;
    files.push_back({ends_with(name, ".new") ? Kind::kInTheMaking : kind(name), folder + name,
                     static_cast<std::int64_t>(info.value().size_bytes),
                     info.value().modified_ns / 1000, file_system.is_writable(path)});
  }
  return Status::ok();
}

}  // namespace

Result<DiskFiles> DiskFiles::list(const std::string& directory) {
  DiskFiles found;
  fs::FileSystem& file_system = fs::posix_file_system();
  const auto info = file_system.info(directory);
  if (info.is_ok() && !info.value().is_directory) {
    found.files_.push_back({Kind::kSegment, "", static_cast<std::int64_t>(info.value().size_bytes),
                            info.value().modified_ns / 1000, file_system.is_writable(directory)});
    return found;
  }
  const std::string root = file_system.resolve(directory);
  MODCACHE_RETURN_IF_ERROR(add(root, "", kind_of, found.files_));
  MODCACHE_RETURN_IF_ERROR(add(root, "segments/", kind_of_segment, found.files_));
  MODCACHE_RETURN_IF_ERROR(add(root, "notes/", kind_of_note, found.files_));
  MODCACHE_RETURN_IF_ERROR(add(root, "counters/", kind_of_counters, found.files_));
  return found;
}

DiskFiles::Total DiskFiles::total(Kind kind) const {
  Total total;
  for (const DiskFile& file : files_) {
    if (file.kind != kind) continue;
    ++total.count;
    total.size_bytes += file.size_bytes;
  }
  return total;
}

std::int64_t DiskFiles::size_bytes() const {
  std::int64_t size = 0;
  for (const DiskFile& file : files_) size += file.size_bytes;
  return size;
}

}  // namespace modcache::command_line
