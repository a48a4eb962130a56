// SPDX-License-Identifier: Apache-2.0
#include "tensor/rows_output.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/value_tensors.h"
#include "tensor/row_value.h"
#include "tensor/rows.h"

namespace modcache::tensor {
namespace {

using cache::StoredDtype;
using codec::Codec;
using modcache::testing::all_dtypes;
using modcache::testing::cut;
using modcache::testing::dtypes_named;
using modcache::testing::expect_same;
using modcache::testing::flat_of;
using modcache::testing::matrix_of;
using modcache::testing::with_number;

const at::Device kOnCpu{at::kCPU};
const at::Device kMeta{at::kMeta};  // stands in for an accelerator

// Rows as a tier finds them: in memory, or to be read.
class Rows {
 public:
  enum class Where { kInMemory, kToBeRead, kEncoded };

  void add(std::size_t row, std::shared_ptr<const RowValue> value, Where where) {
    StoredRow stored;
    stored.row = row;
    if (where == Where::kInMemory) {
      stored.layout = &value->layout();
      stored.bytes = value->bytes();
      values_.push_back(std::move(value));
    } else {
      cache::Written written = value->write(where == Where::kEncoded ? Codec::kZstd : Codec::kNone);
      layouts_.push_back(Layout::decode(written.header).value());
      stored.layout = layouts_.back().get();
      stored.index = payloads_.size();
      stored.stored_size_bytes = written.payload.size_bytes;
      payloads_.emplace_back(written.payload.view());
    }
    rows_.push_back(stored);
  }
  void fail(std::size_t index) { failing_ = index; }

  std::vector<RowsOutput::Failure> add_to(RowsOutput& output) const {
    return output.add_stored(rows_, [this](std::size_t index, void* target) {
      if (index == failing_) return Status::corruption("checksum");
      std::memcpy(target, payloads_[index].data(), payloads_[index].size());
      return Status::ok();
    });
  }

 private:
  std::vector<StoredRow> rows_;
  std::vector<std::shared_ptr<const RowValue>> values_;
  std::vector<LayoutPtr> layouts_;
  std::vector<std::string> payloads_;
  std::size_t failing_ = ~std::size_t{0};
};
using Where = Rows::Where;

class RowsOutputTest : public ::testing::TestWithParam<Where> {
 protected:
  Rows stored(const std::vector<std::pair<std::size_t, std::shared_ptr<const RowValue>>>& rows) {
    Rows stored;
    for (const auto& [row, value] : rows) stored.add(row, value, GetParam());
    return stored;
  }
};
INSTANTIATE_TEST_SUITE_P(Where, RowsOutputTest,
                         ::testing::Values(Where::kInMemory, Where::kToBeRead, Where::kEncoded));

TEST_P(RowsOutputTest, stored_rows_of_every_dtype_come_back_in_order_bit_for_bit) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor batch = matrix_of(dtype);
    const auto rows = cut(batch);
    RowsOutput output(4);
    const auto failures =
        stored({{2, rows[2]}, {0, rows[0]}, {3, rows[3]}, {1, rows[1]}}).add_to(output);
    EXPECT_TRUE(failures.empty());
    const auto together = output.together(kOnCpu);
    ASSERT_TRUE(together.has_value());
    EXPECT_TRUE(together->is_lone_tensor());
    expect_same(together->tensors[0], batch);
  }
}

TEST_P(RowsOutputTest, rows_without_dimensions_or_elements_make_a_batch_too) {
  for (const at::Tensor& batch : {at::arange(3), at::ones({3, 0}), at::ones({3, 1, 2})}) {
    const auto rows = cut(batch);
    RowsOutput output(3);
    stored({{0, rows[0]}, {1, rows[1]}, {2, rows[2]}}).add_to(output);
    expect_same(output.together(kOnCpu)->tensors[0], batch);
  }
}

