// SPDX-License-Identifier: Apache-2.0
#include "store/index/wal_peek.h"

#include <algorithm>

namespace modcache::store {
namespace {

// From SQLite's file format documentation: all integers of a log are big-endian.
constexpr std::size_t kWalHeaderSizeBytes = 32;
constexpr std::size_t kFrameHeaderSizeBytes = 24;
constexpr std::size_t kPageSizeOffset = 8;
constexpr std::size_t kSaltsOffset = 16;
constexpr std::size_t kChecksumOffset = 24;
constexpr std::size_t kFrameSaltsOffset = 8;
constexpr std::size_t kUserVersionOffset = 60;
constexpr std::uint32_t kWalMagic = 0x377f0682;  // the last bit tells the checksums' byte order
constexpr std::uint32_t kLeastPageSize = 512;
constexpr std::uint32_t kMostPageSize = 65536;

std::uint32_t number_at(const unsigned char* bytes) {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) |
         (std::uint32_t{bytes[2]} << 8) | std::uint32_t{bytes[3]};
}

// Checks the header's checksum, which covers everything in it but itself.
bool is_header_whole(const unsigned char* header) {
  const bool is_big_endian = (number_at(header) & 1) != 0;
  const auto word_at = [&](std::size_t offset) {
    const std::uint32_t word = number_at(header + offset);
    return is_big_endian ? word : __builtin_bswap32(word);
  };
  std::uint32_t first = 0;
  std::uint32_t second = 0;
  for (std::size_t offset = 0; offset < kChecksumOffset; offset += 8) {
    first += word_at(offset) + second;
    second += word_at(offset + 4) + first;
  }
  return (number_at(header) & ~1U) == kWalMagic && number_at(header + kChecksumOffset) == first &&
         number_at(header + kChecksumOffset + 4) == second;
}

LogLook look_once(const Directory& directory) {
  fs::FileSystem& file_system = directory.file_system();
  auto info = file_system.info(directory.wal_path());
  if (!info.is_ok()) return {};
  LogLook look;
  look.size_bytes = info.value().size_bytes;
  look.is_read = look.size_bytes > 0 && is_wal_read(file_system, directory.wal_path());
  look.is_live = (look.size_bytes == 0 || look.is_read) &&
                 file_system.info(directory.shared_memory_path()).is_ok();
  return look;
}

}  // namespace

bool is_wal_read(fs::FileSystem& file_system, const std::string& path) {
  auto file = file_system.open(path, fs::OpenMode::kRead);
  if (!file.is_ok()) return false;
  unsigned char beginning[kWalHeaderSizeBytes + 1];
  auto count = file.value()->read_at(0, beginning, sizeof beginning);
  return count.is_ok() && count.value() == sizeof beginning && is_header_whole(beginning);
}

LogLook look_at_log(const Directory& directory, std::int64_t patience_ms) {
  const LogLook first = look_once(directory);
  if (first.size_bytes == 0 || first.is_read) return first;
  auto lock_file = directory.file_system().open(directory.lock_path(), fs::OpenMode::kRead);
  if (!lock_file.is_ok()) return first;                    // then nobody writes, either
  (void)fs::lock_within(*lock_file.value(), patience_ms);  // until the file is closed
  return look_once(directory);
}

std::optional<std::int64_t> peek_user_version_in_wal(fs::FileSystem& file_system,
                                                     const std::string& path) {
  auto file = file_system.open(path, fs::OpenMode::kRead);
  if (!file.is_ok()) return std::nullopt;
  unsigned char header[kWalHeaderSizeBytes];
  auto count = file.value()->read_at(0, header, sizeof header);
  if (!count.is_ok() || count.value() != sizeof header) return std::nullopt;
  const std::uint32_t page_size = number_at(header + kPageSizeOffset);
  if ((number_at(header) & ~1U) != kWalMagic || page_size < kLeastPageSize ||
      page_size > kMostPageSize) {
    return std::nullopt;
  }
  std::optional<std::int64_t> greatest;
  unsigned char frame[kFrameHeaderSizeBytes + kUserVersionOffset + 4];
  for (std::uint64_t offset = kWalHeaderSizeBytes;; offset += kFrameHeaderSizeBytes + page_size) {
    count = file.value()->read_at(offset, frame, sizeof frame);
    if (!count.is_ok() || count.value() != sizeof frame) return greatest;
    // A frame of an earlier round of the log has other salts, and so have all that follow it.
    if (!std::equal(header + kSaltsOffset, header + kSaltsOffset + 8, frame + kFrameSaltsOffset)) {
      return greatest;
    }
    if (number_at(frame) != 1) continue;
    const std::int64_t version = number_at(frame + kFrameHeaderSizeBytes + kUserVersionOffset);
    greatest = std::max(greatest.value_or(version), version);
  }
}

}  // namespace modcache::store
