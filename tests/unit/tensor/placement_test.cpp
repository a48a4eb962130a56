// SPDX-License-Identifier: Apache-2.0
//
// Places that every machine has. placement_device_test.cpp is for machines with an accelerator.
#include "tensor/placement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>

#include "support/value_tensors.h"

namespace modcache::tensor {
namespace {

using modcache::testing::all_dtypes;
using modcache::testing::expect_same;
using modcache::testing::matrix_of;
using ::testing::HasSubstr;

TEST(PlacementTest, the_host_is_everywhere) {
  for (const char* text : {"host", "cpu"}) {
    const auto place = parse_place(text);
    ASSERT_TRUE(place.is_ok());
    EXPECT_TRUE(place.value().is_host());
    EXPECT_EQ(place_name(place.value()), "host");
  }
}

TEST(PlacementTest, pinned_and_accelerator_are_valid_on_every_machine) {
  EXPECT_TRUE(parse_place("pinned").is_ok());
  EXPECT_TRUE(parse_place("accelerator").is_ok());
}

TEST(PlacementTest, what_this_machine_does_not_have_is_refused_with_what_it_has) {
  for (const char* text : {"", "gpu", "cuda:99", "cuda:-2", "meta", "pinned ", "cpu:0:0"}) {
    const auto place = parse_place(text);
    ASSERT_FALSE(place.is_ok()) << text;
    EXPECT_EQ(place.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(place.status().message(),
                HasSubstr("place is '" + std::string(text) + "', but must be one of: \"host\""));
  }
}

TEST(PlacementTest, pinned_tensors_have_the_dtype_and_sizes_that_were_asked_for) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor tensor = pinned_tensor({3, 0, 2}, dtype);
    EXPECT_EQ(tensor.scalar_type(), dtype);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef({3, 0, 2}));
    EXPECT_TRUE(tensor.device().is_cpu());
  }
}

TEST(PlacementTest, a_copy_on_a_device_shares_no_memory) {
  const at::Tensor tensor = at::ones({3});
  const at::Tensor copy = copy_to_device(tensor, "cpu");
  copy.zero_();
  EXPECT_TRUE(tensor.equal(at::ones({3})));
}

TEST(PlacementTest, a_device_that_fails_takes_nothing) {
  EXPECT_FALSE(copy_to_device(at::ones({3}), "cuda:99").defined());
}

}  // namespace
}  // namespace modcache::tensor
