// SPDX-License-Identifier: Apache-2.0
#include "tensor/stored_format.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cache/entry_header.h"
#include "fs/posix_file_system.h"
#include "store/store.h"
#include "support/temporary_directory.h"
#include "support/whole_values.h"

namespace modcache::tensor {
namespace {

using cache::StoredDtype;
using codec::Codec;
using testing::all_dtypes;
using testing::expect_same;
using testing::flat_of;
using testing::matrix_of;
using testing::read_stored;
using testing::value_of;
using testing::written_and_read;

const at::Device kHere{at::kCPU};

// Entries in a directory, as the disk tier finds them.
class Directory {
 public:
  Directory() {
    store::StoreOptions options;
    options.directory = directory_ / "cache";
    store_ = store::Store::open(fs::posix_file_system(), std::move(options)).value();
  }
  cache::FoundRows found(std::string_view value_header, std::string payload) {
    const store::Context context{{1, 2}, "scope", "description"};
    EXPECT_TRUE(store_
                    ->put({{context, "key"},
                           cache::pack_header("", value_header),
                           share_bytes(std::move(payload)),
                           0})
                    .is_ok());
    return cache::FoundRows(store_->find_all(context, {"key"}), 0);
  }

 private:
  testing::TemporaryDirectory directory_;
  std::unique_ptr<store::Store> store_;
};

TEST(StoredFormatTest, reads_back_every_dtype_and_shape_bit_for_bit) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const at::Tensor matrix = matrix_of(dtype);
    for (const at::Tensor& original :
         {matrix, matrix.select(0, 1).select(0, 2), matrix.slice(0, 2, 2), matrix.t(),
          matrix.slice(0, 0, 1).expand({2, 3}), matrix.slice(1, 0, 3, 2)}) {
      for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
        const auto value = value_of(original);
        expect_same(value->hand_out_tensor(kHere), original);
        const auto again = written_and_read(*value, codec);
        ASSERT_TRUE(again->is_lone_tensor());
        expect_same(again->hand_out_tensor(kHere), original);
        EXPECT_EQ(again->write(Codec::kNone).header, value->write(Codec::kNone).header);
      }
    }
  }
}

TEST(StoredFormatTest, conjugated_negated_and_zero_tensors_are_read_back_as_what_they_show) {
  const at::Tensor complex = at::randn({3}, at::kComplexFloat);
  for (const at::Tensor& original :
       {complex.conj(), at::imag(complex.conj()), complex.to(at::kComplexHalf).conj()}) {
    const at::Tensor shown = original.resolve_conj().resolve_neg();
    expect_same(written_and_read(*value_of(original))->hand_out_tensor(kHere), shown);
  }
  expect_same(written_and_read(*value_of(at::_efficientzerotensor({3})))->hand_out_tensor(kHere),
              at::zeros({3}));
}

TEST(StoredFormatTest, reads_back_several_tensors_with_plain_values_between_them) {
  for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
    Flat original = flat_of({at::arange(3, at::kByte), at::empty({0, 2}), at::ones({1000}),
                             at::full({}, 7, at::kLong), at::ones({2}, at::kBool)});
    original.root.children[1].kind = Node::Kind::kTensor;
    Node text;
    text.kind = Node::Kind::kString;
    text.text = "between";
    original.root.children.insert(original.root.children.begin() + 2, text);
    const auto value = WholeValue::copy_of(original, kHere, StoredDtype::kKeep);
    const auto again = written_and_read(*value, codec);
    EXPECT_EQ(again->root(), original.root);
    const auto tensors = again->hand_out(kHere);
    ASSERT_EQ(tensors.size(), original.tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) expect_same(tensors[i], original.tensors[i]);
  }
}

TEST(StoredFormatTest, reads_back_a_value_without_tensors) {
  Flat nothing;
  nothing.root.kind = Node::Kind::kNone;
  for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
    const auto value = WholeValue::copy_of(nothing, kHere, StoredDtype::kKeep);
    EXPECT_EQ(value->write(codec).payload.size_bytes, 0u);
    EXPECT_EQ(written_and_read(*value, codec)->root(), nothing.root);
  }
}

TEST(StoredFormatTest, tensors_lie_at_multiples_of_64_bytes) {
  const auto value = value_of({at::arange(3, at::kByte), at::empty({0}), at::ones({17})});
  const cache::Written written = value->write(Codec::kNone);
  EXPECT_EQ(written.payload.view().substr(0, 64), std::string("\0\1\2", 3) + std::string(61, '\0'));
}

