// SPDX-License-Identifier: Apache-2.0
#include "tensor/value_header.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace modcache::tensor {
namespace {

using Kind = Node::Kind;

Node node_of(Kind kind, std::vector<Node> children = {}) {
  Node node;
  node.kind = kind;
  node.children = std::move(children);
  if (kind == Kind::kList) node.types = {"int"};
  if (kind == Kind::kDict) node.types = {"str", "Tensor"};
  return node;
}
Node number(std::int64_t value) {
  Node node = node_of(Kind::kInt);
  node.integer = value;
  return node;
}
Node real(double value) {
  Node node = node_of(Kind::kFloat);
  node.real = value;
  return node;
}
Node text(std::string value) {
  Node node = node_of(Kind::kString);
  node.text = std::move(value);
  return node;
}
Node truth(bool value) {
  Node node = node_of(Kind::kBool);
  node.integer = value ? 1 : 0;
  return node;
}
Node complex(double a, double b) {
  Node node = node_of(Kind::kComplex);
  node.real = a;
  node.imaginary = b;
  return node;
}
Node named(std::vector<std::string> names, std::vector<Node> children) {
  Node node = node_of(Kind::kNamedTuple, std::move(children));
  node.text = "__torch__.Point";
  node.names = std::move(names);
  return node;
}
Node object(std::vector<Node> children) {
  Node node = node_of(Kind::kObject, std::move(children));
  node.text = "package:Output";
  node.types = {"[\"a\"]"};
  return node;
}
Node tensor() { return node_of(Kind::kTensor); }
Node none() { return node_of(Kind::kNone); }

TensorLayout layout_of(std::vector<std::int64_t> sizes) {
  TensorLayout layout;
  layout.dtype = 6;
  layout.stored_dtype = 5;
  layout.is_beside_input = true;
  layout.sizes = std::move(sizes);
  return layout;
}

std::size_t tensors_in(const Node& node) {
  std::size_t count = node.kind == Kind::kTensor ? 1 : 0;
  for (const Node& child : node.children) count += tensors_in(child);
  return count;
}

ValueHeader header_of(Node root) {
  ValueHeader header;
  header.root = std::move(root);
  for (std::size_t i = tensors_in(header.root); i > 0; --i) {
    header.tensors.push_back(layout_of({static_cast<std::int64_t>(i), 3}));
  }
  return header;
}

// Every kind of node, nested.
Node everything() {
  const Node dict = node_of(
      Kind::kDict, {text("a"), tensor(), number(7), node_of(Kind::kTuple, {none(), truth(true)})});
  return node_of(Kind::kTuple,
                 {tensor(), dict, node_of(Kind::kList, {number(-1), number(2)}), real(0.5),
                  complex(1, -2), text(std::string("a\0b", 3)), truth(false),
                  named({"x", "y"}, {tensor(), node_of(Kind::kList)}), object({tensor(), none()})});
}

bool is_refused(const std::string& bytes) {
  return decode_value_header(bytes).status().code() == StatusCode::kCorruption;
}

void expect_read_back(const ValueHeader& header) {
  const std::string bytes = encode_value_header(header);
  const auto decoded = decode_value_header(bytes);
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().message();
  EXPECT_EQ(decoded.value(), header);
  EXPECT_EQ(encode_value_header(decoded.value()), bytes);
}

std::string u32(std::uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}
const std::string kStart{"\2\0", 2};

// ----- what is written is read

TEST(ValueHeaderTest, a_lone_tensor_is_read_back_whatever_its_sizes) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  for (const auto& sizes :
       std::vector<std::vector<std::int64_t>>{{},
                                              {0},
                                              {1},
                                              {2, 3, 4},
                                              {255, 256, 65536},
                                              {largest, 0},
                                              std::vector<std::int64_t>(64, 1)}) {
    ValueHeader header = header_of(tensor());
    header.codec = 1;
    header.tensors[0] = layout_of(sizes);
    expect_read_back(header);
  }
}