TEST_P(RowsOutputTest, several_tensors_per_row_with_their_plain_values) {
  Flat batch = flat_of(
      {at::arange(6, at::kByte).view({2, 3}), at::randn({2, 40}), at::arange(2), at::ones({2, 0})});
  const auto rows = cut(batch);
  RowsOutput output(2);
  stored({{1, rows[1]}, {0, rows[0]}}).add_to(output);
  const auto together = output.together(kOnCpu);
  ASSERT_TRUE(together.has_value());
  EXPECT_EQ(together->root, batch.root);
  for (std::size_t i = 0; i < 4; ++i) expect_same(together->tensors[i], batch.tensors[i]);
}

TEST_P(RowsOutputTest, stored_and_computed_rows_mix_in_any_order) {
  const at::Tensor batch = at::randn({5, 3});
  const auto rows = cut(batch);
  RowsOutput output(5);
  stored({{3, rows[3]}, {0, rows[0]}}).add_to(output);
  output.add_computed({1}, flat_of({select_rows(batch, {1})}));
  output.add_computed({2, 4}, flat_of({select_rows(batch, {2, 4}).t().contiguous().t()}));
  const auto together = output.together(kOnCpu);
  ASSERT_TRUE(together.has_value());
  expect_same(together->tensors[0], batch);
  EXPECT_TRUE(together->tensors[0].is_contiguous());
}

TEST_P(RowsOutputTest, repeated_keys_give_the_row_again_stored_or_computed) {
  const auto rows = cut(at::arange(4).view({2, 2}));
  RowsOutput output(5);
  stored({{1, rows[1]}}).add_to(output);
  output.add_computed({0}, flat_of({at::full({1, 2}, 7, at::kLong)}));
  output.repeat(2, 0);
  output.repeat(3, 1);
  output.repeat(4, 1);
  expect_same(output.together(kOnCpu)->tensors[0],
              at::tensor({7, 7, 2, 3, 7, 7, 2, 3, 2, 3}, at::kLong).view({5, 2}));
  RowsOutput all_stored(3);
  stored({{0, rows[1]}}).add_to(all_stored);
  all_stored.repeat(1, 0);
  all_stored.repeat(2, 0);
  expect_same(all_stored.together(kOnCpu)->tensors[0],
              at::tensor({2, 3, 2, 3, 2, 3}, at::kLong).view({3, 2}));
}

TEST_P(RowsOutputTest, rows_stored_under_other_settings_of_dtype_keep_what_each_was_stored_as) {
  const at::Tensor batch = at::full({3, 2}, 1.0 / 3);
  const auto kept = cut(flat_of({batch}), StoredDtype::kKeep)[0];
  const auto half = cut(flat_of({batch}), StoredDtype::kFloat16)[1];
  const auto brain = cut(flat_of({batch}), StoredDtype::kBfloat16)[2];
  const auto expected = [&](at::ScalarType dtype) {
    return at::full({2}, 1.0 / 3).to(dtype).to(at::kFloat);
  };
  const std::map<std::size_t, at::Tensor> of_row{
      {0, expected(at::kFloat)}, {1, expected(at::kHalf)}, {2, expected(at::kBFloat16)}};
  const std::map<std::size_t, std::shared_ptr<const RowValue>> row{
      {0, kept}, {1, half}, {2, brain}};
  for (const auto& order : std::vector<std::vector<std::size_t>>{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}}) {
    RowsOutput at_once(3);
    stored(
        {{order[0], row.at(order[0])}, {order[1], row.at(order[1])}, {order[2], row.at(order[2])}})
        .add_to(at_once);
    RowsOutput one_by_one(3);
    for (const std::size_t i : order) stored({{i, row.at(i)}}).add_to(one_by_one);
    for (RowsOutput* output : {&at_once, &one_by_one}) {
      const auto together = output->together(kOnCpu);
      ASSERT_TRUE(together.has_value());
      for (const auto& [i, tensor] : of_row) {
        expect_same(together->tensors[0].select(0, static_cast<std::int64_t>(i)), tensor);
      }
    }
  }
}

