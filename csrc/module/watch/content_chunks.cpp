// SPDX-License-Identifier: Apache-2.0
#include "module/watch/content_chunks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"
#include "base/own_memory.h"
#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

// How much slower scattered elements are to read than dense ones.
constexpr std::size_t kCostOfGaps = 8;

}  // namespace

void ContentChunks::push(Chunk chunk, std::size_t cost) {
  chunk.begin = size_bytes_;
  chunk.cost = static_cast<std::uint32_t>(cost);
  chunks_.push_back(chunk);
  size_bytes_ += cost;
}

void ContentChunks::add_dense(std::size_t index, const std::byte* place, std::size_t size_bytes) {
  Chunk chunk;
  chunk.place = place;
  chunk.size_bytes = static_cast<std::uint32_t>(size_bytes);
  chunk.tensor = static_cast<std::uint32_t>(index);
  chunk.digest = digest_of(chunk);
  push(chunk, size_bytes);
}

void ContentChunks::add(std::size_t index, const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.numel() == 0) return;
  const std::byte* const place = tensor::const_bytes(tensor);
  if (place == nullptr) return;
  if (!tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) {
    add_strided(index, tensor);
    return;
  }
  for (std::size_t at = 0; at < tensor.nbytes(); at += kChunkBytes) {
    add_dense(index, place + at, std::min(kChunkBytes, tensor.nbytes() - at));
  }
}

void ContentChunks::add_strided(std::size_t index, const at::Tensor& tensor) {
  Strided strided;
  strided.place = tensor::const_bytes(tensor);
  strided.element_bytes = static_cast<std::size_t>(tensor.element_size());
  std::size_t elements = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0) continue;  // an expanded dimension has one copy in memory
    strided.sizes.push_back(tensor.size(i));
    strided.strides.push_back(tensor.stride(i));
    elements *= static_cast<std::size_t>(tensor.size(i));
  }
  if (strided.sizes.empty()) {
    strided.sizes.push_back(1);
    strided.strides.push_back(1);
  }
  const std::size_t per_chunk = kChunkBytes / strided.element_bytes;
  strided_.push_back(std::move(strided));
  for (std::size_t first = 0; first < elements; first += per_chunk) {
    const std::size_t count = std::min(per_chunk, elements - first);
    Chunk chunk;
    chunk.size_bytes = static_cast<std::uint32_t>(count * strided_.back().element_bytes);
    chunk.tensor = static_cast<std::uint32_t>(index);
    chunk.strided = static_cast<std::uint32_t>(strided_.size() - 1);
    chunk.first_element = first;
    chunk.digest = digest_of(chunk);
    push(chunk, chunk.size_bytes * kCostOfGaps);
  }
}

void ContentChunks::add_from(const ContentChunks& other, std::size_t index) {
  auto chunk = std::lower_bound(other.chunks_.begin(), other.chunks_.end(), index,
                                [](const Chunk& one, std::size_t i) { return one.tensor < i; });
  if (chunk == other.chunks_.end() || chunk->tensor != index) return;
  const std::size_t strided = strided_.size();
  if (chunk->place == nullptr) strided_.push_back(other.strided_[chunk->strided]);
  for (; chunk != other.chunks_.end() && chunk->tensor == index; ++chunk) {
    Chunk same = *chunk;
    same.strided = static_cast<std::uint32_t>(strided);
    push(same, chunk->cost);
  }
}

std::size_t ContentChunks::chunk_at(std::size_t byte) const {
  const auto after =
      std::upper_bound(chunks_.begin(), chunks_.end(), byte,
                       [](std::size_t at, const Chunk& one) { return at < one.begin; });
  return static_cast<std::size_t>(after - chunks_.begin()) - 1;
}

// Copies row by row along the last dimension.
void ContentChunks::gather(const Strided& from, std::size_t first, std::size_t count,
                           std::byte* to) {
  const auto row_elements = static_cast<std::size_t>(from.sizes.back());
  const std::size_t size = from.element_bytes;
  const std::size_t step = static_cast<std::size_t>(from.strides.back()) * size;
  while (count > 0) {
    const std::size_t in_row = first % row_elements;
    std::size_t row = first / row_elements;
    std::size_t offset = 0;
    for (std::size_t i = from.sizes.size() - 1; i-- > 0;) {
      const auto extent = static_cast<std::size_t>(from.sizes[i]);
      offset += row % extent * static_cast<std::size_t>(from.strides[i]);
      row /= extent;
    }
    const std::byte* at = from.place + offset * size + in_row * step;
    const std::size_t taken = std::min(count, row_elements - in_row);
    if (step == size) {
      std::memcpy(to, at, taken * size);
      to += taken * size;
    } else {
      for (std::size_t i = 0; i < taken; ++i, at += step, to += size) std::memcpy(to, at, size);
    }
    first += taken;
    count -= taken;
  }
}

std::uint64_t ContentChunks::digest_of(const Chunk& chunk) const {
  if (chunk.place != nullptr) return xxh3_64(chunk.place, chunk.size_bytes);
  std::array<std::byte, kChunkBytes> bytes;
  const Strided& from = strided_[chunk.strided];
  gather(from, chunk.first_element, chunk.size_bytes / from.element_bytes, bytes.data());
  return xxh3_64(bytes.data(), chunk.size_bytes);
}

bool ContentChunks::matches(std::size_t chunk) const {
  return digest_of(chunks_[chunk]) == chunks_[chunk].digest;
}

bool ContentChunks::all_match() const {
  return std::all_of(chunks_.begin(), chunks_.end(),
                     [this](const Chunk& chunk) { return digest_of(chunk) == chunk.digest; });
}

bool ContentChunks::all_match_apart() const {
  std::array<std::byte, kChunkBytes> bytes;
  return std::all_of(chunks_.begin(), chunks_.end(), [&bytes](const Chunk& chunk) {
    return copy_own_memory(chunk.place, chunk.size_bytes, bytes.data()) &&
           xxh3_64(bytes.data(), chunk.size_bytes) == chunk.digest;
  });
}

bool ContentChunks::can_be_read_apart() {
  static const bool can = [] {
    std::byte from{1};
    std::byte to{0};
    return copy_own_memory(&from, 1, &to) && to == from;
  }();
  return can;
}

}  // namespace modcache::module
