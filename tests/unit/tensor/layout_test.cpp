// SPDX-License-Identifier: Apache-2.0
#include "tensor/layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "support/whole_values.h"

namespace modcache::tensor {
namespace {

using cache::StoredDtype;
using testing::expect_same;
using testing::value_of;

LayoutPtr layout_of(const std::vector<at::Tensor>& tensors) { return value_of(tensors)->layout(); }

TEST(LayoutTest, tensors_begin_at_multiples_of_64_bytes) {
  const LayoutPtr layout = layout_of({at::arange(3, at::kByte), at::empty({0}), at::ones({17})});
  EXPECT_EQ(layout->places()[0].offset, 0u);
  EXPECT_EQ(layout->places()[1].offset, 64u);
  EXPECT_EQ(layout->places()[2].offset, 64u);
  EXPECT_EQ(layout->payload_size_bytes(), 64u + 68u);
  EXPECT_EQ(layout_of({at::arange(3, at::kByte)})->payload_size_bytes(), 3u);
}

TEST(LayoutTest, is_decoded_from_its_header) {
  const LayoutPtr layout = layout_of({at::ones({2, 3}), at::ones({4}, at::kLong)});
  const LayoutPtr again = Layout::decode(layout->header_with(0)).value();
  EXPECT_EQ(again->root(), layout->root());
  EXPECT_EQ(again->tensors(), layout->tensors());
  EXPECT_FALSE(again->is_encoded());
  EXPECT_TRUE(Layout::decode(layout->header_with(1)).value()->is_encoded());
  EXPECT_EQ(Layout::decode("no header").status().code(), StatusCode::kCorruption);
}

TEST(LayoutTest, lone_tensors_that_differ_in_their_numbers_alone_share_theirs) {
  const LayoutPtr layout = layout_of({at::ones({2, 3})});
  EXPECT_EQ(layout_of({at::zeros({2, 3})}), layout);
  EXPECT_EQ(Layout::decode(layout->header_with(0)).value(), layout);
  const std::vector<LayoutPtr> others = {
      layout_of({at::ones({3, 2})}), layout_of({at::ones({2, 3}, at::kDouble)}),
      layout_of({at::ones({3, 2}).t()}), Layout::decode(layout->header_with(1)).value()};
  for (const LayoutPtr& other : others) {
    EXPECT_NE(other, layout);
    EXPECT_NE(other->header_with(other->codec()), layout->header_with(0));
  }
  for (std::int64_t i = 0; i < 20; ++i) layout_of({at::ones({i})});
  EXPECT_EQ(layout_of({at::ones({2, 3})})->tensors(), layout->tensors());
}

TEST(LayoutTest, values_count_their_share_of_a_layout) {
  std::vector<std::shared_ptr<const WholeValue>> values;
  std::size_t counted_bytes = 0;
  const std::size_t alone_bytes = value_of({at::ones({1, 77})})->size_bytes();
  for (int i = 0; i < 100; ++i) {
    values.push_back(value_of({at::ones({77, 1})}));
    counted_bytes += values.back()->size_bytes();
  }
  EXPECT_EQ(values.front()->size_bytes(), alone_bytes);
  const std::size_t layout_bytes = alone_bytes - values.back()->size_bytes();
  EXPECT_GT(layout_bytes, 200u);
  EXPECT_LT(counted_bytes, 100 * (alone_bytes - layout_bytes) + 10 * layout_bytes);
}

TEST(LayoutTest, a_dtype_that_is_never_stored_as_the_other_is_corruption) {
  ValueHeader header;
  header.tensors.resize(1);
  header.tensors[0].dtype = static_cast<std::uint8_t>(at::kFloat);
  header.tensors[0].stored_dtype = static_cast<std::uint8_t>(at::kHalf);
  EXPECT_TRUE(Layout::of(header).is_ok());
  header.tensors[0].stored_dtype = static_cast<std::uint8_t>(at::kLong);
  EXPECT_EQ(Layout::of(header).status().code(), StatusCode::kCorruption);
}

TEST(LayoutTest, sizes_whose_bytes_cannot_be_counted_are_told) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  EXPECT_TRUE(has_countable_elements({2, 3, 0}));
  EXPECT_FALSE(has_countable_elements({0, kHuge, kHuge})) << "of an empty tensor, too";
  EXPECT_TRUE(has_countable_elements({kHuge}));
  EXPECT_FALSE(has_countable_elements({kHuge}, kHuge));
}

TEST(LayoutTest, one_tensor_is_read_from_its_place_in_the_dtype_that_it_had) {
  const LayoutPtr layout =
      value_of({at::ones({2}), at::full({2}, 0.5)}, StoredDtype::kFloat16)->layout();
  std::vector<std::byte> payload(layout->payload_size_bytes());
  const at::Tensor stored = at::full({2}, 0.5, at::kHalf);
  std::memcpy(payload.data() + layout->places()[1].offset, stored.data_ptr(), stored.nbytes());
  expect_same(tensor_at(*layout, 1, payload.data()), at::full({2}, 0.5));
}

TEST(LayoutTest, rows_are_alike_with_equal_sizes_and_of_one_kind_with_as_many_dimensions) {
  const LayoutPtr two = layout_of({at::ones({2})});
  EXPECT_TRUE(two->has_rows_like(*layout_of({at::zeros({2})})));
  const LayoutPtr three = layout_of({at::ones({3})});
  EXPECT_FALSE(two->has_rows_like(*three));
  EXPECT_TRUE(two->has_rows_of_the_kind_of(*three));
  EXPECT_FALSE(two->has_rows_of_the_kind_of(*layout_of({at::ones({2, 1})})));
  EXPECT_FALSE(two->has_rows_of_the_kind_of(*layout_of({at::ones({2}, at::kLong)})));
  EXPECT_FALSE(two->has_rows_of_the_kind_of(*layout_of({at::ones({2}), at::ones({2})})));
}

TEST(LayoutTest, the_tolerance_takes_in_what_was_rounded) {
  const at::Tensor original = at::ones({1});
  const auto tolerance = [&](StoredDtype dtype) {
    return value_of({original, original.to(at::kLong)}, dtype)->layout()->tolerance(0.001);
  };
  EXPECT_EQ(tolerance(StoredDtype::kKeep).relative, 0.001);
  EXPECT_EQ(tolerance(StoredDtype::kKeep).absolute, 0);
  EXPECT_EQ(tolerance(StoredDtype::kFloat16).relative, 0.001 + 1.0 / 2048);
  EXPECT_EQ(tolerance(StoredDtype::kBfloat16).relative, 0.001 + 1.0 / 256);
}

}  // namespace
}  // namespace modcache::tensor
