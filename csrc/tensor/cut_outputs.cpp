// SPDX-License-Identifier: Apache-2.0
#include "tensor/cut_outputs.h"

#include <atomic>
#include <cstdint>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace modcache::tensor {
namespace {

constexpr std::uint64_t kLargeBytes = 1 << 20;
constexpr std::uint64_t kLargeShare = 4;
// At this size, mapping the memory again costs no more than the runs that fill it.
constexpr std::uint64_t kTrimEveryBytes = 128 << 20;

void give_free_heap_back() {
#if defined(__GLIBC__)
  (void)malloc_trim(0);
#endif
}

}  // namespace

void note_cut_output(const at::Tensor& result) {
  static std::atomic<std::uint64_t> rests_bytes{0};
  if (!result.device().is_cpu() || !result.has_storage()) return;
  const std::uint64_t all_bytes = result.storage().nbytes();
  if (all_bytes < kLargeBytes || all_bytes < kLargeShare * result.nbytes()) return;
  const std::uint64_t before = rests_bytes.fetch_add(all_bytes, std::memory_order_relaxed);
  if (before + all_bytes < kTrimEveryBytes) return;
  rests_bytes.store(0, std::memory_order_relaxed);
  give_free_heap_back();
}

}  // namespace modcache::tensor
