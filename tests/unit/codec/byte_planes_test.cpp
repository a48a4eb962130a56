// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>

#include "codec/codec.h"

namespace modcache::codec {
namespace {

TEST(BytePlanesTest, elements_of_two_to_sixteen_bytes_have_a_plane_per_byte) {
  for (const std::size_t size : {2u, 4u, 8u, 16u}) EXPECT_EQ(plane_count(size), size);
  for (const std::size_t size : {0u, 1u, 3u, 5u, 12u, 32u, 1000u}) EXPECT_EQ(plane_count(size), 1u);
}

TEST(BytePlanesTest, splitting_puts_first_bytes_first) {
  std::string planes(12, '?');
  split_into_planes("a1x-b2y+c3z*", 4, 3, planes.data());
  EXPECT_EQ(planes, "abc123xyz-+*");
}

TEST(BytePlanesTest, joining_undoes_splitting) {
  for (const std::size_t planes : {1u, 2u, 4u, 8u, 16u}) {
    for (const std::size_t elements : {0u, 1u, 2u, 7u, 31u, 64u, 1000u}) {
      std::string source(planes * elements, '\0');
      for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 37 + i / 7);
      std::string split(source.size(), '\0');
      split_into_planes(source.data(), planes, elements, split.data());
      std::array<const char*, kMaxPlanes> parts{};
      for (std::size_t k = 0; k < planes; ++k) parts[k] = split.data() + k * elements;
      std::string joined(source.size(), '?');
      join_planes(parts.data(), planes, elements, joined.data());
      EXPECT_EQ(joined, source) << planes << " planes of " << elements;
    }
  }
}

}  // namespace
}  // namespace modcache::codec
