// SPDX-License-Identifier: Apache-2.0
#include "store/control/boot.h"

namespace modcache::store {
namespace {

constexpr char kBootIdPath[] = "/proc/sys/kernel/random/boot_id";
constexpr std::size_t kBootIdSizeBytes = 36;

}  // namespace

Result<Digest128> boot_of_machine(fs::FileSystem& file_system) {
  MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(kBootIdPath, fs::OpenMode::kReadFollowing));
  char text[kBootIdSizeBytes];
  MODCACHE_ASSIGN_OR_RETURN(auto count, file->read_at(0, text, sizeof text));
  if (count != sizeof text) return Status::io_error("this machine's boot has no name");
  return xxh3_128({text, sizeof text});
}

std::uint64_t boot_number(fs::FileSystem& file_system) {
  auto boot = boot_of_machine(file_system);
  return boot.is_ok() ? boot.value().high | 1 : 0;
}

}  // namespace modcache::store
