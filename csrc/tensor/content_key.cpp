// SPDX-License-Identifier: Apache-2.0
#include "tensor/content_key.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "tensor/input.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"
#include "tensor/value_header.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "content keys are hashes of little-endian bytes");

namespace modcache::tensor {
namespace {

constexpr std::string_view kLayout("mcCT\1\0\0\0", 8);  // mark and version
constexpr const char* kCure = "; give a key of your own, such as the sample's id or file name";

// Bytes that all rows share, and then perhaps a tensor whose bytes follow them.
struct Piece {
  std::string before;
  at::Tensor tensor;  // contiguous, on the CPU; keeps `data` alive
  const std::byte* data = nullptr;
  std::size_t size_bytes = 0;  // of one row, where rows are hashed
};

at::ScalarType raw_type(std::size_t element_size_bytes) {
  switch (element_size_bytes) {
    case 1: return at::kByte;
    case 2: return at::kShort;
    case 4: return at::kInt;
    case 8: return at::kLong;
    default: return at::kComplexDouble;
  }
}

// Returns whether the storage really holds the elements: some libraries empty it for a while.
bool has_all_bytes(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor._is_zerotensor()) return true;
  const std::size_t needed_bytes = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.element_size(), tensor.storage_offset());
  return tensor.storage().nbytes() >= needed_bytes;
}

// Returns the elements in row-major order on the CPU. The dtype of the result may be another one.
at::Tensor dense_bytes(const at::Tensor& tensor) {
  if (tensor.is_cpu() && has_plain_memory(tensor)) return tensor;
  const at::NoGradGuard no_grad;
  at::Tensor plain = tensor.detach();
  if (tensor._is_zerotensor()) {
    plain = at::zeros(tensor.sizes(), tensor.options().device(at::kCPU));
  }
  plain = plain.resolve_conj().resolve_neg();
  // torch has copy operators for every element size, but not for every dtype.
  return plain.view(raw_type(plain.element_size())).cpu().contiguous();
}

// Writes an input as pieces. The bytes delimit every part, so no two inputs give the same bytes.
class Writer {
 public:
  enum class Unit { kWhole, kRow };

  explicit Writer(Unit unit) : unit_(unit), before_(kLayout) {}

  Status write(const at::IValue& input) {
    const bool is_one_argument = input.isTuple() && input.toTupleRef().elements().size() == 1;
    return write_value(is_one_argument ? input.toTupleRef().elements()[0] : input);
  }

  Status write(const TakenApart& input);

  // Ends the writing: nothing may be written after this.
  std::vector<Piece> take_pieces() {
    pieces_.push_back({std::move(before_), {}, nullptr, 0});
    return std::move(pieces_);
  }

  // Nothing if the input had no tensor.
  std::optional<std::int64_t> rows() const { return rows_; }

 private:
  Status write_value(const at::IValue& value);
  Status write_leaf(const at::IValue& value);
  Status write_tensor(const at::Tensor& tensor);
  Status note_rows(const at::Tensor& tensor);

  template <typename Values>
  Status write_sequence(char tag, const Values& values) {
    append_container(tag, values.size());
    for (const at::IValue& item : values) MODCACHE_RETURN_IF_ERROR(write_value(item));
    return Status::ok();
  }

  void append_container(char tag, std::uint64_t items) {
    before_ += tag;
    append_number(items);
  }
  void append_number(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) before_ += static_cast<char>((value >> (8 * i)) & 0xff);
  }
  void append_text(std::string_view text) {
    append_number(text.size());
    before_ += text;
  }

  const Unit unit_;
  std::string before_;  // what was written since the last tensor's bytes
  std::vector<Piece> pieces_;
  std::optional<std::int64_t> rows_;
};

Status Writer::write_value(const at::IValue& value) {
  if (value.isTuple()) return write_sequence('(', value.toTupleRef().elements());
  if (value.isList()) return write_sequence('[', value.toListRef());
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    append_container('{', dict.size());
    for (const auto& item : dict) {
      MODCACHE_RETURN_IF_ERROR(write_value(item.key()));
      MODCACHE_RETURN_IF_ERROR(write_value(item.value()));
    }
    return Status::ok();
  }
  return write_leaf(value);
}

Status Writer::write(const TakenApart& input) {
  static constexpr std::string_view kOneArgument = "(1;";
  std::string_view left = input.structure;
  if (left.substr(0, kOneArgument.size()) == kOneArgument) left.remove_prefix(kOneArgument.size());
  std::size_t next_leaf = 0;
  while (!left.empty()) {
    const char tag = left.front();
    left.remove_prefix(1);
    if (tag == '.' && next_leaf < input.leaves.size()) {
      MODCACHE_RETURN_IF_ERROR(write_leaf(input.leaves[next_leaf++]));
      continue;
    }
    std::uint64_t items = 0;
    const auto read = std::from_chars(left.data(), left.data() + left.size(), items);
    const auto length = static_cast<std::size_t>(read.ptr - left.data());
    if (tag == '.' || read.ec != std::errc() || length == left.size()) {
      return Status::invalid_argument("an input was not taken apart as it should be");
    }
    left.remove_prefix(length + 1);
    append_container(tag, items);
  }
  return Status::ok();
}

