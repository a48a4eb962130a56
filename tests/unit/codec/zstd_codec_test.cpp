// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "codec/codec.h"
#include "support/child_process.h"

namespace modcache::codec {
namespace {

template <typename T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

std::string features(std::size_t count, unsigned seed = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(generator);
  return bytes_of(numbers);
}

std::string noise(std::size_t size_bytes, unsigned seed = 0) {
  std::mt19937 generator(seed);
  std::string bytes(size_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(generator());
  return bytes;
}

// Decodes into memory of exactly the right size, so that AddressSanitizer sees one byte too many.
struct Decoded {
  Status status;
  std::string bytes;
};
Decoded decoded(std::size_t element_size_bytes, std::string_view encoded, std::size_t size_bytes) {
  const std::unique_ptr<char[]> source(new char[encoded.size()]);
  std::memcpy(source.get(), encoded.data(), encoded.size());
  const std::unique_ptr<char[]> target(new char[size_bytes]);
  Status status = decode(Codec::kZstd, element_size_bytes, {source.get(), encoded.size()},
                         target.get(), size_bytes);
  return {std::move(status), std::string(target.get(), size_bytes)};
}

void expect_kept(std::size_t element_size_bytes, const std::string& bytes) {
  const auto encoded = encode(Codec::kZstd, element_size_bytes, bytes);
  if (!encoded.has_value()) return;
  EXPECT_LT(encoded->size(), bytes.size());
  const Decoded back = decoded(element_size_bytes, *encoded, bytes.size());
  EXPECT_TRUE(back.status.is_ok()) << back.status.message();
  EXPECT_TRUE(back.bytes == bytes) << bytes.size() << " bytes of " << element_size_bytes;
}

TEST(ZstdCodecTest, every_bit_comes_back_whatever_the_size_of_elements_and_value) {
  for (const std::size_t element : {1u, 2u, 3u, 4u, 8u, 16u}) {
    // Sizes around one and two blocks, with complete and incomplete elements at the end.
    for (const std::size_t size : {0ul, 1ul, 15ul, 16ul, 17ul, 1000ul, 65536 * element - 1,
                                   65536 * element, 65536 * element + 1, 131072 * element + 5}) {
      const std::string numbers = features(size / 4 + 1).substr(0, size);
      expect_kept(element, numbers);
      expect_kept(element, std::string(size, '\x7f'));
      expect_kept(element, numbers.substr(0, size / 2) + std::string(size - size / 2, '\0'));
      expect_kept(element, noise(size / 2) + numbers.substr(0, size - size / 2));
    }
  }
}

TEST(ZstdCodecTest, numbers_that_compare_oddly_come_back_bit_for_bit) {
  using Limits = std::numeric_limits<float>;
  std::vector<float> odd{0.0F,
                         -0.0F,
                         Limits::infinity(),
                         -Limits::infinity(),
                         Limits::quiet_NaN(),
                         Limits::denorm_min(),
                         Limits::max(),
                         Limits::lowest()};
  const std::uint32_t payload = 0xffc12345;
  odd.emplace_back();
  std::memcpy(&odd.back(), &payload, sizeof(payload));
  std::vector<float> numbers;
  for (int i = 0; i < 100; ++i) numbers.insert(numbers.end(), odd.begin(), odd.end());
  ASSERT_TRUE(encode(Codec::kZstd, 4, bytes_of(numbers)).has_value());
  expect_kept(4, bytes_of(numbers));
}

TEST(ZstdCodecTest, floats_get_smaller) {
  for (const std::size_t count : {512u, 38'656u}) {
    const std::string bytes = features(count);
    EXPECT_LT(encode(Codec::kZstd, 4, bytes).value().size(), bytes.size() * 9 / 10);
  }
  std::vector<std::uint64_t> ids(1000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = 1'000'000 + i;
  EXPECT_LT(encode(Codec::kZstd, 8, bytes_of(ids)).value().size(), 8000u / 4);
  EXPECT_LT(encode(Codec::kZstd, 4, std::string(1 << 20, '\0')).value().size(), 1000u);
}

TEST(ZstdCodecTest, what_would_not_shrink_is_left_alone) {
  for (const std::size_t size : {0u, 1u, 4u, 100u, 2048u, 1u << 20}) {
    EXPECT_EQ(encode(Codec::kZstd, 4, noise(size)), std::nullopt) << size;
  }
}

TEST(ZstdCodecTest, another_length_or_size_of_elements_is_damage) {
  const std::string bytes = features(1000);
  const std::string encoded = encode(Codec::kZstd, 4, bytes).value();
  for (const std::size_t size :
       {0u, 1u, 3u, 2000u, 3996u, 3999u, 4001u, 4004u, 8000u, 1u << 20, 1u << 26}) {
    EXPECT_EQ(decoded(4, encoded, size).status.code(), StatusCode::kCorruption) << size;
  }
  for (const std::size_t element : {1u, 2u, 8u, 16u}) {
    EXPECT_EQ(decoded(element, encoded, bytes.size()).status.code(), StatusCode::kCorruption);
  }
}

TEST(ZstdCodecTest, a_truncated_value_is_damage_wherever_it_ends) {
  const std::string bytes = features(300) + "abc";
  const std::string encoded = encode(Codec::kZstd, 4, bytes).value();
  for (std::size_t size = 0; size < encoded.size(); ++size) {
    EXPECT_EQ(decoded(4, encoded.substr(0, size), bytes.size()).status.code(),
              StatusCode::kCorruption)
        << size;
  }
  EXPECT_EQ(decoded(4, encoded + '\0', bytes.size()).status.code(), StatusCode::kCorruption);
}

// A flipped bit may decode to other numbers, which the checksum detects. It must not touch other
// memory, which the sanitizers watch here.
TEST(ZstdCodecTest, garbled_bytes_stay_within_their_bounds) {
  const std::string bytes = features(500);
  const std::string encoded = encode(Codec::kZstd, 4, bytes).value();
  std::mt19937 generator(7);
  for (int i = 0; i < 3000; ++i) {
    std::string garbled = encoded;
    for (int flips = 1 + i % 4; flips > 0; --flips) {
      garbled[generator() % garbled.size()] ^= static_cast<char>(1u << generator() % 8);
    }
    const Status status = decoded(4, garbled, bytes.size()).status;
    EXPECT_TRUE(status.is_ok() || status.code() == StatusCode::kCorruption);
  }
  for (unsigned seed = 0; seed < 300; ++seed) {
    EXPECT_EQ(decoded(4, noise(seed * 7, seed), bytes.size()).status.code(),
              StatusCode::kCorruption);
  }
}

TEST(ZstdCodecTest, a_frame_that_unpacks_to_more_than_its_plane_is_damage) {
  const std::string bomb = encode(Codec::kZstd, 1, std::string(65536, 'x')).value();
  ASSERT_LT(bomb.size(), 100u);
  EXPECT_EQ(decoded(1, bomb, 1000).status.code(), StatusCode::kCorruption);
  EXPECT_EQ(decoded(1, bomb, 65535).status.code(), StatusCode::kCorruption);
}

TEST(ZstdCodecTest, only_single_frames_of_the_present_format_are_read) {
  const std::string bytes(1000, 'x');
  const std::string encoded = encode(Codec::kZstd, 1, bytes).value();
  const std::string frame = encoded.substr(2);
  const auto with_length = [](const std::string& frames) {
    return std::string{static_cast<char>(frames.size()), '\0'} + frames;
  };
  ASSERT_LT(frame.size() * 2, 256u);
  EXPECT_TRUE(decoded(1, with_length(frame), 1000).status.is_ok());
  EXPECT_EQ(decoded(1, with_length(frame + frame), 2000).status.code(), StatusCode::kCorruption);
  const std::string skippable{"\x50\x2a\x4d\x18\0\0\0\0", 8};
  EXPECT_EQ(decoded(1, with_length(skippable + frame), 1000).status.code(),
            StatusCode::kCorruption);
  std::string older = frame;
  older[0] = '\x27';  // format 0.7, which Zstandard's library may still read
  EXPECT_EQ(decoded(1, with_length(older), 1000).status.code(), StatusCode::kCorruption);
}

TEST(ZstdCodecTest, threads_do_not_share_their_work) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (unsigned i = 0; i < 50; ++i) expect_kept(4, features(200 + 300 * t, t * 100 + i));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(ZstdCodecTest, a_forked_child_encodes_too) {
  const std::string bytes = features(1000);
  const auto expected = encode(Codec::kZstd, 4, bytes);
  testing::ChildProcess child([&] { return encode(Codec::kZstd, 4, bytes) == expected ? 0 : 1; });
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace modcache::codec
