// SPDX-License-Identifier: Apache-2.0
//
// The hash functions of modcache.
//  - XXH3: checksums, addresses and the weights of a module. Fast, safe against accidents.
//  - BLAKE2b: whatever a stranger can choose (contexts, content keys).
// Each gives the same digest on every machine. All functions may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace modcache {

// Returns two lower-case hexadecimal digits for each byte.
std::string hex_of(std::string_view bytes);

struct Digest128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  bool operator==(const Digest128&) const = default;

  static constexpr std::size_t kSizeBytes = 16;
  // 16 bytes, big-endian, as stored on disk.
  std::string bytes() const;
  std::array<char, kSizeBytes> byte_array() const;
  // 32 lower-case hexadecimal digits.
  std::string hex() const;
  // REQUIRES: bytes.size() == kSizeBytes.
  static Digest128 from_bytes(std::string_view bytes);
};

// For unordered containers: a Digest128 is already uniformly distributed.
struct Digest128Hash {
  std::size_t operator()(const Digest128& digest) const noexcept {
    return static_cast<std::size_t>(digest.low);
  }
};

std::uint64_t xxh3_64(const void* data, std::size_t size_bytes, std::uint64_t seed = 0);
Digest128 xxh3_128(const void* data, std::size_t size_bytes);
inline Digest128 xxh3_128(std::string_view bytes) { return xxh3_128(bytes.data(), bytes.size()); }

// XXH3-128 over a sequence of pieces. update() does not mark boundaries. add() writes the piece's
// length first, so that ("ab", "c") and ("a", "bc") differ.
class Xxh3Hasher {
 public:
  Xxh3Hasher();
  Xxh3Hasher(const Xxh3Hasher&) = delete;
  Xxh3Hasher& operator=(const Xxh3Hasher&) = delete;

  void update(const void* data, std::size_t size_bytes);
  void add(std::string_view piece);
  void add(std::uint64_t number);
  Digest128 digest() const;

 private:
  // An XXH3_state_t, which lies here as the hasher of a short text should not use the heap.
  alignas(64) std::array<std::byte, 576> state_;
};

// 128 bits of BLAKE2b. Finding two inputs with the same digest is not feasible.
Digest128 blake2b_128(std::string_view bytes);

// 128 bits of BLAKE2b over `parts`, one after the other without boundaries, with a key of
// kMacKeyBytes: who does not know the key cannot make it.
inline constexpr std::size_t kMacKeyBytes = 32;
Digest128 blake2b_mac(std::string_view key, const std::vector<std::string_view>& parts);
// A key for it from a secret of any length.
std::string mac_key_of(std::string_view secret);

// 256 bits of BLAKE2b over bytes that come in parts. update() does not mark boundaries.
class Blake2bHasher {
 public:
  Blake2bHasher();
  ~Blake2bHasher();
  Blake2bHasher(const Blake2bHasher&) = delete;
  Blake2bHasher& operator=(const Blake2bHasher&) = delete;

  void update(const void* data, std::size_t size_bytes);
  void update(std::string_view bytes) { update(bytes.data(), bytes.size()); }
  // 64 lower-case hexadecimal digits of what was hashed so far; more may be added afterwards.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace modcache
