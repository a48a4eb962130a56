// SPDX-License-Identifier: Apache-2.0
#include "tensor/tree.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "support/script_values.h"
#include "support/value_tensors.h"

namespace modcache::tensor {
namespace {

using at::IValue;
using testing::dict_of;
using testing::expect_rebuilt;
using testing::list_of;
using testing::text_of;
using testing::tuple_of;

const IValue kEmpty = tuple_of({});

TEST(TreeTest, what_no_tier_can_hold_is_named) {
  EXPECT_NE(flatten(at::Device(at::kCPU)).why_not_storable, "");
  EXPECT_NE(flatten(tuple_of({1, at::Device(at::kCPU)})).why_not_storable, "");
  EXPECT_NE(flatten(dict_of("float", "int", {{0.5, 1}})).why_not_storable, "");
  EXPECT_EQ(flatten(tuple_of({at::ones({2}).to_sparse()})).why_not_storable, "");
  EXPECT_NE(why_not_storable(flatten(tuple_of({at::ones({2}).to_sparse()}))), "");
  EXPECT_EQ(why_not_storable(flatten(tuple_of({at::ones({2})}))), "");
}

TEST(TreeTest, what_is_nested_deeper_than_can_be_read_back_is_not_stored) {
  const auto nested = [](int depth, IValue innermost) {
    for (int i = 0; i < depth; ++i) innermost = tuple_of({innermost});
    return innermost;
  };
  const auto tagged = [](int depth, IValue innermost) {
    for (int i = 0; i < depth; ++i) innermost = tuple_of({"(", tuple_of({innermost})});
    return innermost;
  };
  expect_rebuilt(nested(ValueHeader::kMostDepth, 1), nullptr);
  expect_rebuilt(nested(ValueHeader::kMostDepth - 1, tuple_of({})), nullptr);
  EXPECT_NE(flatten(nested(ValueHeader::kMostDepth, tuple_of({}))).why_not_storable, "");
  EXPECT_NE(flatten(nested(ValueHeader::kMostDepth + 1, 1)).why_not_storable, "");
  EXPECT_EQ(flatten_tagged(tagged(ValueHeader::kMostDepth, 1)).why_not_storable, "");
  EXPECT_NE(flatten_tagged(tagged(ValueHeader::kMostDepth + 1, 1)).why_not_storable, "");
}

TEST(TaggedTest, every_container_comes_back_as_it_was_handed_over) {
  const IValue x = at::ones({2});
  for (const IValue& value : std::vector<IValue>{
           x, IValue(), true, 7, 0.5, c10::complex<double>(1, 2), "(", "text",
           tuple_of({"(", kEmpty}), tuple_of({"(", tuple_of({x, 7, "("})}),
           tuple_of({"[", tuple_of({x, "a", IValue()})}), tuple_of({"{", kEmpty, kEmpty}),
           tuple_of({"{", tuple_of({"a", 7}), tuple_of({x, tuple_of({"[", kEmpty})})}),
           tuple_of({"N", "module:Point", tuple_of({"x", "y"}), tuple_of({x, 1})}),
           tuple_of({"o", "module:Output", "[\"a\"]", tuple_of({x})})}) {
    const Flat flat = flatten_tagged(value);
    EXPECT_EQ(flat.why_not_storable, "");
    const auto decoded = decode_value_header(text_of(flat));
    ASSERT_TRUE(decoded.is_ok());
    const IValue again = rebuild_tagged(decoded.value().root, flat.tensors);
    EXPECT_EQ(text_of(flatten(again)), text_of(flatten(value)));
  }
}

TEST(TaggedTest, what_is_no_tagged_tuple_is_an_error) {
  const IValue x = at::ones({2});
  for (const IValue& value : std::vector<IValue>{
           kEmpty, tuple_of({x}), tuple_of({"?", kEmpty}), tuple_of({"("}), tuple_of({"(", x}),
           tuple_of({"((", kEmpty}), tuple_of({"(", kEmpty, kEmpty}), tuple_of({"t"}),
           tuple_of({"{", kEmpty}), tuple_of({"{", tuple_of({"a"}), kEmpty}),
           tuple_of({"{", tuple_of({x}), tuple_of({x})}), tuple_of({"N", "c", kEmpty}),
           tuple_of({"N", 1, kEmpty, kEmpty}), tuple_of({"o", "c", 1, kEmpty}),
           tuple_of({"[", tuple_of({kEmpty})}), list_of("int", {1})}) {
    EXPECT_ANY_THROW(flatten_tagged(value));
  }
}

}  // namespace
}  // namespace modcache::tensor
