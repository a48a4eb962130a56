// SPDX-License-Identifier: Apache-2.0
#include "tensor/input_sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace modcache::tensor {
namespace {

bool never_on_host(const at::Tensor&) { return false; }

std::string sample_of(const std::vector<at::Tensor>& tensors, std::size_t row = 0,
                      Per per = Per::kRow,
                      InputSampler::IsOnHost on_host = InputSampler::is_on_host) {
  const InputSampler sampler(tensors, per, on_host);
  cache::MeasuredInput measured;
  return sampler.measure(row, measured) ? std::string(measured.sample().bytes()) : std::string();
}

std::vector<at::Tensor> inputs() {
  return {at::randn({5, 7}),
          at::randn({5, 3, 8, 8}),
          at::randn({5, 40000}),
          at::randn({5, 3, 50, 50}).to(at::MemoryFormat::ChannelsLast),
          at::randn({40, 5}).t(),
          at::randn({5, 300}).to(at::kHalf),
          at::randn({5, 300}).to(at::kBFloat16),
          at::randn({5, 9000}, at::kDouble),
          at::randn({5, 40}, at::kComplexFloat),
          at::randint(1000, {5, 12}, at::kLong),
          at::randint(255, {5, 20000}, at::kByte),
          at::randn({5, 33}) > 0};
}

TEST(InputSamplerTest, a_row_has_the_sample_that_it_has_alone) {
  for (const at::Tensor& input : inputs()) {
    for (std::int64_t row = 0; row < 5; ++row) {
      EXPECT_EQ(sample_of({input}, static_cast<std::size_t>(row)),
                sample_of({input.slice(0, row, row + 1).clone()}));
    }
  }
}

TEST(InputSamplerTest, other_rows_have_other_samples) {
  for (const at::Tensor& input : inputs()) {
    EXPECT_NE(sample_of({input}, 0), sample_of({input}, 1)) << input.sizes() << input.dtype();
  }
}

TEST(InputSamplerTest, strides_do_not_count) {
  for (const at::Tensor& input : inputs()) {
    EXPECT_EQ(sample_of({input}, 2), sample_of({input.contiguous()}, 2)) << input.sizes();
    EXPECT_EQ(sample_of({input}, 0, Per::kCall), sample_of({input.contiguous()}, 0, Per::kCall));
  }
}

TEST(InputSamplerTest, what_lies_on_a_device_is_gathered_there_and_has_the_same_sample) {
  for (const at::Tensor& input : inputs()) {
    EXPECT_EQ(sample_of({input}, 3), sample_of({input}, 3, Per::kRow, never_on_host))
        << input.sizes() << input.dtype();
    EXPECT_EQ(sample_of({input}, 0, Per::kCall), sample_of({input}, 0, Per::kCall, never_on_host));
  }
  EXPECT_TRUE(InputSampler({at::ones(1)}, Per::kCall, never_on_host).is_costly());
  EXPECT_FALSE(InputSampler({at::ones(1)}, Per::kCall).is_costly());
  EXPECT_FALSE(InputSampler({at::ones({2, 0})}, Per::kRow, never_on_host).is_costly());
}

TEST(InputSamplerTest, several_tensors_share_the_sample) {
  const at::Tensor x = at::randn({2, 100});
  const at::Tensor mask = at::ones({2, 100}, at::kLong);
  const std::string both = sample_of({x, mask});
  EXPECT_LE(both.size(), cache::InputSample::kMostBytes);
  EXPECT_NE(both, sample_of({x + 1, mask}));
  EXPECT_NE(both, sample_of({x, mask * 2}));
  const std::vector<at::Tensor> many(40, x);
  EXPECT_LE(sample_of(many).size(), cache::InputSample::kMostBytes);
}

TEST(InputSamplerTest, what_has_no_element_has_no_sample) {
  EXPECT_EQ(sample_of({}), "");
  EXPECT_EQ(sample_of({at::ones({3, 0})}), "");
  EXPECT_NE(sample_of({at::ones({})}, 0, Per::kCall), "");
}

TEST(InputSamplerTest, a_negated_or_conjugated_view_is_read_as_what_it_shows) {
  const at::Tensor z = at::randn({2, 10}, at::kComplexFloat);
  EXPECT_EQ(sample_of({z.conj()}), sample_of({z.conj().resolve_conj()}));
  const at::Tensor imaginary = at::imag(z.conj());
  EXPECT_EQ(sample_of({imaginary}), sample_of({imaginary.resolve_neg()}));
}

}  // namespace
}  // namespace modcache::tensor
