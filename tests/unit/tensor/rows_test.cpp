// SPDX-License-Identifier: Apache-2.0
//
// Rows picked from a batch (rows.h), stored by themselves (row_value.h), and the memory of batches
// (output_buffer.h). One file, since torch's headers take most of a minute to compile.
#include "tensor/rows.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/value_tensors.h"
#include "tensor/output_buffer.h"
#include "tensor/row_value.h"
#include "tensor/rows_output.h"
#include "tensor/stored_value.h"

namespace modcache::tensor {
namespace {

using codec::Codec;
using modcache::testing::all_dtypes;
using modcache::testing::bytes_of;
using modcache::testing::cut;
using modcache::testing::dtypes_named;
using modcache::testing::expect_same;
using modcache::testing::flat_of;
using modcache::testing::matrix_of;

// ----- rows.h

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

// ----- row_value.h

TEST(RowValueTest, a_row_holds_its_own_bytes_and_nothing_of_the_batch) {
  at::Tensor batch = at::arange(8, at::kFloat).view({4, 2});
  const auto rows = cut(batch);
  batch.fill_(-1);
  const StoredValue stored = stored_value(*rows[2]);
  expect_same(stored.value.tensors[0], at::tensor({4.0, 5.0}, at::kFloat));
  stored.value.tensors[0].fill_(-1);
  expect_same(stored_value(*rows[2]).value.tensors[0], at::tensor({4.0, 5.0}, at::kFloat));
  EXPECT_EQ(rows[2]->write(Codec::kNone).payload.size_bytes, 8u);
  EXPECT_LT(rows[2]->size_bytes(), 256u);
}

TEST(RowValueTest, what_is_written_outlives_the_row) {
  cache::Written written;
  written = cut(at::arange(6, at::kByte).view({2, 3}))[1]->write(Codec::kNone);
  EXPECT_EQ(written.payload.view(), "\3\4\5");
}

TEST(RowValueTest, rows_of_one_run_share_a_layout_and_a_header) {
  const auto rows = cut(flat_of({at::ones({2, 3}), at::ones({2})}));
  EXPECT_EQ(&rows[0]->layout(), &rows[1]->layout());
  EXPECT_EQ(rows[0]->write(Codec::kNone).header, rows[1]->write(Codec::kNone).header);
  EXPECT_EQ(rows[0]->layout().tensors()[0].sizes, std::vector<std::int64_t>{3});
  EXPECT_TRUE(rows[0]->layout().tensors()[1].sizes.empty());
}

TEST(RowValueTest, views_conjugates_and_zero_tensors_are_cut_as_what_they_show) {
  const at::Tensor complex = at::randn({2, 3}, at::kComplexFloat);
  for (const at::Tensor& batch :
       {at::arange(6).view({3, 2}).t(), at::ones({1, 3}).expand({2, 3}), complex.conj(),
        at::imag(complex.conj()), complex.requires_grad_(), at::_efficientzerotensor({2, 3})}) {
    const auto rows = cut(batch);
    for (std::int64_t i = 0; i < 2; ++i) {
      const at::Tensor stored = stored_value(*rows[static_cast<std::size_t>(i)]).value.tensors[0];
      EXPECT_FALSE(stored.requires_grad());
      EXPECT_TRUE(at::equal(stored, batch.detach().select(0, i)));
    }
  }
}

// ----- what is handed out

class HandedOutBatchTest : public ::testing::Test {
 protected:
  at::Tensor batch() const {
    std::vector<StoredRow> stored(rows_.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      stored[i].row = i;
      stored[i].layout = &rows_[i]->layout();
      stored[i].bytes = rows_[i]->bytes();
    }
    RowsOutput output(rows_.size());
    output.add_stored(stored, [](std::size_t, void*) { return Status::ok(); });
    return output.together(at::Device(at::kCPU))->tensors[0];
  }