TEST(StoredFormatTest, a_codec_is_used_where_it_makes_the_value_smaller) {
  const auto zeros = value_of(at::zeros({10'000}));
  EXPECT_LT(zeros->write(Codec::kZstd).payload.size_bytes, 4'000u);
  EXPECT_EQ(zeros->write(Codec::kNone).payload.size_bytes, 40'000u);
  expect_same(written_and_read(*zeros, Codec::kZstd)->hand_out_tensor(kHere), at::zeros({10'000}));
  const auto random = value_of(at::randint(256, {1000}, at::kByte));
  const cache::Written written = random->write(Codec::kZstd);
  EXPECT_EQ(written.payload.size_bytes, 1000u);
  EXPECT_EQ(written.header, random->write(Codec::kNone).header);
}

TEST(StoredFormatTest, the_most_that_the_codec_can_shrink_is_still_believed) {
  const at::Tensor zeros = at::zeros({8 << 20}, at::kDouble);
  const auto again = written_and_read(*value_of(zeros), Codec::kZstd);
  EXPECT_TRUE(at::equal(again->hand_out_tensor(kHere), zeros));
}

TEST(StoredFormatTest, a_value_stored_under_another_codec_setting_is_read_all_the_same) {
  const auto value = value_of(at::zeros({1000}));
  const auto read = written_and_read(*written_and_read(*value, Codec::kZstd), Codec::kNone);
  expect_same(read->hand_out_tensor(kHere), at::zeros({1000}));
}

TEST(StoredFormatTest, what_does_not_fit_together_is_corruption) {
  Directory directory;
  const auto read = [&](const TensorLayout& tensor, std::size_t payload_size_bytes,
                        Codec codec = Codec::kNone) {
    ValueHeader header;
    header.codec = static_cast<std::uint8_t>(codec);
    header.tensors = {tensor};
    const cache::FoundRows rows =
        directory.found(encode_value_header(header), std::string(payload_size_bytes, 'x'));
    return StoredFormat().read_all(cache::Form::kWhole, rows, {0}).front().status().code();
  };
  TensorLayout tensor;
  tensor.dtype = tensor.stored_dtype = static_cast<std::uint8_t>(at::kFloat);
  tensor.sizes = {2, 3};
  EXPECT_EQ(read(tensor, 24), StatusCode::kOk);
  EXPECT_EQ(read(tensor, 23), StatusCode::kCorruption);
  EXPECT_EQ(read(tensor, 25), StatusCode::kCorruption);
  EXPECT_EQ(read(tensor, 24, Codec::kZstd), StatusCode::kCorruption);
  EXPECT_NE(read(tensor, 24, static_cast<Codec>(9)), StatusCode::kOk);
  tensor.sizes = {std::int64_t{1} << 50, 4};  // believed, it would be allocated
  EXPECT_EQ(read(tensor, 24), StatusCode::kCorruption);
  EXPECT_EQ(read(tensor, 24, Codec::kZstd), StatusCode::kCorruption);
  tensor.sizes = {std::int64_t{1} << 62, 16};  // 2^68 bytes, which is 0 in 64 bits
  EXPECT_EQ(read(tensor, 0), StatusCode::kCorruption);
  tensor.sizes = {0, std::int64_t{1} << 62, std::int64_t{1} << 62};
  EXPECT_EQ(read(tensor, 0), StatusCode::kCorruption);
  tensor.sizes = {2, 3};
  constexpr int kBits8 = 21;  // which not every version of torch has
  for (const int dtype :
       {static_cast<int>(at::kQInt8), kBits8, static_cast<int>(at::ScalarType::Undefined),
        static_cast<int>(at::ScalarType::NumOptions), 255}) {
    TensorLayout other = tensor;
    other.dtype = static_cast<std::uint8_t>(dtype);
    EXPECT_EQ(read(other, 24), StatusCode::kCorruption) << dtype;
    other = tensor;
    other.stored_dtype = static_cast<std::uint8_t>(dtype);
    EXPECT_EQ(read(other, 24), StatusCode::kCorruption) << dtype;
  }
}

TEST(StoredFormatTest, a_payload_that_fails_its_check_is_no_value) {
  for (const auto& value : {value_of(at::ones({2})), value_of({at::ones({2}), at::ones({2})})}) {
    const cache::Written written = value->write(Codec::kNone);
    const std::string_view payload = written.payload.view();
    EXPECT_TRUE(read_stored(written.header, payload).is_ok());
    EXPECT_EQ(read_stored(written.header, payload, Status::corruption("checksum")).status().code(),
              StatusCode::kCorruption);
    EXPECT_EQ(read_stored("", payload).status().code(), StatusCode::kCorruption);
  }
}

}  // namespace
}  // namespace modcache::tensor
