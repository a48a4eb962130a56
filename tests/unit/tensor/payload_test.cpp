// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "support/whole_values.h"
#include "tensor/layout.h"

namespace modcache::tensor {
namespace {

using codec::Codec;
using testing::value_of;

// What read_payload() gives of `written`, for a value of `size_bytes`.
std::string read_back(const cache::Written& written, std::size_t size_bytes) {
  const LayoutPtr layout = Layout::decode(written.header).value();
  EXPECT_TRUE(check_payload_size(*layout, written.payload.size_bytes).is_ok());
  std::string bytes(size_bytes, '?');
  const auto read = [&](void* target) {
    std::memcpy(target, written.payload.data, written.payload.size_bytes);
    return Status::ok();
  };
  EXPECT_TRUE(read_payload(*layout, written.payload.size_bytes, read, bytes.data()).is_ok());
  return bytes;
}

TEST(PayloadTest, is_encoded_where_that_makes_it_smaller) {
  const LayoutPtr layout = value_of(at::zeros({10'000}, at::kByte))->layout();
  const std::string zeros(10'000, '\0');
  const cache::Written plain = write_payload(*layout, share_bytes(zeros), Codec::kNone);
  const cache::Written encoded = write_payload(*layout, share_bytes(zeros), Codec::kZstd);
  EXPECT_EQ(plain.payload.view(), zeros);
  EXPECT_LT(encoded.payload.size_bytes, zeros.size());
  EXPECT_EQ(read_back(plain, zeros.size()), zeros);
  EXPECT_EQ(read_back(encoded, zeros.size()), zeros);
  const LayoutPtr short_layout = value_of(at::zeros({3}, at::kByte))->layout();
  EXPECT_EQ(write_payload(*short_layout, share_bytes("abc"), Codec::kZstd).payload.view(), "abc");
}

TEST(PayloadTest, of_a_size_that_its_header_does_not_say_is_corruption) {
  const auto value = value_of(at::zeros({6}));
  const LayoutPtr plain = value->layout();
  EXPECT_TRUE(check_payload_size(*plain, 24).is_ok());
  EXPECT_EQ(check_payload_size(*plain, 23).code(), StatusCode::kCorruption);
  const LayoutPtr encoded = Layout::decode(plain->header_with(1)).value();
  EXPECT_TRUE(check_payload_size(*encoded, 5).is_ok());
  ValueHeader huge;
  huge.codec = 1;
  huge.tensors.resize(1);
  huge.tensors[0].dtype = huge.tensors[0].stored_dtype = static_cast<std::uint8_t>(at::kByte);
  huge.tensors[0].sizes = {std::int64_t{1} << 40};
  EXPECT_EQ(check_payload_size(*Layout::of(huge).value(), 5).code(), StatusCode::kCorruption)
      << "nothing shrinks so much";
}

TEST(PayloadTest, that_cannot_be_read_or_decoded_is_no_payload) {
  const LayoutPtr encoded =
      Layout::decode(value_of(at::zeros({6}))->layout()->header_with(1)).value();
  std::string target(24, '?');
  const auto failing = [](void*) { return Status::io_error("gone"); };
  EXPECT_EQ(read_payload(*encoded, 5, failing, target.data()).code(), StatusCode::kIoError);
  const auto noise = [](void* to) {
    std::memset(to, 'x', 5);
    return Status::ok();
  };
  EXPECT_EQ(read_payload(*encoded, 5, noise, target.data()).code(), StatusCode::kCorruption);
}

}  // namespace
}  // namespace modcache::tensor