TEST_P(RowsOutputTest, a_row_kept_wide_since_it_would_overflow_does_not_among_narrow_ones) {
  const auto half = cut(flat_of({at::ones({1, 2}), at::ones({1})}), StoredDtype::kFloat16)[0];
  const auto wide = cut(flat_of({at::full({1, 2}, 1e6), at::ones({1})}), StoredDtype::kFloat16)[0];
  RowsOutput output(3);
  stored({{0, half}, {1, wide}}).add_to(output);
  output.add_computed({2}, flat_of({at::full({1, 2}, 1e7), at::ones({1})}));
  const auto together = output.together(kOnCpu);
  ASSERT_TRUE(together.has_value());
  expect_same(together->tensors[0],
              at::tensor({1.0, 1.0, 1e6, 1e6, 1e7, 1e7}, at::kFloat).view({3, 2}));
  expect_same(together->tensors[1], at::ones({3}));
}

TEST_P(RowsOutputTest, narrow_rows_come_back_wide_beside_computed_ones) {
  const at::Tensor third = at::full({1, 2}, 1.0 / 3);
  RowsOutput output(2);
  stored({{0, cut(flat_of({third}), StoredDtype::kBfloat16)[0]}}).add_to(output);
  output.add_computed({1}, flat_of({third}));
  const at::Tensor together = output.together(kOnCpu)->tensors[0];
  expect_same(together.slice(0, 0, 1), third.to(at::kBFloat16).to(at::kFloat));
  expect_same(together.slice(0, 1, 2), third);
}

TEST_P(RowsOutputTest, ragged_rows_come_apart) {
  const auto two = cut(at::arange(4).view({2, 2}));
  const auto three = cut(at::arange(6).view({2, 3}));
  RowsOutput output(5);
  EXPECT_TRUE(stored({{1, two[1]}, {0, three[0]}}).add_to(output).empty());
  output.add_computed({2, 4}, flat_of({at::ones({2, 2}, at::kLong)}));
  output.repeat(3, 0);
  EXPECT_FALSE(output.together(kOnCpu).has_value());
  const auto rows = output.apart(kOnCpu);
  ASSERT_EQ(rows.size(), 5u);
  expect_same(rows[0].tensors[0], at::tensor({0, 1, 2}, at::kLong));
  expect_same(rows[1].tensors[0], at::tensor({2, 3}, at::kLong));
  expect_same(rows[2].tensors[0], at::ones({2}, at::kLong));
  expect_same(rows[3].tensors[0], at::tensor({0, 1, 2}, at::kLong));
  expect_same(rows[4].tensors[0], at::ones({2}, at::kLong));
  rows[3].tensors[0].fill_(9);
  expect_same(rows[0].tensors[0], at::tensor({0, 1, 2}, at::kLong));
}

TEST_P(RowsOutputTest, ragged_rows_of_every_dtype_come_apart) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor batch = matrix_of(dtype);
    RowsOutput output(4);
    stored({{0, cut(batch)[0]}, {1, cut(batch.slice(1, 0, 2))[1]}}).add_to(output);
    output.repeat(2, 0);
    output.repeat(3, 1);
    EXPECT_FALSE(output.together(kOnCpu).has_value());
    const auto rows = output.apart(kOnCpu);
    expect_same(rows[0].tensors[0], batch.select(0, 0));
    expect_same(rows[1].tensors[0], batch.select(0, 1).slice(0, 0, 2));
    expect_same(rows[2].tensors[0], batch.select(0, 0));
    expect_same(rows[3].tensors[0], batch.select(0, 1).slice(0, 0, 2));
  }
}

TEST_P(RowsOutputTest, rows_with_other_plain_values_come_apart) {
  const at::Tensor x = at::ones({1, 2});
  const auto is_together = [&](const Flat& a, const Flat& b) {
    RowsOutput both_stored(2);
    stored({{0, cut(a)[0]}, {1, cut(b)[0]}}).add_to(both_stored);
    RowsOutput mixed(2);
    stored({{1, cut(b)[0]}}).add_to(mixed);
    mixed.add_computed({0}, a);
    const bool is_so = both_stored.together(kOnCpu).has_value();
    EXPECT_EQ(mixed.together(kOnCpu).has_value(), is_so);
    return is_so;
  };
  EXPECT_TRUE(is_together(flat_of({x}), flat_of({x})));
  EXPECT_TRUE(is_together(with_number(x, 1), with_number(x, 1)));
  EXPECT_FALSE(is_together(with_number(x, 1), with_number(x, 2)));
  RowsOutput output(2);
  stored({{0, cut(with_number(x, 1))[0]}, {1, cut(with_number(x, 2))[0]}}).add_to(output);
  ASSERT_FALSE(output.together(kOnCpu).has_value());
  EXPECT_EQ(output.apart(kOnCpu)[1].root.children[1].integer, 2);
}

