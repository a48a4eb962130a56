// SPDX-License-Identifier: Apache-2.0
//
// ContentChunks: all bytes of a list of tensors in the CPU's memory, as chunks of 64 KiB with a
// hash each, so that they can be compared again part by part.
//
// Keeps no tensor alive: the caller of a comparison must make sure that the memory still exists.
// Immutable once it is filled; any thread may ask it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace modcache::module {

class ContentChunks {
 public:
  static constexpr std::size_t kChunkBytes = 64 << 10;

  // While it is being filled, `index` must not decrease. Adds a piece of dense memory; the pieces
  // of a tensor follow each other. REQUIRES: size_bytes <= kChunkBytes.
  void add_dense(std::size_t index, const std::byte* place, std::size_t size_bytes);
  // Adds all of a tensor in the CPU's memory, dense or with gaps. Other tensors get no chunks.
  void add(std::size_t index, const at::Tensor& tensor);
  // Adds a tensor as it is in `other`. REQUIRES: it has not changed since.
  void add_from(const ContentChunks& other, std::size_t index);

  // The amount to read. Memory with gaps counts more than its size, since it is slower.
  std::size_t size_bytes() const { return size_bytes_; }
  bool has_gaps() const { return !strided_.empty(); }

  std::size_t count() const { return chunks_.size(); }
  // Returns the chunk that contains this byte of size_bytes().
  std::size_t chunk_at(std::size_t byte) const;
  std::size_t tensor_of(std::size_t chunk) const { return chunks_[chunk].tensor; }
  std::size_t end_of(std::size_t chunk) const { return chunks_[chunk].begin + chunks_[chunk].cost; }

  // Reads the chunk directly. REQUIRES: its memory exists.
  bool matches(std::size_t chunk) const;
  bool all_match() const;
  // Does the same through the kernel, several times slower. Memory that another thread frees
  // meanwhile does not match, where reading it directly would end the process. REQUIRES:
  // !has_gaps(), can_be_read_apart().
  bool all_match_apart() const;
  // Returns whether the kernel lets a process read itself that way.
  static bool can_be_read_apart();

 private:
  struct Strided {
    const std::byte* place = nullptr;
    std::size_t element_bytes = 0;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;  // in elements
  };
  struct Chunk {
    const std::byte* place = nullptr;  // null: the tensor has gaps, see `strided`
    std::uint64_t digest = 0;
    std::size_t begin = 0;  // its offset in size_bytes()
    std::uint32_t cost = 0;
    std::uint32_t size_bytes = 0;
    std::uint32_t tensor = 0;
    std::uint32_t strided = 0;      // an index into strided_
    std::size_t first_element = 0;  // its first element in there
  };

  void add_strided(std::size_t index, const at::Tensor& tensor);
  void push(Chunk chunk, std::size_t cost);
  std::uint64_t digest_of(const Chunk& chunk) const;
  static void gather(const Strided& from, std::size_t first, std::size_t count, std::byte* to);

  std::vector<Chunk> chunks_;  // in ascending order of tensors
  std::vector<Strided> strided_;
  std::size_t size_bytes_ = 0;
};

}  // namespace modcache::module
