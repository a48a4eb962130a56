// SPDX-License-Identifier: Apache-2.0
//
// The memory of one test device: pages that are mapped twice. Tensors have addresses of the first
// mapping, which nobody may touch; a read or write there ends the process with SIGSEGV. The
// device's own work uses the second one.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace test_device {

class Memory {
 public:
  explicit Memory(std::size_t size_bytes);  // throws std::system_error
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Returns an address that nobody may touch, aligned to kAlignment; null when there is no room.
  // REQUIRES: `size_bytes` is a multiple of kAlignment, and not 0.
  std::byte* take(std::size_t size_bytes);
  void give_back(std::byte* shown, std::size_t size_bytes);

  bool has(const void* shown) const;
  // Returns where the device itself finds the byte. REQUIRES: has(shown).
  std::byte* own(const void* shown) const;

  static constexpr std::size_t kAlignment = 4096;  // a page, so that the kernel can have it back

 private:
  std::size_t size_bytes_;
  std::byte* shown_ = nullptr;
  std::byte* own_ = nullptr;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  // sizes by their offsets; no two touch
};

}  // namespace test_device