TEST(RowsOutputFailureTest, a_row_that_cannot_be_read_is_named_and_is_computed_instead) {
  for (const Where where : {Where::kToBeRead, Where::kEncoded}) {
    const auto rows = cut(at::zeros({3, 100}, at::kLong));
    for (std::size_t failing = 0; failing < 3; ++failing) {
      Rows stored;
      for (std::size_t i = 0; i < 3; ++i) stored.add(2 - i, rows[i], where);
      stored.fail(failing);
      RowsOutput output(3);
      const auto failures = stored.add_to(output);
      ASSERT_EQ(failures.size(), 1u);
      EXPECT_EQ(failures[0].place, failing);
      EXPECT_EQ(failures[0].status.code(), StatusCode::kCorruption);
      output.add_computed({static_cast<std::int64_t>(2 - failing)},
                          flat_of({at::zeros({1, 100}, at::kLong)}));
      expect_same(output.together(kOnCpu)->tensors[0], at::zeros({3, 100}, at::kLong));
    }
  }
}

TEST(RowsOutputFailureTest, a_broken_row_of_another_shape_does_not_drive_the_others_apart) {
  Rows stored;
  stored.add(0, cut(at::ones({1, 9}))[0], Where::kToBeRead);
  stored.add(1, cut(at::ones({1, 2}))[0], Where::kToBeRead);
  stored.fail(0);
  RowsOutput output(2);
  EXPECT_EQ(stored.add_to(output).size(), 1u);
  output.add_computed({0}, flat_of({at::zeros({1, 2})}));
  const auto together = output.together(kOnCpu);
  ASSERT_TRUE(together.has_value());
  expect_same(together->tensors[0], at::tensor({0.0, 0.0, 1.0, 1.0}, at::kFloat).view({2, 2}));
}

TEST(RowsOutputFailureTest, when_no_row_can_be_read_all_are_computed) {
  Rows stored;
  stored.add(0, cut(at::ones({1, 9}))[0], Where::kToBeRead);
  stored.fail(0);
  RowsOutput output(2);
  EXPECT_EQ(stored.add_to(output).size(), 1u);
  output.add_computed({0, 1}, flat_of({at::zeros({2, 2})}));
  expect_same(output.together(kOnCpu)->tensors[0], at::zeros({2, 2}));
}

TEST(RowsOutputFailureTest, a_header_with_sizes_that_torch_refuses_is_a_failure_and_no_exception) {
  ValueHeader header;
  header.tensors.resize(1);
  header.tensors[0].dtype = header.tensors[0].stored_dtype = static_cast<std::uint8_t>(at::kFloat);
  header.tensors[0].sizes = {0, std::int64_t{1} << 62, std::int64_t{1} << 62};
  EXPECT_EQ(Layout::of(header).status().code(), StatusCode::kCorruption);
  // These overflow in a batch of two.
  header.tensors[0].sizes = {0, std::int64_t{1} << 58};
  const LayoutPtr layout = Layout::of(header).value();
  const auto good = cut(at::ones({1, 1, 2}))[0];
  const std::byte none{};
  for (const bool comes_first : {true, false}) {
    std::vector<StoredRow> rows{{0, layout.get(), &none, 0, 0},
                                {1, &good->layout(), good->bytes(), 0, 0}};
    if (!comes_first) std::swap(rows[0], rows[1]);
    RowsOutput output(2);
    const auto failures = output.add_stored(rows, [](std::size_t, void*) { return Status::ok(); });
    // By itself it is no more than a row without elements.
    ASSERT_EQ(failures.size(), comes_first ? 1u : 0u);
    for (const auto& failure : failures) {
      EXPECT_EQ(failure.status.code(), StatusCode::kCorruption);
    }
  }
}

