// SPDX-License-Identifier: Apache-2.0
#include "module/watch/rotating_read.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

// Scattered elements are slower to read than dense memory by about this factor.
constexpr std::int64_t kCostOfGaps = 8;

}  // namespace

std::int64_t RotatingRead::Chunk::cost() const {
  return gaps < 0 ? size_bytes : size_bytes * kCostOfGaps;
}

void RotatingRead::push(Chunk chunk) {
  chunk.digest = digest_of(chunk);
  total_cost_ += chunk.cost();
  chunks_.push_back(chunk);
}

void RotatingRead::add_dense(std::size_t index, const std::byte* begin, std::size_t size_bytes) {
  push({begin, 0, static_cast<std::uint32_t>(size_bytes), static_cast<std::uint32_t>(index)});
}

void RotatingRead::add(std::size_t index, const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.numel() == 0) return;
  const std::byte* const begin = tensor::const_bytes(tensor);
  if (begin == nullptr) return;
  if (tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) {
    for (std::size_t at = 0; at < tensor.nbytes(); at += kChunkBytes) {
      add_dense(index, begin + at, std::min(kChunkBytes, tensor.nbytes() - at));
    }
    return;
  }
  Gaps gaps;
  gaps.element_bytes = static_cast<std::size_t>(tensor.element_size());
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0) continue;  // an expanded dimension is in memory once
    gaps.sizes.push_back(tensor.size(dim));
    gaps.strides.push_back(tensor.stride(dim) * tensor.element_size());
  }
  add_with_gaps(index, begin, std::move(gaps));
}

// Halves the piece until it fits into a chunk.
void RotatingRead::add_with_gaps(std::size_t index, const std::byte* begin, Gaps gaps) {
  std::size_t size_bytes = gaps.element_bytes;
  for (const std::int64_t size : gaps.sizes) size_bytes *= static_cast<std::size_t>(size);
  if (size_bytes > kChunkBytes) {
    const auto largest = std::max_element(gaps.sizes.begin(), gaps.sizes.end());
    const std::int64_t size = *largest;
    const std::int64_t stride =
        gaps.strides[static_cast<std::size_t>(largest - gaps.sizes.begin())];
    *largest = size / 2;
    add_with_gaps(index, begin, gaps);
    *largest = size - size / 2;
    add_with_gaps(index, begin + size / 2 * stride, std::move(gaps));
    return;
  }
  gaps_.push_back(std::move(gaps));
  push({begin, 0, static_cast<std::uint32_t>(size_bytes), static_cast<std::uint32_t>(index),
        static_cast<std::int32_t>(gaps_.size() - 1)});
}

void RotatingRead::add_from(const RotatingRead& other, std::size_t index) {
  auto chunk = std::lower_bound(other.chunks_.begin(), other.chunks_.end(), index,
                                [](const Chunk& one, std::size_t i) { return one.tensor < i; });
  for (; chunk != other.chunks_.end() && chunk->tensor == index; ++chunk) {
    chunks_.push_back(*chunk);
    total_cost_ += chunk->cost();
    if (chunk->gaps < 0) continue;
    gaps_.push_back(other.gaps_[static_cast<std::size_t>(chunk->gaps)]);
    chunks_.back().gaps = static_cast<std::int32_t>(gaps_.size() - 1);
  }
}

std::optional<std::size_t> RotatingRead::find_change(Clock::time_point now,
                                                     Clock::duration run) const {
  if (chunks_.empty()) return std::nullopt;
  if (has_changed()) return static_cast<std::size_t>(changed_.load(std::memory_order_relaxed));
  std::int64_t credit = 0;
  Clock::duration last = last_read_.load(std::memory_order_relaxed);
  // When several threads come at the same time, one of them reads.
  if (now.time_since_epoch() - last >= kChunkTime &&
      last_read_.compare_exchange_strong(last, now.time_since_epoch(), std::memory_order_relaxed)) {
    credit = kChunkBytes;
  }
  // The gap between the calls before and after the run pays for the first kChunkTime of it.
  const auto paid_by_run = std::chrono::duration_cast<std::chrono::microseconds>(run - kChunkTime);
  credit += std::max<std::int64_t>(0, paid_by_run.count() * kBytesPerSecond / 1'000'000);
  if (credit == 0) return std::nullopt;
  std::int64_t owed = std::min(owed_.exchange(0, std::memory_order_relaxed) + credit, total_cost_);
  while (owed > 0) {
    const Chunk& chunk = chunks_[next_.fetch_add(1, std::memory_order_relaxed) % chunks_.size()];
    if (digest_of(chunk) != chunk.digest) {
      changed_.store(chunk.tensor, std::memory_order_relaxed);
      return chunk.tensor;
    }
    owed -= chunk.cost();
  }
  owed_.fetch_add(owed, std::memory_order_relaxed);
  return std::nullopt;
}

std::uint64_t RotatingRead::digest_of(const Chunk& chunk) const {
  if (chunk.gaps < 0) return xxh3_64(chunk.begin, chunk.size_bytes);
  std::array<std::byte, kChunkBytes> bytes;
  gather(gaps_[static_cast<std::size_t>(chunk.gaps)], chunk.begin, 0, bytes.data());
  return xxh3_64(bytes.data(), chunk.size_bytes);
}

std::byte* RotatingRead::gather(const Gaps& gaps, const std::byte* from, std::size_t dim,
                                std::byte* to) {
  if (dim == gaps.sizes.size()) {
    std::memcpy(to, from, gaps.element_bytes);
    return to + gaps.element_bytes;
  }
  for (std::int64_t i = 0; i < gaps.sizes[dim]; ++i, from += gaps.strides[dim]) {
    to = gather(gaps, from, dim + 1, to);
  }
  return to;
}

}  // namespace modcache::module
