// SPDX-License-Identifier: Apache-2.0
#include "backends/redis/chunks.h"

#include <algorithm>
#include <cassert>

#include "base/bytes.h"
#include "base/hash.h"

namespace modcache::backends {
namespace {

constexpr std::string_view kHeadMagic = "mcCHUNKS";
// No name of a value has it (remote/backend.h).
constexpr char kBetween = '#';
// magic 8, write 8, size 8, XXH3-64 of these 8
constexpr std::size_t kHeadBytes = kChunkedHeadBytes;
// write 8, number of the piece 8
constexpr std::size_t kChunkMarkBytes = 16;

std::size_t bytes_of_chunk(const ChunkedHead& head, std::size_t chunk) {
  const std::uint64_t begin = std::uint64_t{chunk} * kChunkBytes;
  return static_cast<std::size_t>(std::min<std::uint64_t>(head.size_bytes - begin, kChunkBytes));
}

}  // namespace

std::string encode_chunked_head(const ChunkedHead& head) {
  std::string bytes(kHeadBytes, '\0');
  std::copy(kHeadMagic.begin(), kHeadMagic.end(), bytes.begin());
  write_number(head.write, bytes.data() + 8);
  write_number(head.size_bytes, bytes.data() + 16);
  write_number(xxh3_64(bytes.data(), 24), bytes.data() + 24);
  return bytes;
}

std::optional<ChunkedHead> decode_chunked_head(std::string_view value) {
  if (value.size() != kHeadBytes || value.substr(0, kHeadMagic.size()) != kHeadMagic) {
    return std::nullopt;
  }
  if (read_number<std::uint64_t>(value.data() + 24) != xxh3_64(value.data(), 24)) {
    return std::nullopt;
  }
  const ChunkedHead head{read_number<std::uint64_t>(value.data() + 8),
                         read_number<std::uint64_t>(value.data() + 16)};
  if (head.size_bytes == 0 || head.size_bytes > remote::kMostValueBytes) return std::nullopt;
  return head;
}

std::string chunk_name(const std::string& name, std::size_t chunk) {
  return name + kBetween + std::to_string(chunk);
}

std::string encode_chunk(const ChunkedHead& head, std::string_view value, std::size_t chunk) {
  assert(chunk < head.chunks() && value.size() == head.size_bytes);
  std::string bytes(kChunkMarkBytes, '\0');
  write_number(head.write, bytes.data());
  write_number(std::uint64_t{chunk}, bytes.data() + 8);
  return bytes.append(value.substr(chunk * kChunkBytes, bytes_of_chunk(head, chunk)));
}

std::optional<std::string_view> decode_chunk(const ChunkedHead& head, std::size_t chunk,
                                             std::string_view stored) {
  if (stored.size() != kChunkMarkBytes + bytes_of_chunk(head, chunk) ||
      read_number<std::uint64_t>(stored.data()) != head.write ||
      read_number<std::uint64_t>(stored.data() + 8) != chunk) {
    return std::nullopt;
  }
  return stored.substr(kChunkMarkBytes);
}

}  // namespace modcache::backends