TEST(RowsOutputComputedTest, one_run_for_all_rows_is_handed_on_as_it_is) {
  const at::Tensor batch = at::ones({2, 2}).requires_grad_() * 2;
  RowsOutput output(2);
  output.add_computed({0, 1}, flat_of({batch}));
  EXPECT_TRUE(output.together(kOnCpu)->tensors[0].is_same(batch));
  RowsOutput sparse(2);
  sparse.add_computed({0, 1}, flat_of({at::ones({2, 2}).to_sparse()}));
  EXPECT_TRUE(sparse.together(kOnCpu).has_value());
}

TEST(RowsOutputComputedTest, a_graph_goes_through_the_rows_that_were_computed) {
  const at::Tensor weight = at::ones({2}).requires_grad_();
  Rows stored;
  stored.add(1, cut(at::full({1, 2}, 5.0))[0], Where::kInMemory);
  RowsOutput output(4);
  stored.add_to(output);
  output.add_computed({0, 2}, flat_of({at::ones({2, 2}) * weight}));
  output.repeat(3, 2);
  const at::Tensor together = output.together(kOnCpu)->tensors[0];
  EXPECT_TRUE(
      at::equal(together.detach().select(1, 0), at::tensor({1.0, 5.0, 1.0, 1.0}, at::kFloat)));
  together.sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({2}, 3.0)));
}

TEST(RowsOutputComputedTest, views_and_conjugates_are_put_together_as_what_they_show) {
  const at::Tensor complex = at::randn({2, 3}, at::kComplexFloat);
  const at::ScalarType narrowest = dtypes_named({"uint8", "uint4"}).back();
  for (const at::Tensor& rows :
       {complex.conj(), at::arange(6).view({3, 2}).t(), at::ones({1, 3}).expand({2, 3}),
        at::_efficientzerotensor({2, 3}), matrix_of(narrowest, 2).slice(1, 0, 3, 2)}) {
    RowsOutput output(3);
    output.add_computed({2, 0}, flat_of({rows}));
    output.repeat(1, 0);
    const at::Tensor together = output.together(kOnCpu)->tensors[0];
    const at::Tensor shown = copy_to_store(rows, StoredDtype::kKeep);
    expect_same(together.select(0, 2), shown.select(0, 0));
    expect_same(together.select(0, 0), shown.select(0, 1));
    expect_same(together.select(0, 1), shown.select(0, 1));
  }
}

TEST(RowsOutputDeviceTest, stored_rows_follow_the_input_if_they_lay_beside_it) {
  const auto stored = [](std::optional<at::Device> input) {
    Rows rows;
    rows.add(0, cut(flat_of({at::ones({1, 2})}), StoredDtype::kKeep, input)[0], Where::kInMemory);
    return rows;
  };
  const auto hit = [&](std::optional<at::Device> then, std::optional<at::Device> now) {
    RowsOutput output(1);
    stored(then).add_to(output);
    return output.together(now)->tensors[0].device();
  };
  EXPECT_EQ(hit(kOnCpu, kMeta), kMeta);
  EXPECT_EQ(hit(kOnCpu, kOnCpu), kOnCpu);
  EXPECT_EQ(hit(kMeta, kMeta), kOnCpu) << "it lay elsewhere than its input";
  EXPECT_EQ(hit(kOnCpu, std::nullopt), kOnCpu);
}

TEST(RowsOutputThreadsTest, a_large_batch_is_put_together_by_several_threads) {
  const at::Tensor batch = at::randn({64, 1 << 16});  // 16 MiB
  const auto rows = cut(batch);
  Rows stored;
  for (std::size_t i = 0; i < 64; ++i) {
    stored.add(63 - i, rows[63 - i], static_cast<Where>(i % 3));
  }
  RowsOutput output(64);
  EXPECT_TRUE(stored.add_to(output).empty());
  EXPECT_TRUE(at::equal(output.together(kOnCpu)->tensors[0], batch));
}

}  // namespace
}  // namespace modcache::tensor
