// SPDX-License-Identifier: Apache-2.0
#include "store/directory/directory_files.h"

#include <utility>

namespace modcache::store {
namespace {

using Use = ForeignFile::Use;

constexpr std::uint32_t kWrittenByAll = 0002;

class Look {
 public:
  explicit Look(const Directory& directory)
      : directory_(directory), file_system_(directory.file_system()) {}

  DirectoryFiles run() {
    const auto folder = file_system_.info(directory_.path());
    found_.is_own = !folder.is_ok() || folder.value().is_own();
    const auto named = file_system_.name_info(directory_.path());
    found_.is_written_by_all = named.is_ok() && (named.value().permissions & kWrittenByAll) != 0;
    for (const std::string& path :
         {directory_.control_path(), directory_.lock_path(), directory_.database_path(),
          directory_.wal_path(), directory_.shared_memory_path()}) {
      look(path, Use::kNeeded, Use::kWritten);
    }
    // A journal exists only while a database is made, so with a stranger's there is nothing to read
    // on from.
    look(directory_.journal_path(), Use::kNeeded, Use::kNeeded);
    look(directory_.index_map_path(), Use::kSpared, Use::kRead);
    look(directory_.policy_state_path(), Use::kSpared, Use::kRead);
    if (is_folder(directory_.segments_path(), Use::kNeeded)) look_at_segments();
    for (const std::string& path : {directory_.notes_path(), directory_.counters_path()}) {
      if (is_folder(path, Use::kSpared)) look_at_all_in(path);
    }
    return std::move(found_);
  }

 private:
  // `no_file` is the use when it is not a regular file, `not_own` when it is not this user's alone.
  // A file that is missing or cannot be inspected is left to whoever opens it.
  void look(const std::string& path, Use no_file, Use not_own) {
    const auto info = file_system_.name_info(path);
    if (!info.is_ok()) return;
    const Status kind = fs::check_is_file(path, info.value());
    if (!kind.is_ok()) return add(path, no_file, kind);
    const Status own = fs::check_is_own_file(path, info.value());
    if (!own.is_ok()) return add(path, not_own, own);
  }

  bool is_folder(const std::string& path, Use use) {
    const auto info = file_system_.name_info(path);
    if (!info.is_ok() || info.value().is_directory) return info.is_ok();
    add(path, use,
        Status::foreign("'" + path + "' is a " + info.value().kind + ", not a directory"));
    return false;
  }

  // A segment that is not a file only costs its entries. One that is also a stranger's must not be
  // written, so nothing can be removed from it.
  void look_at_segments() {
    const auto ids = directory_.segments();
    if (!ids.is_ok()) return;
    for (const std::uint64_t id : ids.value()) {
      look(directory_.segment_path(id), Use::kSpared, Use::kWritten);
    }
  }

  void look_at_all_in(const std::string& folder) {
    const auto names = file_system_.list(folder);
    if (!names.is_ok()) return;
    for (const std::string& name : names.value()) {
      look(folder + '/' + name, Use::kSpared, Use::kRead);
    }
  }

  void add(const std::string& path, Use use, Status status) {
    found_.foreign.push_back({use, path.substr(directory_.path().size() + 1), std::move(status)});
  }

  const Directory& directory_;
  fs::FileSystem& file_system_;
  DirectoryFiles found_;
};

}  // namespace

Status DirectoryFiles::first(Use use) const {
  for (const ForeignFile& file : foreign) {
    if (file.use == use) return file.status;
  }
  return Status::ok();
}

DirectoryFiles look_at_files(const Directory& directory) { return Look(directory).run(); }

}  // namespace modcache::store
