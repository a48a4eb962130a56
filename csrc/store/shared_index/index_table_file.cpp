// SPDX-License-Identifier: Apache-2.0
//
// IndexTable: creating and opening its file.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "store/entry/entry_id.h"
#include "store/shared_index/index_table.h"
#include "store/shared_index/index_table_layout.h"

namespace modcache::store {
namespace {

using index_table_layout::file_bytes;
using index_table_layout::kMostSlots;

constexpr char kTableMagic[8] = {'m', 'o', 'd', 'c', 'i', 'n', 'd', 'x'};
constexpr std::uint64_t kLeastSlots = 1 << 10;
constexpr std::uint64_t kLeastSegments = 1 << 10;
constexpr std::uint64_t kMostSegments = (1 << 24) - 16;

// The part of the file that never changes; the checksum covers everything after it.
struct FixedHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t version_echo;
  std::uint64_t checksum;
  std::uint64_t generation;
  std::uint64_t boot[2];
  std::uint64_t database_inode;
  std::uint64_t epoch;
  std::uint64_t slots;
  std::uint64_t segments;
  std::uint64_t zeros[6];
};
static_assert(sizeof(FixedHeader) == 128);
constexpr std::size_t kChecksummedOffset = 24;

std::uint64_t checksum_of(const FixedHeader& header) {
  return xxh3_64(reinterpret_cast<const char*>(&header) + kChecksummedOffset,
                 sizeof header - kChecksummedOffset);
}

// Writes zeros instead of leaving a hole: a full disk must show now, and not kill a process that
// writes to the mapping.
Status write_empty(fs::File& file, const FixedHeader& header, bool is_building,
                   std::size_t building_offset, std::uint64_t size_bytes) {
  const std::string zeros(std::min<std::uint64_t>(size_bytes, 1 << 20), '\0');
  for (std::uint64_t done = 0; done < size_bytes; done += zeros.size()) {
    const std::size_t part = std::min<std::uint64_t>(zeros.size(), size_bytes - done);
    MODCACHE_RETURN_IF_ERROR(file.write_at(done, {{zeros.data(), part}}));
  }
  const std::uint64_t building = is_building ? 1 : 0;
  MODCACHE_RETURN_IF_ERROR(file.write_at(building_offset, {{&building, sizeof building}}));
  return file.write_at(0, {{&header, sizeof header}});
}

Result<FixedHeader> read_header(const fs::File& file, const IndexTable::Owner& owner) {
  const Status refused = Status::corruption("'" + file.path() + "' is no index of this directory");
  FixedHeader header{};
  MODCACHE_ASSIGN_OR_RETURN(auto count, file.read_at(0, &header, sizeof header));
  if (count != sizeof header || std::memcmp(header.magic, kTableMagic, sizeof kTableMagic) != 0 ||
      header.version != kIndexTableVersion || header.version_echo != ~kIndexTableVersion ||
      header.checksum != checksum_of(header) || header.slots == 0 || header.slots > kMostSlots ||
      header.segments > kMostSegments) {
    return refused;
  }
  const IndexTable::Owner found{
      {header.boot[0], header.boot[1]}, header.database_inode, header.epoch};
  return found == owner ? Result<FixedHeader>(header) : refused;
}

}  // namespace

IndexTable::Size IndexTable::Size::for_entries(std::uint64_t entries, std::uint64_t segments) {
  return {std::clamp(2 * std::min(entries, kMostSlots), kLeastSlots, kMostSlots),
          std::clamp(2 * std::min(segments, kMostSegments), kLeastSegments, kMostSegments)};
}

// Each entry of a database has its own sequence, so there are at most `last_sequence` entries.
bool IndexTable::is_plausible(Sequence last_sequence) const {
  return size_.slots <= Size::for_entries(last_sequence, 0).slots;
}

Result<std::shared_ptr<IndexTable>> IndexTable::open(fs::FileSystem& file_system,
                                                     const std::string& path, const Owner& owner,
                                                     bool is_writable) {
  MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(path, is_writable ? fs::OpenMode::kReadWrite
                                                                          : fs::OpenMode::kRead));
  MODCACHE_ASSIGN_OR_RETURN(auto header, read_header(*file, owner));
  const Size size{header.slots, header.segments};
  MODCACHE_ASSIGN_OR_RETURN(auto info, file->info());
  if (info.size_bytes < file_bytes(size)) {
    return Status::corruption("'" + path + "' was cut short");
  }
  MODCACHE_ASSIGN_OR_RETURN(auto mapping, file->map(file_bytes(size), is_writable));
  return std::shared_ptr<IndexTable>(
      new IndexTable(std::move(file), std::move(mapping), owner, size, header.generation));
}

Result<std::shared_ptr<IndexTable>> IndexTable::create(fs::FileSystem& file_system,
                                                       const std::string& path, const Owner& owner,
                                                       Size size, bool is_building) {
  // rename() cannot replace a directory by a file, so check that before writing a large one.
  auto stands_there = file_system.name_info(path);
  if (stands_there.is_ok() && stands_there.value().is_directory) {
    return fs::check_is_file(path, stands_there.value());
  }
  FixedHeader header{};
  std::memcpy(header.magic, kTableMagic, sizeof kTableMagic);
  header.version = kIndexTableVersion;
  header.version_echo = ~kIndexTableVersion;
  header.generation = random_number() | 1;
  header.boot[0] = owner.boot[0];
  header.boot[1] = owner.boot[1];
  header.database_inode = owner.database_inode;
  header.epoch = owner.epoch;
  header.slots = size.slots;
  header.segments = size.segments;
  header.checksum = checksum_of(header);
  const std::string temporary = path + ".new";
  // Removed and not reused, as another process that was interrupted here may still have it open.
  MODCACHE_RETURN_IF_ERROR(file_system.remove(temporary));
  {
    MODCACHE_ASSIGN_OR_RETURN(auto file,
                              file_system.open(temporary, fs::OpenMode::kCreateExclusive));
    const Status written =
        write_empty(*file, header, is_building, kBuildingOffset, file_bytes(size));
    if (!written.is_ok()) {
      (void)file_system.remove(temporary);  // half a file would take space that others need
      return written;
    }
  }
  MODCACHE_RETURN_IF_ERROR(file_system.rename(temporary, path));
  return open(file_system, path, owner, true);
}

}  // namespace modcache::store
