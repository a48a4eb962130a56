// SPDX-License-Identifier: Apache-2.0
#include "store/control/directory_mode.h"

#include <array>
#include <memory>

#include "store/control/control_page.h"
#include "store/control/versions.h"
#include "store/directory/directory.h"
#include "store/directory/directory_lock.h"
#include "store/entry/options.h"

namespace modcache::store {
namespace {

constexpr std::array<DirectoryMode, 3> kModes{DirectoryMode::kOff, DirectoryMode::kRead,
                                              DirectoryMode::kOn};

Status check_is_directory(fs::FileSystem& file_system, const std::string& path) {
  MODCACHE_ASSIGN_OR_RETURN(auto info, file_system.info(path));
  if (info.is_directory) return Status::ok();
  return Status::invalid_argument("'" + path + "' is a file; only a directory has a mode");
}

// Returns the page, after creating it where it is missing or damaged. REQUIRES: the directory's
// lock is held.
Result<std::unique_ptr<ControlPage>> page_of(const Directory& directory) {
  const std::string path = directory.control_path();
  auto page = ControlPage::open(directory.file_system(), path, ReadVia::kPread, true);
  if (!page.is_not_found() && page.status().code() != StatusCode::kCorruption) return page;
  // Starting at 1 is safe: whoever opens the database raises the sequence beyond its last one, and
  // beyond those that may be lost.
  MODCACHE_RETURN_IF_ERROR(ControlPage::create(directory.file_system(), path, 1));
  return ControlPage::open(directory.file_system(), path, ReadVia::kPread, true);
}

}  // namespace

std::string_view directory_mode_name(DirectoryMode mode) {
  switch (mode) {
    case DirectoryMode::kOff: return "off";
    case DirectoryMode::kRead: return "read";
    case DirectoryMode::kOn: return "on";
  }
  return "on";
}

Result<DirectoryMode> parse_directory_mode(std::string_view text) {
  for (const DirectoryMode mode : kModes) {
    if (directory_mode_name(mode) == text) return mode;
  }
  return Status::invalid_argument("the mode of a directory is '" + std::string(text) +
                                  "', but must be one of: off, read, on");
}

Result<DirectoryMode> directory_mode(fs::FileSystem& file_system, const std::string& directory) {
  MODCACHE_RETURN_IF_ERROR(check_is_directory(file_system, directory));
  const std::string path = Directory::at(file_system, directory).control_path();
  auto page = ControlPage::open(file_system, path, ReadVia::kPread, false);
  if (page.is_ok()) return page.value()->mode();
  if (page.status().code() == StatusCode::kCorruption) {
    return ControlPage::mode_in_remains(file_system, path);
  }
  if (page.is_not_found()) return DirectoryMode::kOn;
  return page.status();
}

Status set_directory_mode(fs::FileSystem& file_system, const std::string& directory,
                          DirectoryMode mode, std::int64_t patience_ms) {
  const Status found = check_is_directory(file_system, directory);
  if (found.is_not_found()) MODCACHE_RETURN_IF_ERROR(file_system.make_directories(directory));
  if (!found.is_ok() && !found.is_not_found()) return found;
  const Directory places = Directory::at(file_system, directory);
  MODCACHE_RETURN_IF_ERROR(check_versions(places));
  MODCACHE_ASSIGN_OR_RETURN(auto lock_file,
                            file_system.open(places.lock_path(), fs::OpenMode::kReadWriteCreate));
  MODCACHE_ASSIGN_OR_RETURN(auto lock, DirectoryLock::take(*lock_file, patience_ms));
  MODCACHE_ASSIGN_OR_RETURN(auto page, page_of(places));
  return page->set_mode(mode);
}

}  // namespace modcache::store
