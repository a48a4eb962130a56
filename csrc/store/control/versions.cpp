// SPDX-License-Identifier: Apache-2.0
#include "store/control/versions.h"

#include <cstdint>
#include <string>

#include "store/control/control_page.h"
#include "store/entry/options.h"
#include "store/index/database.h"
#include "store/index/index.h"
#include "store/index/wal_peek.h"
#include "store/segment/segment_reader.h"

namespace modcache::store {
namespace {

Status database_of_another_version(const Directory& directory, std::int64_t version) {
  return of_another_version(directory.database_path(), version, kUserVersion);
}

// Uses an immutable connection, which reads the file's first page and takes no lock. (Reading the
// file directly would be simpler, but closing it would drop the locks that SQLite holds on it for
// another Store of this process.)
Status check_database_version(const Directory& directory) {
  if (!directory.file_system().info(directory.database_path()).is_ok()) return Status::ok();
  auto database = Database::open(directory.file_system(), directory.database_path(),
                                 Database::Mode::kImmutable, 0);
  if (!database.is_ok()) return Status::ok();
  auto application_id = database.value()->query_number("PRAGMA application_id");
  auto version = database.value()->query_number("PRAGMA user_version");
  if (!application_id.is_ok() || application_id.value() != kApplicationId) return Status::ok();
  if (version.is_ok() && version.value() > 0 && version.value() != kUserVersion) {
    return database_of_another_version(directory, version.value());
  }
  const auto in_wal = peek_user_version_in_wal(directory.file_system(), directory.wal_path());
  if (in_wal && *in_wal > 0 && *in_wal != kUserVersion)
    return database_of_another_version(directory, *in_wal);
  return Status::ok();
}

}  // namespace

Status check_versions(const Directory& directory) {
  auto control =
      ControlPage::open(directory.file_system(), directory.control_path(), ReadVia::kPread, false);
  if (control.status().code() == StatusCode::kUnsupportedVersion) return control.status();
  MODCACHE_RETURN_IF_ERROR(check_database_version(directory));
  auto ids = directory.segments();
  if (!ids.is_ok()) return Status::ok();
  for (const std::uint64_t id : ids.value()) {
    auto reader = SegmentReader::open(directory, id, ReadVia::kPread);
    if (reader.status().code() == StatusCode::kUnsupportedVersion) {
      return Status::unsupported_version(
          "'" + directory.segment_path(id) + "': " + reader.status().message() +
          ". Nothing in this directory was changed. Choose another directory (option dir), or "
          "delete this one");
    }
  }
  return Status::ok();
}

}  // namespace modcache::store