TEST(ValueHeaderTest, every_kind_of_node_is_read_back) {
  for (const Node& node :
       {none(),
        truth(true),
        truth(false),
        number(0),
        number(-7),
        text(""),
        text("text"),
        number(std::numeric_limits<std::int64_t>::min()),
        real(-0.0),
        real(1e-300),
        complex(1, -2),
        real(std::numeric_limits<double>::quiet_NaN()),
        node_of(Kind::kTuple),
        node_of(Kind::kList),
        node_of(Kind::kDict),
        node_of(Kind::kTuple, {tensor(), tensor(), number(3)}),
        node_of(Kind::kList, {node_of(Kind::kList, {number(1)}), node_of(Kind::kList)}),
        node_of(Kind::kDict, {text("a"), tensor(), number(-1), tensor()}),
        named({"x", ""}, {tensor(), none()}),
        named({}, {}),
        object({tensor(), text("b")}),
        everything()}) {
    expect_read_back(header_of(node));
  }
}

TEST(ValueHeaderTest, types_classes_and_fields_are_read_back) {
  Node list = node_of(Kind::kList);
  list.types = {"Dict[str, List[int]]"};
  const auto decoded = decode_value_header(
      encode_value_header(header_of(node_of(Kind::kTuple, {list, named({"x"}, {number(1)})}))));
  ASSERT_TRUE(decoded.is_ok());
  const Node& root = decoded.value().root;
  EXPECT_EQ(root.children[0].types, std::vector<std::string>{"Dict[str, List[int]]"});
  EXPECT_EQ(root.children[1].text, "__torch__.Point");
  EXPECT_EQ(root.children[1].names, std::vector<std::string>{"x"});
}

TEST(ValueHeaderTest, tensors_keep_their_order_in_the_tree) {
  ValueHeader header = header_of(
      node_of(Kind::kTuple, {tensor(), node_of(Kind::kList, {tensor(), number(1)}), tensor()}));
  header.tensors = {layout_of({1}), layout_of({2}), layout_of({3})};
  header.tensors[1].dtype = 11;
  header.tensors[2].is_beside_input = false;
  expect_read_back(header);
}

TEST(ValueHeaderTest, has_the_bytes_that_the_format_says) {
  ValueHeader lone = header_of(tensor());
  lone.tensors[0] = layout_of({3, 256});
  EXPECT_EQ(encode_value_header(lone),
            std::string("\x02\x00t\x06\x05\x01\x02\x03\0\0\0\0\0\0\0\x00\x01\0\0\0\0\0\0", 23));

  ValueHeader dict = header_of(node_of(Kind::kDict, {text("k"), tensor()}));
  dict.codec = 1;
  dict.tensors[0] = layout_of({});
  EXPECT_EQ(encode_value_header(dict), std::string("\x02\x01{"
                                                   "\0\0\0\0"        // no text
                                                   "\0\0\0\0"        // no names
                                                   "\2\0\0\0"        // two types
                                                   "\3\0\0\0str"     //
                                                   "\6\0\0\0Tensor"  //
                                                   "\2\0\0\0"        // two children
                                                   "s\1\0\0\0k"      //
                                                   "t\6\5\1\0",      //
                                                   3 + 12 + 7 + 10 + 4 + 6 + 5));
}

// ----- what else is refused

TEST(ValueHeaderTest, no_truncation_and_no_surplus_is_accepted) {
  const std::string whole = encode_value_header(header_of(everything()));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(is_refused(whole.substr(0, size))) << size;
  }
  EXPECT_TRUE(is_refused(whole + '\0'));
  EXPECT_TRUE(is_refused(whole + 'n'));
  EXPECT_TRUE(is_refused(whole + std::string(8, '\0')));
}

