// SPDX-License-Identifier: Apache-2.0
#include "store/wal_peek.h"

#include <algorithm>

namespace modcache::store {
namespace {

// From SQLite's file format documentation: all integers of a log are big-endian.
constexpr std::size_t kWalHeaderSizeBytes = 32;
constexpr std::size_t kFrameHeaderSizeBytes = 24;
constexpr std::size_t kPageSizeOffset = 8;
constexpr std::size_t kSaltsOffset = 16;
constexpr std::size_t kFrameSaltsOffset = 8;
constexpr std::size_t kUserVersionOffset = 60;
constexpr std::uint32_t kWalMagic = 0x377f0682;  // the last bit tells the checksums' byte order
constexpr std::uint32_t kLeastPageSize = 512;
constexpr std::uint32_t kMostPageSize = 65536;

std::uint32_t number_at(const unsigned char* bytes) {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) |
         (std::uint32_t{bytes[2]} << 8) | std::uint32_t{bytes[3]};
}

}  // namespace

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
    // A frame of an earlier round of the log has other salts; so have all that follow it.
    if (!std::equal(header + kSaltsOffset, header + kSaltsOffset + 8, frame + kFrameSaltsOffset)) {
      return greatest;
    }
    if (number_at(frame) != 1) continue;
    const std::int64_t version = number_at(frame + kFrameHeaderSizeBytes + kUserVersionOffset);
    greatest = std::max(greatest.value_or(version), version);
  }
}

}  // namespace modcache::store
