// SPDX-License-Identifier: Apache-2.0
#include "tensor/input_sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace modcache::tensor {
namespace {

bool never_on_host(const at::Tensor&) { return false; }

std::string sample_of(const std::vector<at::Tensor>& tensors, std::size_t row = 0,
                      Per per = Per::kRow,
                      InputSampler::IsOnHost on_host = InputSampler::is_on_host) {
  const InputSampler sampler(tensors, per, on_host);
  return std::string(sampler.measure(row).sample().bytes());
}

std::vector<at::Tensor> inputs() {
  return {at::randn({5, 7}),
          at::randn({5, 3, 8, 8}),
          at::randn({5, 40000}),
          at::randn({5, 3, 50, 50}).to(at::MemoryFormat::ChannelsLast),
          at::randn({40, 5}).t(),
          at::randn({5, 300}).to(at::kHalf),
          at::randn({5, 300}).to(at::kBFloat16),
          at::randn({5, 300}).to(at::kFloat8_e4m3fn),
          at::randn({5, 9000}, at::kDouble),
          at::randn({5, 40}, at::kComplexFloat),
          at::randint(1000, {5, 12}, at::kLong),
          at::randint(1000, {900, 5}, at::kLong).t(),
          at::randint(255, {5, 20000}, at::kByte),
          at::randn({5, 33}) > 0};
}

TEST(InputSamplerTest, ARowHasTheSampleThatItHasAlone) {
  for (const at::Tensor& input : inputs()) {
    for (std::int64_t row = 0; row < 5; ++row) {
      EXPECT_EQ(sample_of({input}, static_cast<std::size_t>(row)),
                sample_of({input.slice(0, row, row + 1).clone()}));
    }
  }
}

TEST(InputSamplerTest, OtherRowsHaveOtherSamples) {
  for (const at::Tensor& input : inputs()) {
    EXPECT_NE(sample_of({input}, 0), sample_of({input}, 1)) << input.sizes() << input.dtype();
  }
}

TEST(InputSamplerTest, StridesDoNotCount) {
  for (const at::Tensor& input : inputs()) {
    EXPECT_EQ(sample_of({input}, 2), sample_of({input.contiguous()}, 2)) << input.sizes();
    EXPECT_EQ(sample_of({input}, 0, Per::kCall), sample_of({input.contiguous()}, 0, Per::kCall));
  }
  const at::Tensor row = at::randn({1, 300});
  EXPECT_EQ(sample_of({row.expand({5, 300})}, 3), sample_of({row}));
}

TEST(InputSamplerTest, EveryElementOfAShortRowCounts) {
  for (const at::Tensor& input :
       {at::zeros({1, 7}), at::zeros({1, 1024}), at::zeros({1, 1023}, at::kHalf),
        at::zeros({1, 1024}, at::kLong), at::zeros({1, 8191}, at::kByte)}) {
    const std::string sample = sample_of({input});
    for (std::int64_t i = 0; i < input.size(1); ++i) {
      const at::Tensor other = input.clone();
      other[0][i] = 1;
      EXPECT_NE(sample_of({other}), sample) << i << " of " << input.sizes() << input.dtype();
    }
  }
}

TEST(InputSamplerTest, FloatsOfAllSizesAreSummedAsTheNumbersTheyAre) {
  const at::Tensor numbers = at::randn({1, 300});
  numbers[0][3] = 3e-6;  // subnormal in float16
  numbers[0][7] = std::numeric_limits<float>::infinity();
  numbers[0][8] = -std::numeric_limits<float>::infinity();
  numbers[0][9] = std::numeric_limits<float>::quiet_NaN();
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
    const at::Tensor input = numbers.to(dtype);
    EXPECT_EQ(sample_of({input}), sample_of({input.to(at::kFloat)})) << dtype;
  }
}

TEST(InputSamplerTest, AnInputOnADeviceHasTheSampleThatItHasOnTheHost) {
  for (const at::Tensor& input : inputs()) {
    EXPECT_EQ(sample_of({input}, 3), sample_of({input}, 3, Per::kRow, never_on_host))
        << input.sizes() << input.dtype();
    EXPECT_EQ(sample_of({input}, 0, Per::kCall), sample_of({input}, 0, Per::kCall, never_on_host));
  }
  const std::vector<at::Tensor> one{at::ones(1)};
  const std::vector<at::Tensor> none{at::ones({2, 0})};
  EXPECT_TRUE(InputSampler(one, Per::kCall, never_on_host).is_costly());
  EXPECT_FALSE(InputSampler(one, Per::kCall).is_costly());
  EXPECT_FALSE(InputSampler(none, Per::kRow, never_on_host).is_costly());
}

TEST(InputSamplerTest, AValidPartHasTheSampleOfAnUnpaddedRow) {
  const at::Tensor ids = at::randint(1000, {2, 12}, at::kLong);
  const at::Tensor features = at::randn({2, 12, 4});
  const RowPadding padding =
      RowPadding::of_lengths(at::tensor({5, 12}, at::kLong), /*longest=*/12, /*value=*/0);
  const std::vector<at::Tensor> tensors{ids, features};
  const InputSampler sampler(tensors, {1, 1}, padding);
  EXPECT_EQ(sampler.measure(0).sample().bytes(),
            sample_of({ids.slice(1, 0, 5), features.slice(1, 0, 5)}, 0));
  EXPECT_EQ(sampler.measure(1).sample().bytes(), sample_of({ids, features}, 1));
}

TEST(InputSamplerTest, SeveralTensorsShareTheSample) {
  const at::Tensor x = at::randn({2, 100});
  const at::Tensor mask = at::ones({2, 100}, at::kLong);
  const std::string both = sample_of({x, mask});
  EXPECT_LE(both.size(), cache::InputSample::kMaxBytes);
  EXPECT_NE(both, sample_of({x + 1, mask}));
  EXPECT_NE(both, sample_of({x, mask * 2}));
  EXPECT_NE(sample_of({mask, mask * 2}), sample_of({mask * 2, mask}));
  const std::vector<at::Tensor> many(40, x);
  EXPECT_EQ(sample_of(many).size(), cache::InputSample::kMaxBytes);
}

TEST(InputSamplerTest, AnInputWithoutElementsHasNoSample) {
  EXPECT_EQ(sample_of({}), "");
  EXPECT_EQ(sample_of({at::ones({3, 0})}), "");
  EXPECT_NE(sample_of({at::ones({})}, 0, Per::kCall), "");
}

TEST(InputSamplerTest, LazyViewsAreReadAsTheValuesTheyShow) {
  const at::Tensor z = at::randn({2, 10}, at::kComplexFloat);
  EXPECT_EQ(sample_of({z.conj()}), sample_of({z.conj().resolve_conj()}));
  const at::Tensor imaginary = at::imag(z.conj());
  EXPECT_EQ(sample_of({imaginary}), sample_of({imaginary.resolve_neg()}));
  EXPECT_EQ(sample_of({at::_efficientzerotensor({2, 10})}), sample_of({at::zeros({2, 10})}));
}

}  // namespace
}  // namespace modcache::tensor