TEST(ValueHeaderTest, another_version_is_refused) {
  std::string bytes = encode_value_header(header_of(tensor()));
  for (const char version : {'\0', '\1', '\3', '\xff'}) {
    bytes[0] = version;
    EXPECT_TRUE(is_refused(bytes));
  }
}

TEST(ValueHeaderTest, an_unknown_kind_or_flag_is_refused) {
  EXPECT_FALSE(is_refused(kStart + "n"));
  for (const char kind : {'\0', 'x', 'T', ')', '\xff'}) EXPECT_TRUE(is_refused(kStart + kind));
  EXPECT_FALSE(is_refused(kStart + std::string("t\6\6\0\0", 5)));
  EXPECT_FALSE(is_refused(kStart + std::string("t\6\6\1\0", 5)));
  EXPECT_TRUE(is_refused(kStart + std::string("t\6\6\2\0", 5)));
  EXPECT_FALSE(is_refused(kStart + "b\1"));
  EXPECT_TRUE(is_refused(kStart + "b\2"));
}

TEST(ValueHeaderTest, more_dimensions_than_a_tensor_has_are_refused_whatever_follows) {
  for (const int dimensions : {65, 128, 255}) {
    std::string bytes = kStart + std::string("t\6\6\0", 4) + static_cast<char>(dimensions);
    bytes.append(8 * static_cast<std::size_t>(dimensions), '\0');
    EXPECT_TRUE(is_refused(bytes)) << dimensions;
  }
}

TEST(ValueHeaderTest, a_negative_size_is_refused) {
  std::string bytes = encode_value_header(header_of(tensor()));
  bytes.back() = '\x80';
  EXPECT_TRUE(is_refused(bytes));
}

TEST(ValueHeaderTest, counts_that_the_bytes_cannot_hold_are_refused_without_memory_for_them) {
  const std::string zero = u32(0);
  for (const std::uint32_t count : {0x7fffffffU, 0xffffffffU, 0x40000000U, 1U << 20}) {
    for (const std::string& after : {std::string(), std::string(64, 'n'), std::string(64, '\0')}) {
      const std::string many = u32(count) + after;
      EXPECT_TRUE(is_refused(kStart + "s" + many));                       // a text's size
      EXPECT_TRUE(is_refused(kStart + "(" + many));                       // a class's size
      EXPECT_TRUE(is_refused(kStart + "N" + zero + many));                // names
      EXPECT_TRUE(is_refused(kStart + "[" + zero + zero + many));         // types
      EXPECT_TRUE(is_refused(kStart + "(" + zero + zero + zero + many));  // children
    }
  }
}

