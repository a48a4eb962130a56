// SPDX-License-Identifier: Apache-2.0
#include "command_line/value_text.h"

#include <gtest/gtest.h>

#include "cache/entry_header.h"
#include "tensor/value_header.h"

namespace modcache::command_line {
namespace {

using tensor::Node;
using tensor::TensorLayout;
using tensor::ValueHeader;

constexpr std::uint8_t kFloat16 = 5;
constexpr std::uint8_t kFloat32 = 6;

Node node(Node::Kind kind, std::vector<Node> children = {}, std::string text = "") {
  Node made;
  made.kind = kind;
  made.children = std::move(children);
  made.text = std::move(text);
  made.types.resize(kind == Node::Kind::kDict ? 2 : kind == Node::Kind::kList ? 1 : 0);
  return made;
}

std::string text_of(Node root, std::vector<TensorLayout> tensors = {}) {
  ValueHeader header;
  header.root = std::move(root);
  header.tensors = std::move(tensors);
  const auto text = describe_value(cache::pack_header("", tensor::encode_value_header(header)));
  return text.is_ok() ? text.value().value : "<" + text.status().message() + ">";
}

const Node kTensor = node(Node::Kind::kTensor);

TEST(ValueTextTest, a_tensor_is_its_dtype_and_shape) {
  EXPECT_EQ(text_of(kTensor, {{kFloat32, kFloat32, true, {3, 256}}}), "float32[3, 256]");
  EXPECT_EQ(text_of(kTensor, {{11, 11, false, {}}}), "bool[]");
  EXPECT_EQ(text_of(kTensor, {{45, 45, false, {0}}}), "float4_e2m1fn_x2[0]");
  EXPECT_EQ(text_of(kTensor, {{200, 200, false, {1}}}), "dtype 200[1]");
  EXPECT_EQ(text_of(kTensor, {{kFloat32, kFloat16, false, {2}}}), "float32[2] stored as float16");
}

TEST(ValueTextTest, containers_hold_their_values) {
  Node key = node(Node::Kind::kString, {}, "ids");
  Node number = node(Node::Kind::kInt);
  number.integer = -7;
  const TensorLayout layout{4, 4, false, {2}};
  const Node dict = node(Node::Kind::kDict, {key, kTensor});
  EXPECT_EQ(text_of(node(Node::Kind::kTuple, {kTensor, dict}), {layout, layout}),
            "(int64[2], {'ids': int64[2]})");
  EXPECT_EQ(text_of(node(Node::Kind::kTuple, {number})), "(-7,)");
  EXPECT_EQ(text_of(node(Node::Kind::kList, {node(Node::Kind::kNone)})), "[None]");
  Node named = node(Node::Kind::kNamedTuple, {number}, "Point");
  named.names = {"x"};
  EXPECT_EQ(text_of(named), "Point(x=-7)");
}

TEST(ValueTextTest, long_ones_are_shortened) {
  EXPECT_EQ(text_of(node(Node::Kind::kString, {}, std::string(100, 'x'))),
            "'" + std::string(40, 'x') + "...'");
  const std::string text =
      text_of(node(Node::Kind::kList, std::vector<Node>(100'000, node(Node::Kind::kNone))));
  EXPECT_LT(text.size(), 2100U);
  EXPECT_EQ(text.substr(text.size() - 4), " ...");
}

TEST(ValueTextTest, the_signature_is_told_too) {
  ValueHeader header;
  header.tensors = {{kFloat32, kFloat32, false, {1}}};
  const auto text =
      describe_value(cache::pack_header("(float32[1,64])", tensor::encode_value_header(header)));
  EXPECT_EQ(text.value().signature, "(float32[1,64])");
  EXPECT_EQ(text.value().codec, "none");
}

TEST(ValueTextTest, other_bytes_are_refused) {
  for (const char* bytes : {"", "abc", "a header that is none"}) {
    EXPECT_FALSE(describe_value(bytes).is_ok());
  }
}

}  // namespace
}  // namespace modcache::command_line
