// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_header.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace modcache::tensor {
namespace {

TensorHeader header_of(std::vector<std::int64_t> sizes) {
  TensorHeader header;
  header.dtype = 6;
  header.flags = TensorHeader::kBesideInput;
  header.sizes = std::move(sizes);
  return header;
}

bool is_refused(const std::string& bytes) {
  return decode_tensor_header(bytes).status().code() == StatusCode::kCorruption;
}

TEST(TensorHeaderTest, is_read_back_as_it_was_written) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  for (const auto& sizes :
       std::vector<std::vector<std::int64_t>>{{},
                                              {0},
                                              {1},
                                              {2, 3, 4},
                                              {255, 256, 65536},
                                              {largest, 0},
                                              std::vector<std::int64_t>(64, 1)}) {
    const auto decoded = decode_tensor_header(encode_tensor_header(header_of(sizes)));
    ASSERT_TRUE(decoded.is_ok()) << decoded.status().message();
    EXPECT_EQ(decoded.value().sizes, sizes);
    EXPECT_EQ(decoded.value().dtype, 6);
    EXPECT_EQ(decoded.value().flags, TensorHeader::kBesideInput);
  }
}

TEST(TensorHeaderTest, has_the_bytes_that_the_format_says) {
  const std::string expected("\x01\x06\x01\x02\x03\0\0\0\0\0\0\0\x00\x01\0\0\0\0\0\0", 20);
  EXPECT_EQ(encode_tensor_header(header_of({3, 256})), expected);
}

TEST(TensorHeaderTest, no_truncation_and_no_surplus_is_accepted) {
  const std::string whole = encode_tensor_header(header_of({2, 3, 4}));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(is_refused(whole.substr(0, size))) << size;
  }
  EXPECT_TRUE(is_refused(whole + '\0'));
  EXPECT_TRUE(is_refused(whole + std::string(8, '\0')));
}

TEST(TensorHeaderTest, another_version_is_refused) {
  std::string bytes = encode_tensor_header(header_of({2}));
  for (const char version : {'\0', '\2', '\xff'}) {
    bytes[0] = version;
    EXPECT_TRUE(is_refused(bytes));
  }
}

TEST(TensorHeaderTest, more_dimensions_than_a_tensor_has_are_refused_whatever_follows) {
  for (const int dimensions : {65, 128, 255}) {
    std::string bytes{'\1', '\6', '\0', static_cast<char>(dimensions)};
    bytes.append(8 * static_cast<std::size_t>(dimensions), '\0');
    EXPECT_TRUE(is_refused(bytes)) << dimensions;
  }
}

TEST(TensorHeaderTest, a_negative_size_is_refused) {
  std::string bytes = encode_tensor_header(header_of({2, 3}));
  bytes.back() = '\x80';
  EXPECT_TRUE(is_refused(bytes));
  EXPECT_TRUE(is_refused(bytes.substr(0, 4) + std::string(16, '\xff')));
}

TEST(TensorHeaderTest, whatever_it_is_given_is_refused_or_means_exactly_itself) {
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (!bytes.empty()) bytes[0] = '\1';
    if (bytes.size() >= 4) bytes[3] = static_cast<char>((bytes.size() - 4) / 8);
    const auto decoded = decode_tensor_header(bytes);
    if (!decoded.is_ok()) continue;
    ++accepted;
    EXPECT_EQ(encode_tensor_header(decoded.value()), bytes);
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace modcache::tensor
