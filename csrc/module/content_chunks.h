// SPDX-License-Identifier: Apache-2.0
//
// ContentChunks: all bytes of a list of tensors in the CPU's memory, as chunks of 64 KiB with a
// hash each, so that they can be compared again part by part.
//
// Keeps no tensor alive: whoever compares answers for the memory still being there. Immutable once
// it is made; any thread may ask it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace modcache::module {

class ContentChunks {
 public:
  static constexpr std::size_t kChunkBytes = 64 << 10;

  // While it is made, `index` grows from call to call. Dense memory in one piece after the other:
  // REQUIRES: size_bytes <= kChunkBytes.
  void add_dense(std::size_t index, const std::byte* place, std::size_t size_bytes);
  // All of a tensor that lies in the CPU's memory, dense or with gaps. Others have no chunks.
  void add(std::size_t index, const at::Tensor& tensor);
  // As it is in `other`: the tensor has not changed since.
  void add_from(const ContentChunks& other, std::size_t index);

  // How much there is to read. Memory with gaps counts more than it has, since it is slower.
  std::size_t size_bytes() const { return size_bytes_; }
  bool has_gaps() const { return !strided_.empty(); }

  std::size_t count() const { return chunks_.size(); }
  // The chunk in which this byte of size_bytes() lies.
  std::size_t chunk_at(std::size_t byte) const;
  std::size_t tensor_of(std::size_t chunk) const { return chunks_[chunk].tensor; }
  std::size_t end_of(std::size_t chunk) const { return chunks_[chunk].begin + chunks_[chunk].cost; }

  // Reads the chunk where it lies.
  bool matches(std::size_t chunk) const;
  bool all_match() const;
  // The same through the kernel, several times slower: memory that another thread frees meanwhile
  // does not match, where reading it would end the process. REQUIRES: !has_gaps(),
  // can_be_read_apart().
  bool all_match_apart() const;
  // Whether the kernel lets a process read itself so.
  static bool can_be_read_apart();

 private:
  struct Strided {
    const std::byte* place = nullptr;
    std::size_t element_bytes = 0;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;  // in elements
  };
  struct Chunk {
    const std::byte* place = nullptr;  // null: of a tensor with gaps
    std::uint64_t digest = 0;
    std::size_t begin = 0;  // of size_bytes()
    std::uint32_t cost = 0;
    std::uint32_t size_bytes = 0;
    std::uint32_t tensor = 0;
    std::uint32_t strided = 0;      // which of strided_
    std::size_t first_element = 0;  // of it
  };

  void add_strided(std::size_t index, const at::Tensor& tensor);
  void push(Chunk chunk, std::size_t cost);
  std::uint64_t digest_of(const Chunk& chunk) const;
  static void gather(const Strided& from, std::size_t first, std::size_t count, std::byte* to);

  std::vector<Chunk> chunks_;  // by tensor, ascending
  std::vector<Strided> strided_;
  std::size_t size_bytes_ = 0;
};

}  // namespace modcache::module
