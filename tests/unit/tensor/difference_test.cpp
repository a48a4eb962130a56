// SPDX-License-Identifier: Apache-2.0
#include "tensor/difference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "support/value_tensors.h"

namespace modcache::tensor {
namespace {

using at::IValue;
using testing::dtypes_named;
using testing::tuple_of;

std::string between(const at::Tensor& fresh, const at::Tensor& stored, Tolerance tolerance = {}) {
  return difference(flatten(IValue(fresh)), flatten(IValue(stored)), tolerance);
}
at::Tensor doubles(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(DifferenceTest, numbers_may_differ_by_the_tolerance_times_the_largest_of_their_tensor) {
  const at::Tensor stored = doubles({100, 1, 0});
  EXPECT_EQ(between(stored, stored), "");
  EXPECT_EQ(between(doubles({100, 1, 0.09}), stored, {0.001}), "");
  EXPECT_NE(between(doubles({100, 1, 0.11}), stored, {0.001}), "");
  EXPECT_NE(between(doubles({100, 1, 1e-300}), stored), "");
  EXPECT_EQ(between(doubles({100, 1, 0.11}), stored, {0.001, 0.02}), "");
  EXPECT_EQ(between(doubles({0.01}), doubles({0}), {0.5, 0.01}), "");
  EXPECT_NE(between(doubles({0.01}), doubles({0}), {0.5}), "");
  EXPECT_NE(between(doubles({1e308}), doubles({-1e308}), {0.1}), "");
}

TEST(DifferenceTest, nan_is_nan_and_an_infinity_is_the_same_infinity) {
  EXPECT_EQ(between(doubles({kNan, kInfinity, -kInfinity}), doubles({kNan, kInfinity, -kInfinity})),
            "");
  for (const auto& [fresh, stored] : std::vector<std::pair<double, double>>{{kNan, 1},
                                                                            {1, kNan},
                                                                            {kInfinity, 1},
                                                                            {1, kInfinity},
                                                                            {kInfinity, -kInfinity},
                                                                            {kNan, kInfinity}}) {
    EXPECT_NE(between(doubles({fresh, 1}), doubles({stored, 1}), {1e9, 1e9}), "");
  }
  EXPECT_NE(between(doubles({kInfinity, 1}), doubles({kInfinity, 2}), {0.1}), "")
      << "an infinity is not the largest number";
}

TEST(DifferenceTest, integers_and_bools_have_no_tolerance) {
  for (const at::ScalarType dtype : dtypes_named({"uint8", "int64", "uint16", "uint64", "bool"})) {
    const at::Tensor ones = at::ones({3}).to(dtype);
    EXPECT_EQ(between(ones, ones.clone()), "") << dtype;
    EXPECT_NE(between(ones, at::zeros({3}).to(dtype), {10, 10}), "") << dtype;
  }
  const at::Tensor large = at::full({1}, std::int64_t{1} << 60, at::kLong);
  EXPECT_NE(between(large, large + 1), "") << "equal as doubles";
}

TEST(DifferenceTest, every_dtype_can_be_compared) {
  for (const at::ScalarType dtype :
       dtypes_named({"float16", "bfloat16", "complex32", "complex64", "complex128", "float8_e4m3fn",
                     "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2", "uint4", "int1"})) {
    const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
    const at::Tensor zeros = at::zeros({2 * size}, at::kByte).view(dtype);
    const at::Tensor other = at::full({2 * size}, 0x11, at::kByte).view(dtype);
    EXPECT_EQ(between(zeros, at::zeros({2 * size}, at::kByte).view(dtype)), "") << dtype;
    EXPECT_NE(between(zeros, other), "") << dtype;
  }
}

TEST(DifferenceTest, another_dtype_or_shape_is_named) {
  EXPECT_NE(between(doubles({1}), doubles({1}).to(at::kFloat), {1, 1}), "");
  const std::string found = between(at::ones({2, 3}), at::ones({3, 2}), {1, 1});
  EXPECT_NE(found.find("[2, 3]"), std::string::npos) << found;
  EXPECT_NE(found.find("[3, 2]"), std::string::npos) << found;
  EXPECT_EQ(between(at::ones({0, 3}), at::ones({0, 3})), "");
  EXPECT_NE(between(at::ones({0, 3}), at::ones({3, 0})), "");
}

TEST(DifferenceTest, plain_values_and_structure_are_compared_exactly_and_all_tensors_are) {
  const IValue x = at::ones({2});
  const auto between_values = [](const IValue& a, const IValue& b) {
    return difference(flatten(a), flatten(b), {1, 1});
  };
  EXPECT_EQ(between_values(tuple_of({x, 0.5, "a"}), tuple_of({x, 0.5, "a"})), "");
  EXPECT_NE(between_values(tuple_of({x, 0.5}), tuple_of({x, 0.25})), "");
  EXPECT_NE(between_values(tuple_of({x}), tuple_of({x, x})), "");
  EXPECT_NE(between_values(tuple_of({x}), x), "");
  EXPECT_NE(between_values(tuple_of({x, x}), tuple_of({x, at::full({2}, 9)})), "");
}

}  // namespace
}  // namespace modcache::tensor