Status Writer::write_leaf(const at::IValue& value) {
  if (value.isTensor()) return write_tensor(value.toTensor());
  if (value.isNone()) {
    before_ += 'n';
  } else if (value.isBool()) {
    before_ += 'b';
    before_ += value.toBool() ? '\1' : '\0';
  } else if (value.isInt()) {
    before_ += 'i';
    append_number(static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    before_ += 'd';
    append_number(bits_of(value.toDouble()));
  } else if (value.isComplexDouble()) {
    before_ += 'c';
    append_number(bits_of(value.toComplexDouble().real()));
    append_number(bits_of(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    before_ += 's';
    append_text(value.toStringRef());
  } else if (value.isDevice()) {
    before_ += 'v';
    append_text(value.toDevice().str());
  } else {
    return Status::invalid_argument(
        "the input holds a value of type " + value.tagKind() +
        ", and a content key covers tensors, None, bool, int, float, complex, str, device, and "
        "tuples, lists and dicts of them" +
        kCure);
  }
  return Status::ok();
}

Status Writer::write_tensor(const at::Tensor& tensor) {
  const char* why = why_not_storable(tensor);
  if (why == nullptr && !has_all_bytes(tensor)) why = "without data";
  if (why == nullptr && tensor._fw_grad(/*level=*/0).defined()) {
    why = "a dual tensor of forward-mode differentiation";
  }
  if (why != nullptr) {
    return Status::invalid_argument(std::string("the input holds a tensor that is ") + why +
                                    ", which has no content key" + kCure);
  }
  const bool is_row = unit_ == Unit::kRow;
  if (is_row) MODCACHE_RETURN_IF_ERROR(note_rows(tensor));
  const at::IntArrayRef sizes = is_row ? tensor.sizes().slice(1) : tensor.sizes();
  std::size_t size_bytes = tensor.element_size();
  for (const std::int64_t size : sizes) size_bytes *= static_cast<std::size_t>(size);
  before_ += 't';
  append_text(dtype_name(tensor.scalar_type()));
  append_number(sizes.size());
  for (const std::int64_t size : sizes) append_number(static_cast<std::uint64_t>(size));
  append_number(size_bytes);
  if (tensor.numel() == 0) return Status::ok();
  Piece piece{std::move(before_), dense_bytes(tensor), nullptr, size_bytes};
  piece.data = const_bytes(piece.tensor);
  pieces_.push_back(std::move(piece));
  before_.clear();
  return Status::ok();
}

Status Writer::note_rows(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    return Status::invalid_argument(
        "the input holds a tensor of 0 dimensions, but the first dimension of every tensor is the "
        "number of rows; expand it to that many rows, or pass a number, which goes to every row");
  }
  if (rows_.has_value() && *rows_ != tensor.size(0)) {
    return Status::invalid_argument(
        "the input holds tensors of " + std::to_string(*rows_) + " and of " +
        std::to_string(tensor.size(0)) +
        " rows, but the first dimension of every tensor must be the same number of rows");
  }
  rows_ = tensor.size(0);
  return Status::ok();
}

std::string key_of_row(const std::vector<Piece>& pieces, std::size_t row) {
  Blake2bHasher hasher;
  for (const Piece& piece : pieces) {
    hasher.update(piece.before);
    if (piece.data == nullptr) continue;
    hasher.update(piece.data + row * piece.size_bytes, piece.size_bytes);
  }
  return hasher.hex();
}

template <typename Input>
Result<std::string> key_of(const Input& input) {
  Writer writer(Writer::Unit::kWhole);
  MODCACHE_RETURN_IF_ERROR(writer.write(input));
  return key_of_row(writer.take_pieces(), 0);
}

template <typename Input>
Result<std::vector<std::string>> keys_of(const Input& input) {
  Writer writer(Writer::Unit::kRow);
  MODCACHE_RETURN_IF_ERROR(writer.write(input));
  if (!writer.rows().has_value()) {
    return Status::invalid_argument(
        "the input holds no tensor, so it has no rows; content_key gives one key for the whole "
        "input");
  }
  const std::vector<Piece> pieces = writer.take_pieces();
  const auto rows = static_cast<std::size_t>(*writer.rows());
  std::vector<std::string> keys;
  keys.reserve(rows);
  for (std::size_t row = 0; row < rows; ++row) keys.push_back(key_of_row(pieces, row));
  return keys;
}

}  // namespace

Result<std::string> content_key(const at::IValue& input) { return key_of(input); }
Result<std::vector<std::string>> content_keys(const at::IValue& input) { return keys_of(input); }
Result<std::string> content_key(const TakenApart& input) { return key_of(input); }
Result<std::vector<std::string>> content_keys(const TakenApart& input) { return keys_of(input); }

}  // namespace modcache::tensor
