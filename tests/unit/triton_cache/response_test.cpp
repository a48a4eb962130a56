// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/response.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/packed_response.h"
#include "tensor/value_header.h"

namespace modcache::triton_cache {
namespace {

using testing::packed_response;

std::shared_ptr<Response> response_of(const std::vector<std::string>& buffers) {
  std::vector<std::size_t> sizes;
  for (const std::string& buffer : buffers) sizes.push_back(buffer.size());
  auto response = Response::allocate(sizes);
  EXPECT_TRUE(response.is_ok()) << response.status().message();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    std::memcpy(response.value()->writable_buffer(i), buffers[i].data(), buffers[i].size());
  }
  return response.value();
}

TEST(ResponseTest, comes_back_from_what_it_writes) {
  const auto response = response_of({"abc", "defg", std::string(200, 'x')});
  const cache::Written written = response->write(codec::Codec::kNone);
  auto read = Response::allocate_for(written.header, written.payload.size_bytes);
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  std::memcpy(read.value()->writable_payload(), written.payload.data, written.payload.size_bytes);
  ASSERT_EQ(read.value()->buffers(), 3u);
  EXPECT_EQ(read.value()->buffer(0), "abc");
  EXPECT_EQ(read.value()->buffer(1), "defg");
  EXPECT_EQ(read.value()->buffer(2), std::string(200, 'x'));
}

TEST(ResponseTest, writes_the_bytes_that_it_holds_without_a_copy) {
  const auto response = response_of({"abc"});
  const cache::Written written = response->write(codec::Codec::kZstd);
  EXPECT_EQ(written.payload.view().data(), response->payload().data());
  EXPECT_EQ(written.payload.view(), "abc");
}

// FORMAT.md has the gaps: the same response gives the same bytes.
TEST(ResponseTest, has_zeros_between_its_buffers) {
  const auto response = response_of({"abc", "de"});
  EXPECT_EQ(response->payload(), "abc" + std::string(61, '\0') + "de");
}

TEST(ResponseTest, is_a_tuple_of_tensors_of_bytes_on_disk) {
  const auto header =
      tensor::decode_value_header(response_of({"abc", "de"})->write(codec::Codec::kNone).header);
  ASSERT_TRUE(header.is_ok());
  EXPECT_EQ(header.value().root.kind, tensor::Node::Kind::kTuple);
  ASSERT_EQ(header.value().tensors.size(), 2u);
  EXPECT_EQ(header.value().tensors[0].sizes, std::vector<std::int64_t>{3});
}

TEST(ResponseTest, has_buffers_that_are_not_empty_and_not_too_many) {
  EXPECT_EQ(Response::allocate({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Response::allocate({3, 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Response::allocate({~std::size_t{0}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Response::allocate(std::vector<std::size_t>(Response::kMostBuffers, 1)).is_ok());
  EXPECT_EQ(
      Response::allocate(std::vector<std::size_t>(Response::kMostBuffers + 1, 1)).status().code(),
      StatusCode::kInvalidArgument);
}

// A sanitizer ends the process instead.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ResponseTest, more_memory_than_there_is_is_an_error) {
  EXPECT_EQ(Response::allocate({std::size_t{1} << 52}).status().code(), StatusCode::kNoSpace);
}
#endif

TEST(ResponseTest, a_header_that_does_not_fit_is_corruption) {
  const std::string header = response_of({"abc", "de"})->write(codec::Codec::kNone).header;
  ASSERT_TRUE(Response::allocate_for(header, 66).is_ok());
  for (const std::size_t size_bytes : {std::size_t{0}, std::size_t{5}, std::size_t{67}}) {
    EXPECT_EQ(Response::allocate_for(header, size_bytes).status().code(), StatusCode::kCorruption);
  }
  for (std::size_t size = 0; size < header.size(); ++size) {
    EXPECT_FALSE(Response::allocate_for(header.substr(0, size), 66).is_ok()) << size;
  }
}

TEST(ResponseTest, a_value_of_another_kind_is_corruption) {
  tensor::ValueHeader lone;
  lone.tensors.push_back({0, 0, false, {3}});
  tensor::ValueHeader floats;
  floats.root.kind = tensor::Node::Kind::kTuple;
  floats.root.children.resize(1);
  floats.tensors.push_back({6, 6, false, {3}});
  for (const auto& header : {lone, floats}) {
    EXPECT_EQ(Response::allocate_for(tensor::encode_value_header(header), 3).status().code(),
              StatusCode::kCorruption);
  }
}

TEST(ResponseTest, is_sound_where_triton_can_unpack_each_buffer) {
  EXPECT_TRUE(response_of({packed_response({"a"}), packed_response({"b"})})->is_sound());
  EXPECT_FALSE(response_of({packed_response({"a"}), "garbage"})->is_sound());
}

}  // namespace
}  // namespace modcache::triton_cache
