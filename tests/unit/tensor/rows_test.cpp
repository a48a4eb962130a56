// SPDX-License-Identifier: Apache-2.0
#include "tensor/rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/value_tensors.h"

namespace modcache::tensor {
namespace {

using testing::all_dtypes;
using testing::bytes_of;
using testing::expect_same;
using testing::flat_of;
using testing::matrix_of;

TEST(SelectRowsTest, picks_rows_of_every_dtype_in_the_order_asked_for) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor batch = matrix_of(dtype);
    const at::Tensor picked = select_rows(batch, {3, 0, 0});
    ASSERT_EQ(picked.scalar_type(), dtype);
    ASSERT_EQ(picked.sizes(), (std::vector<std::int64_t>{3, 3}));
    const std::string all = bytes_of(batch);
    const std::size_t size = all.size() / 4;
    EXPECT_EQ(bytes_of(picked), all.substr(3 * size) + all.substr(0, size) + all.substr(0, size))
        << dtype;
  }
}

TEST(SelectRowsTest, picks_rows_of_vectors_views_and_what_has_no_elements) {
  expect_same(select_rows(at::arange(4), {2}), at::full({1}, 2, at::kLong));
  expect_same(select_rows(at::arange(6).view({2, 3}).t(), {1}),
              at::tensor({1, 4}, at::kLong).view({1, 2}));
  EXPECT_EQ(select_rows(at::ones({4, 0}), {1, 2}).sizes(), (std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ(select_rows(at::ones({4, 2}), {}).sizes(), (std::vector<std::int64_t>{0, 2}));
  const at::Tensor conjugated = at::randn({2, 2}, at::kComplexFloat).to(at::kComplexHalf).conj();
  expect_same(select_rows(conjugated, {0, 1}), conjugated.resolve_conj());
}

TEST(SelectRowsTest, keeps_the_order_of_dimensions) {
  const at::Tensor image = at::arange(4 * 2 * 3 * 5).view({4, 2, 3, 5});
  for (const at::Tensor& batch :
       {image.contiguous(at::MemoryFormat::ChannelsLast), image.transpose(2, 3),
        image.transpose(0, 1).contiguous().transpose(0, 1)}) {
    const at::Tensor picked = select_rows(batch, {3, 0});
    EXPECT_EQ(picked.strides(), batch.slice(0, 0, 2).clone().strides()) << batch.strides();
    expect_same(picked, at::stack({batch.select(0, 3), batch.select(0, 0)}));
  }
}

TEST(SelectRowsTest, picks_in_every_tensor_of_an_input_and_leaves_the_rest) {
  const at::Tensor x = at::arange(4);
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("a", x);
  const at::IValue input = c10::ivalue::Tuple::create({at::IValue(x), at::IValue(7),
                                                       at::IValue(c10::List<at::Tensor>({x})),
                                                       at::IValue(dict), at::IValue("text")});
  const at::IValue picked = select_rows(input, {3, 1});
  const at::Tensor expected = at::tensor({3, 1}, at::kLong);
  const std::vector<at::IValue> items = picked.toTupleRef().elements().vec();
  expect_same(items[0].toTensor(), expected);
  EXPECT_EQ(items[1].toInt(), 7);
  expect_same(items[2].toTensorVector()[0], expected);
  expect_same(items[3].toGenericDict().at("a").toTensor(), expected);
  EXPECT_EQ(items[4].toStringRef(), "text");
  EXPECT_EQ(*c10::unshapedType(picked.type()), *c10::unshapedType(input.type()));
}

TEST(WhyNoRowsTest, every_tensor_of_a_result_has_the_rows_as_its_first_size) {
  EXPECT_EQ(why_no_rows(flat_of({at::ones({3, 2})}), 3), "");
  EXPECT_EQ(why_no_rows(flat_of({at::ones({3}), at::ones({3, 0})}), 3), "");
  EXPECT_NE(why_no_rows(flat_of({at::ones({2, 3})}), 3), "");
  EXPECT_NE(why_no_rows(flat_of({at::ones({3}), at::ones({})}), 3), "");
  EXPECT_NE(why_no_rows(flat_of({}), 3), "");
  EXPECT_NE(why_no_rows(flat_of({at::ones({2, 3})}), 3).find("[2, 3]"), std::string::npos);
}

}  // namespace
}  // namespace modcache::tensor
