// SPDX-License-Identifier: Apache-2.0
//
// Dimensions in a value header: their order, and which of them are padded.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/value_header.h"

namespace modcache::tensor {
namespace {

ValueHeader header_of_a_tensor() {
  ValueHeader header;
  header.tensors.resize(1);
  header.tensors[0].dtype = 6;
  header.tensors[0].stored_dtype = 5;
  header.tensors[0].is_beside_input = true;
  return header;
}

bool is_malformed(const std::string& bytes) {
  return decode_value_header(bytes).status().code() == StatusCode::kCorruption;
}

void expect_read_again(const ValueHeader& header) {
  const auto decoded = decode_value_header(encode_value_header(header));
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().message();
  EXPECT_EQ(decoded.value(), header);
}

TEST(ValueHeaderDimsTest,
     an_order_of_dimensions_is_read_back_and_adds_nothing_where_there_is_none) {
  ValueHeader header = header_of_a_tensor();
  header.tensors[0].sizes = {2, 3, 4};
  const std::size_t plain_size_bytes = encode_value_header(header).size();
  header.tensors[0].dim_order = {2, 0, 1};
  expect_read_again(header);
  EXPECT_EQ(encode_value_header(header).size(), plain_size_bytes + 4);
  header.tensors[0].batch_place = 3;
  expect_read_again(header);
  header.tensors[0].dim_order.clear();
  expect_read_again(header);
}

TEST(ValueHeaderDimsTest, padded_dimensions_are_read_back_where_they_have_one_size) {
  ValueHeader header = header_of_a_tensor();
  header.tensors[0].sizes = {5, 2, 5};
  header.tensors[0].padded_dims = 0b101;
  expect_read_again(header);
  header.tensors[0].dim_order = {2, 0, 1};
  expect_read_again(header);
  header.tensors.push_back(header.tensors[0]);
  header.root.kind = Node::Kind::kTuple;
  header.root.children.resize(2);
  expect_read_again(header);
  header.tensors[1].sizes = {4, 2, 4};
  EXPECT_TRUE(is_malformed(encode_value_header(header))) << "another length than the first";
  header.tensors.pop_back();
  header.root = {};
  for (const std::uint64_t dims : {0b11U, 0b1000U, 0b10000001U}) {
    header.tensors[0].padded_dims = dims;
    EXPECT_TRUE(is_malformed(encode_value_header(header))) << dims;
  }
}

TEST(ValueHeaderDimsTest, an_order_that_is_no_permutation_is_refused) {
  ValueHeader header = header_of_a_tensor();
  header.tensors[0].sizes = {2, 3};
  for (const std::vector<std::uint8_t>& order :
       {std::vector<std::uint8_t>{0, 0}, {1, 1}, {1, 2}, {0, 255}}) {
    header.tensors[0].dim_order = order;
    EXPECT_TRUE(is_malformed(encode_value_header(header)));
  }
  header.tensors[0].dim_order = {1, 0};
  header.tensors[0].batch_place = 3;
  EXPECT_TRUE(is_malformed(encode_value_header(header)));
  header.tensors[0].batch_place = 2;
  std::string plain = encode_value_header(header);
  plain.replace(plain.size() - 3, 3, std::string("\0\0\1", 3));
  EXPECT_TRUE(is_malformed(plain)) << "an order that says nothing";
  const std::string bytes = encode_value_header(header);
  EXPECT_FALSE(is_malformed(bytes));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(is_malformed(bytes.substr(0, size)));
  }
}

}  // namespace
}  // namespace modcache::tensor
