// SPDX-License-Identifier: Apache-2.0
#include "module/code/plain_value.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <set>
#include <string>

namespace modcache::module {
namespace {

using ::testing::HasSubstr;

PlainValue written(const at::IValue& value) {
  PlainValue plain;
  append_plain_value(value, plain);
  return plain;
}

TEST(PlainValueTest, writes_different_values_as_different_bytes) {
  const at::IValue values[] = {
      {},
      true,
      false,
      std::int64_t{1},
      1.0,
      c10::complex<double>(1, 0),
      "1",
      "",
      c10::ivalue::Tuple::create(1, 2),
      c10::ivalue::Tuple::create(c10::ivalue::Tuple::create(1), 2),
      c10::List<std::int64_t>({1, 2}),
      at::ones({1}),
  };
  std::set<std::string> bytes;
  for (const at::IValue& value : values) bytes.insert(written(value).bytes);
  EXPECT_EQ(bytes.size(), std::size(values));
}

TEST(PlainValueTest, lists_tensors_beside_the_bytes) {
  const PlainValue a = written(c10::List<at::Tensor>({at::ones({1}), at::zeros({1})}));
  const PlainValue b = written(c10::List<at::Tensor>({at::zeros({1}), at::ones({1})}));
  EXPECT_EQ(a.tensors.size(), 2u);
  EXPECT_EQ(a.bytes, b.bytes);
}

TEST(PlainValueTest, leaves_devices_out) {
  EXPECT_EQ(written(at::Device("cpu")).bytes, written(at::Device("cuda:1")).bytes);
}

TEST(PlainValueTest, says_what_cannot_be_written_down) {
  EXPECT_THAT(written(at::ones({2, 2}).to_sparse()).why_not_hashable, HasSubstr("tensor"));
  std::string why;
  constant_digest(at::ones({2, 2}).to_sparse(), why);
  EXPECT_THAT(why, HasSubstr("a constant of the code is a tensor"));
}

TEST(PlainValueTest, makes_a_digest_of_contents) {
  std::string why;
  EXPECT_EQ(constant_digest(at::ones({2}), why), constant_digest(at::ones({2}), why));
  EXPECT_NE(constant_digest(at::ones({2}), why), constant_digest(at::zeros({2}), why));
  EXPECT_EQ(why, "");
}

}  // namespace
}  // namespace modcache::module
