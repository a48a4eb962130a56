// SPDX-License-Identifier: Apache-2.0
//
// IndexTable: its file, made and opened.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "store/shared_index/index_table.h"
#include "store/shared_index/index_table_layout.h"

namespace modcache::store {
namespace {

using index_table_layout::file_bytes;
using index_table_layout::kMostSlots;

constexpr char kMagic[8] = {'m', 'o', 'd', 'c', 'i', 'n', 'd', 'x'};
constexpr std::uint64_t kLeastSlots = 1 << 10;
constexpr std::uint64_t kLeastSegments = 1 << 10;
constexpr std::uint64_t kMostSegments = (1 << 24) - 16;

// The part of the file that never changes; the checksum is of all behind it.
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

// With zeros, not with a hole: a full disk must show now, and not kill whoever writes to the
// mapping.
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
  auto count = file.read_at(0, &header, sizeof header);
  if (!count.is_ok()) return count.status();
  if (count.value() != sizeof header || std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 ||
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

// Each entry of a database has a number of its own.
bool IndexTable::is_plausible(Sequence last_sequence) const {
  return size_.slots <= Size::for_entries(last_sequence, 0).slots;
}

Result<std::shared_ptr<IndexTable>> IndexTable::open(fs::FileSystem& file_system,
                                                     const std::string& path, const Owner& owner,
                                                     bool is_writable) {
  auto file = file_system.open(path, is_writable ? fs::OpenMode::kReadWrite : fs::OpenMode::kRead);
  if (!file.is_ok()) return file.status();
  auto header = read_header(*file.value(), owner);
  if (!header.is_ok()) return header.status();
  const Size size{header.value().slots, header.value().segments};
  auto info = file.value()->info();
  if (!info.is_ok()) return info.status();
  if (info.value().size_bytes < file_bytes(size)) {
    return Status::corruption("'" + path + "' was cut short");
  }
  auto mapping = file.value()->map(file_bytes(size), is_writable);
  if (!mapping.is_ok()) return mapping.status();
  return std::shared_ptr<IndexTable>(new IndexTable(
      std::move(file).value(), std::move(mapping).value(), owner, size, header.value().generation));
}

Result<std::shared_ptr<IndexTable>> IndexTable::create(fs::FileSystem& file_system,
                                                       const std::string& path, const Owner& owner,
                                                       Size size, bool is_building) {
  // A directory makes no way for a file; found out before a large one is written.
  auto stands_there = file_system.name_info(path);
  if (stands_there.is_ok() && stands_there.value().is_directory) {
    return fs::check_is_file(path, stands_there.value());
  }
  FixedHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
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
  // Another process may still have one open that was cut off here.
  MODCACHE_RETURN_IF_ERROR(file_system.remove(temporary));
  {
    auto file = file_system.open(temporary, fs::OpenMode::kCreateExclusive);
    if (!file.is_ok()) return file.status();
    const Status written =
        write_empty(*file.value(), header, is_building, kBuildingOffset, file_bytes(size));
    if (!written.is_ok()) {
      (void)file_system.remove(temporary);  // half a file takes room that others need
      return written;
    }
  }
  MODCACHE_RETURN_IF_ERROR(file_system.rename(temporary, path));
  return open(file_system, path, owner, true);
}

}  // namespace modcache::store
