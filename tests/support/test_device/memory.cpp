// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <system_error>

namespace test_device {
namespace {

[[noreturn]] void throw_errno(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

std::byte* mapped(int file, std::size_t size_bytes, int protection) {
  void* const address =
      ::mmap(nullptr, size_bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (address == MAP_FAILED) throw_errno("mmap");
  return static_cast<std::byte*>(address);
}

}  // namespace

Memory::Memory(std::size_t size_bytes) : size_bytes_(size_bytes), free_{{0, size_bytes}} {
  const int file = ::memfd_create("modcache-test-device", MFD_CLOEXEC);
  if (file < 0) throw_errno("memfd_create");
  if (::ftruncate(file, static_cast<off_t>(size_bytes)) != 0) throw_errno("ftruncate");
  shown_ = mapped(file, size_bytes, PROT_NONE);
  own_ = mapped(file, size_bytes, PROT_READ | PROT_WRITE);
  ::close(file);
}

std::byte* Memory::take(std::size_t size_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, room] = *range;
    if (room < size_bytes) continue;
    free_.erase(range);
    if (room > size_bytes) free_.emplace(offset + size_bytes, room - size_bytes);
    return shown_ + offset;
  }
  return nullptr;
}

void Memory::give_back(std::byte* shown, std::size_t size_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto offset = static_cast<std::size_t>(shown - shown_);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size_bytes) {
    size_bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size_bytes += before->second;
    }
  }
  free_[offset] = size_bytes;
  // The kernel may have the pages; the next owner finds zeros there.
  ::madvise(own_ + offset, size_bytes, MADV_REMOVE);
}

bool Memory::has(const void* shown) const {
  const auto* const address = static_cast<const std::byte*>(shown);
  return address >= shown_ && address < shown_ + size_bytes_;
}

std::byte* Memory::own(const void* shown) const {
  return own_ + (static_cast<const std::byte*>(shown) - shown_);
}

}  // namespace test_device