TEST(ValueHeaderTest, a_tree_may_be_64_containers_deep_and_no_deeper) {
  const std::string open = "(" + u32(0) + u32(0) + u32(0) + u32(1);
  const auto nested = [&](int depth) {
    std::string bytes = kStart;
    for (int i = 0; i < depth; ++i) bytes += open;
    return bytes + 'n';
  };
  EXPECT_FALSE(is_refused(nested(ValueHeader::kMostDepth)));
  EXPECT_TRUE(is_refused(nested(ValueHeader::kMostDepth + 1)));
  EXPECT_TRUE(is_refused(nested(50'000)));
}

TEST(ValueHeaderTest, containers_with_parts_that_do_not_fit_are_refused) {
  const auto is_refused_node = [](const Node& node) {
    return is_refused(encode_value_header(header_of(node)));
  };
  EXPECT_TRUE(is_refused_node(named({"x"}, {number(1), number(2)})));
  EXPECT_TRUE(is_refused_node(named({"x", "y"}, {number(1)})));
  EXPECT_TRUE(is_refused_node(node_of(Kind::kDict, {text("a")})));
  for (const Node& key : {tensor(), none(), real(1), truth(true), node_of(Kind::kTuple)}) {
    EXPECT_TRUE(is_refused_node(node_of(Kind::kDict, {key, number(1)})));
  }
  for (Kind kind : {Kind::kTuple, Kind::kList, Kind::kDict, Kind::kObject}) {
    Node with_names = node_of(kind);
    with_names.names = {"x"};
    EXPECT_TRUE(is_refused_node(with_names));
    Node other_types = node_of(kind);
    other_types.types = {"int", "int", "int"};
    EXPECT_TRUE(is_refused_node(other_types));
    if (kind == Kind::kObject) continue;
    Node with_text = node_of(kind);
    with_text.text = "class";
    EXPECT_TRUE(is_refused_node(with_text));
  }
}

// ----- anything at all

TEST(ValueHeaderTest, whatever_it_is_given_is_refused_or_means_exactly_itself) {
  std::mt19937 random(1);
  const std::string alphabet("tnbidcs([{No\0\0\0\0\0\1\1\2\6", 22);
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string bytes = kStart;
    for (auto size = random() % 40; size > 0; --size) bytes += alphabet[random() % alphabet.size()];
    const auto decoded = decode_value_header(bytes);
    if (!decoded.is_ok()) continue;
    ++accepted;
    ASSERT_EQ(encode_value_header(decoded.value()), bytes);
  }
  EXPECT_GT(accepted, 100);
}

TEST(ValueHeaderTest, a_damaged_header_is_refused_or_means_exactly_itself) {
  std::mt19937 random(2);
  const std::string whole = encode_value_header(header_of(everything()));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int turn = 0; turn < 20; ++turn) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(random());
      const auto decoded = decode_value_header(bytes);
      if (!decoded.is_ok()) continue;
      ASSERT_EQ(encode_value_header(decoded.value()), bytes) << at;
    }
  }
}

// ----- equality: what two rows of a batch must have in common

TEST(NodeTest, values_are_compared_bit_for_bit) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(real(nan), real(nan));
  EXPECT_NE(real(0.0), real(-0.0));
  EXPECT_NE(complex(0, 1), complex(1, 0));
  EXPECT_NE(number(1), truth(true));
  EXPECT_NE(number(1), real(1));
  EXPECT_NE(text("a"), text("b"));
  EXPECT_NE(node_of(Kind::kTuple, {none()}), node_of(Kind::kTuple, {none(), none()}));
  EXPECT_NE(node_of(Kind::kTuple), node_of(Kind::kList));
  EXPECT_EQ(everything(), everything());
}

TEST(NodeTest, what_python_and_torchscript_say_differently_does_not_count) {
  Node list = node_of(Kind::kList, {number(1)});
  list.types = {""};
  EXPECT_EQ(list, node_of(Kind::kList, {number(1)}));
  Node point = named({"x"}, {number(1)});
  point.text = "python_module:Point";
  EXPECT_EQ(point, named({"x"}, {number(1)}));
  EXPECT_NE(named({"y"}, {number(1)}), named({"x"}, {number(1)}));
  Node other = object({none()});
  other.types = {"another context"};
  EXPECT_NE(other, object({none()}));
}

// Python raises an error for it.
TEST(ValueHeaderTest, refuses_text_that_is_no_utf8_wherever_it_stands) {
  ValueHeader header;
  Node named = node_of(Kind::kNamedTuple, {text("value")});
  named.text = "class";
  named.names = {"field"};
  Node dict = node_of(Kind::kDict, {text("key"), number(1)});
  header.root = node_of(Kind::kTuple, {std::move(named), std::move(dict)});
  const std::string sound = encode_value_header(header);
  ASSERT_TRUE(decode_value_header(sound).is_ok());
  for (const char* part : {"value", "class", "field", "key", "str", "Tensor"}) {
    std::string bytes = sound;
    bytes[bytes.find(part)] = '\xff';
    EXPECT_EQ(decode_value_header(bytes).status().code(), StatusCode::kCorruption) << part;
  }
}

}  // namespace
}  // namespace modcache::tensor