  const at::Tensor original_ = at::randn({4, 100'000});  // large enough for a block of the pool
  const std::vector<std::shared_ptr<const RowValue>> rows_ = cut(original_);
};

TEST_F(HandedOutBatchTest, what_a_caller_does_to_it_reaches_no_stored_row_and_no_other_batch) {
  const at::Tensor kept = batch();
  batch().fill_(-1);
  batch().view({-1}).slice(0, 0, 9).zero_();
  batch().variable_data().mul_(2);
  std::memset(batch().data_ptr(), 0xff, original_.nbytes());
  batch().resize_({8, 200'000}).fill_(3);
  batch().resize_({1}).fill_(3);
  at::Tensor set = batch();
  set.set_(at::zeros({3})).fill_(1);
  EXPECT_TRUE(at::equal(kept, original_));
  EXPECT_TRUE(at::equal(batch(), original_));
}

TEST_F(HandedOutBatchTest, is_an_ordinary_tensor_even_under_inference_mode) {
  at::Tensor made;
  {
    const c10::InferenceMode inference(true);
    made = batch();
  }
  EXPECT_FALSE(made.is_inference());
  at::Tensor weight = at::ones_like(original_).requires_grad_();
  (made * weight).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), original_));
}

TEST_F(HandedOutBatchTest, a_tensor_that_grew_keeps_what_it_had) {
  at::Tensor grown = batch();
  grown.resize_({5, 100'000});
  const at::Tensor other = batch();
  grown.slice(0, 4, 5).fill_(1);
  EXPECT_TRUE(at::equal(grown.slice(0, 0, 4), original_));
  EXPECT_TRUE(at::equal(other, original_));
}

// ----- output_buffer.h

TEST(OutputBufferTest, gives_tensors_of_every_size_and_dtype) {
  for (const at::ScalarType dtype :
       dtypes_named({"float32", "bool", "complex128", "float8_e5m2"})) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
             {}, {0}, {3, 0, 2}, {7}, {1000, 1000}, {3, 1 << 20}}) {
      const at::Tensor tensor = output_tensor(sizes, dtype);
      EXPECT_EQ(tensor.sizes(), sizes);
      EXPECT_EQ(tensor.scalar_type(), dtype);
      EXPECT_TRUE(tensor.is_contiguous());
      if (tensor.nbytes() != 0) std::memset(tensor.data_ptr(), 1, tensor.nbytes());
      EXPECT_GE(tensor.storage().nbytes(), tensor.nbytes());
    }
  }
}

TEST(OutputBufferTest, memory_comes_back_when_its_tensor_dies_and_never_before) {
  const std::vector<std::int64_t> sizes{1000, 1000};
  at::Tensor first = output_tensor(sizes, at::kFloat);
  const void* const place = first.data_ptr();
  const at::Tensor view = first.select(0, 500);
  const at::Tensor second = output_tensor(sizes, at::kFloat);
  EXPECT_NE(second.data_ptr(), place);
  first = at::Tensor();
  EXPECT_NE(output_tensor(sizes, at::kFloat).data_ptr(), place) << "a view still lives";
  first = at::Tensor();
  const_cast<at::Tensor&>(view) = at::Tensor();
  EXPECT_EQ(output_tensor(sizes, at::kFloat).data_ptr(), place);
}

TEST(OutputBufferTest, a_block_is_not_given_to_what_needs_more_or_far_less) {
  {
    // Blocks that other tests left make room for these.
    std::vector<at::Tensor> small(16);
    for (at::Tensor& tensor : small) tensor = output_tensor({200'000}, at::kByte);
  }
  void* place = nullptr;
  {
    const at::Tensor tensor = output_tensor({5'000'000}, at::kByte);
    place = tensor.data_ptr();
  }
  const at::Tensor larger = output_tensor({9'000'000}, at::kByte);
  EXPECT_NE(larger.data_ptr(), place);
  const at::Tensor smaller = output_tensor({200'000}, at::kByte);
  EXPECT_NE(smaller.data_ptr(), place);
  EXPECT_EQ(output_tensor({4'500'000}, at::kByte).data_ptr(), place);
}

TEST(OutputBufferTest, many_tensors_at_once_have_memory_of_their_own) {
  std::vector<at::Tensor> tensors;
  for (int round = 0; round < 3; ++round) {
    tensors.clear();
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(output_tensor({300'000 + 1000 * i}, at::kByte));
      tensors.back().fill_(i);
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(tensors[static_cast<std::size_t>(i)].eq(i).all().item().toBool());
    }
  }
}

}  // namespace
}  // namespace modcache::tensor
