// SPDX-License-Identifier: Apache-2.0
#include "tensor/input_sampler.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

// Stored samples depend on these constants (FORMAT.md).
constexpr std::size_t kMaxPieces = 16;
constexpr std::size_t kMaxBlockElements = cache::MeasuredInput::kMaxBlockElements;
constexpr std::size_t kMaxPieceBytes = kMaxBlockElements * sizeof(double);
constexpr std::size_t kSampledElements = 16;  // of a block of a long row of floats
constexpr std::size_t kSampledBytes = 64;     // of a piece of a long row of other values

// Floats of 8 bits and less are compared as bytes: bfloat16 rounds none of them.
bool is_summed(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble;
}

// Returns the same values in a form whose memory shows them: complex numbers as pairs, no lazy
// conjugation or negation, and no zeros without memory.
at::Tensor readable(const at::Tensor& tensor) {
  const bool is_complex = c10::isComplexType(tensor.scalar_type());
  if (!is_complex && !tensor.is_neg() && !tensor._is_zerotensor()) return tensor;
  const OrdinaryTensors ordinary;
  at::Tensor plain = tensor._is_zerotensor() ? at::zeros(tensor.sizes(), tensor.options()) : tensor;
  if (is_complex) plain = at::view_as_real(plain.resolve_conj());
  return plain.resolve_neg();
}

template <typename T>
void convert(const std::byte* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    T number;
    std::memcpy(&number, from + i * sizeof number, sizeof number);
    to[i] = static_cast<float>(number);
  }
}

// In place of c10::Half's conversion, of which compilers make no vectors.
void convert_halves(const std::byte* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, from + i * sizeof half, sizeof half);
    const std::uint32_t magnitude = half & 0x7fffU;
    // The product corrects the bias of the exponent, and normalizes subnormal numbers.
    auto bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112F);
    bits |= magnitude >= 0x7c00U ? 0x7f800000U : 0U;  // infinities and NaN
    to[i] = std::bit_cast<float>(bits | (half & 0x8000U) << 16);
  }
}

void convert(at::ScalarType type, const std::byte* from, std::size_t count, float* to) {
  if (type == at::kHalf) return convert_halves(from, count, to);
  if (type == at::kBFloat16) return convert<at::BFloat16>(from, count, to);
  if (type == at::kDouble) return convert<double>(from, count, to);
  std::memcpy(to, from, count * sizeof *to);
}

// Returns the number of parts of a row of each tensor of floats.
std::size_t blocks_of(std::span<const at::Tensor> tensors) {
  const auto num_floats = std::count_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return is_summed(c10::toRealValueType(tensor.scalar_type()));
  });
  return kMaxPieces / std::clamp<std::size_t>(num_floats, 1, kMaxPieces);
}

}  // namespace

// One tensor, and the pieces that are read of each of its rows.
class InputSampler::SampledTensor {
  // A row is cut into equal parts, and one piece of each is read: the whole part, or for a long row
  // `sampled` elements of it.
  struct Pieces {
    struct Piece {
      std::size_t first;  // in elements of the row
      std::size_t count;
    };

    Pieces() = default;
    Pieces(std::size_t elements, std::size_t parts, std::size_t max_whole, std::size_t sampled)
        : count(std::min(parts, elements)), is_whole(elements <= parts * max_whole) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t first = i * elements / count;
        const std::size_t part = (i + 1) * elements / count - first;
        // At an offset that looks random: equal distances might always hit the same phase of a
        // periodic row, such as one of an image.
        const std::uint64_t random = ((i + 1) * 0x9e3779b97f4a7c15ULL) >> 40;  // 24 bits
        const std::size_t shift = is_whole ? 0 : (random * (part - sampled + 1)) >> 24;
        all[i] =
            is_whole ? Piece{first, part} : Piece{(first + shift) / sampled * sampled, sampled};
      }
    }

    std::array<Piece, kMaxPieces> all;
    std::size_t count = 0;
    bool is_whole = true;
  };

  // `blocks`: the number of parts of a row of floats.
  static Pieces pieces_of(std::size_t elements, at::ScalarType type, std::size_t blocks) {
    if (is_summed(type)) return {elements, blocks, kMaxBlockElements, kSampledElements};
    const std::size_t element_bytes = c10::elementSize(type);
    const std::size_t max_whole = kMaxPieceBytes / element_bytes;
    const std::size_t parts = std::min((elements - 1) / max_whole + 1, kMaxPieces);
    return {elements, parts, max_whole, kSampledBytes / element_bytes};
  }

 public:
  // `blocks`: as for pieces_of(). REQUIRES: the tensor has elements.
  SampledTensor(const at::Tensor& tensor, Per per, std::size_t blocks, bool is_on_host)
      : tensor_(readable(tensor)),
        type_(tensor_.scalar_type()),
        element_bytes_(tensor_.element_size()) {
    const std::size_t num_outer = per == Per::kRow ? 1 : 0;
    const std::int64_t rows = per == Per::kRow ? tensor_.size(0) : 1;
    const auto elements = static_cast<std::size_t>(tensor_.numel() / rows);
    row_stride_ = per == Per::kRow ? tensor_.stride(0) : 0;
    pieces_ = pieces_of(elements, type_, blocks);
    const auto sizes = tensor_.sizes().slice(num_outer);
    const auto strides = tensor_.strides().slice(num_outer);
    if (!is_on_host || !is_dense(sizes, strides)) find_offsets(sizes, strides);
    if (!is_on_host) gather(rows);
    data_ = const_bytes(tensor_);
    is_read_in_place_ = offsets_.empty() && type_ == at::kFloat &&
                        reinterpret_cast<std::uintptr_t>(data_) % alignof(float) == 0;
  }

  void add_row(std::size_t row, cache::MeasuredInput& measured) const {
    std::array<std::byte, kMaxPieceBytes> copied;
    std::array<std::array<float, kMaxBlockElements>, kMaxPieces> converted;
    std::array<cache::FloatBlock, kMaxPieces> blocks;
    for (std::size_t i = 0; i < pieces_.count; ++i) {
      const auto [first, count] = pieces_.all[i];
      const std::byte* const bytes = read(row, first, count, copied.data());
      // The next row is most likely measured next. The processor prefetches whole rows better.
      if (!pieces_.is_whole && offsets_.empty()) __builtin_prefetch(address(row + 1, first));
      if (!is_summed(type_)) {
        measured.add_exact(bytes, count * element_bytes_);
      } else if (is_read_in_place_) {
        blocks[i] = {reinterpret_cast<const float*>(bytes), count};
      } else {
        convert(type_, bytes, count, converted[i].data());
        blocks[i] = {converted[i].data(), count};
      }
    }
    if (is_summed(type_)) measured.add_floats({blocks.data(), pieces_.count});
  }

 private:
  static bool is_dense(at::IntArrayRef sizes, at::IntArrayRef strides) {
    std::int64_t dense = 1;
    for (std::size_t dim = sizes.size(); dim-- > 0; dense *= sizes[dim]) {
      if (sizes[dim] != 1 && strides[dim] != dense) return false;
    }
    return true;
  }

  // Finds the offsets of the sampled elements in a row's memory. From then on the pieces count in
  // sampled elements.
  void find_offsets(at::IntArrayRef sizes, at::IntArrayRef strides) {
    for (std::size_t i = 0; i < pieces_.count; ++i) {
      auto& [first, count] = pieces_.all[i];
      const std::size_t begin = std::exchange(first, offsets_.size());
      for (std::size_t k = 0; k < count; ++k) {
        auto rest = static_cast<std::int64_t>(begin + k);
        std::int64_t offset = 0;
        for (std::size_t dim = sizes.size(); dim-- > 0; rest /= sizes[dim]) {
          offset += rest % sizes[dim] * strides[dim];
        }
        offsets_.push_back(offset);
      }
    }
  }

  // Copies the sampled elements of all rows to the host.
  void gather(std::int64_t rows) {
    const OrdinaryTensors ordinary;
    const std::int64_t size = *std::max_element(offsets_.begin(), offsets_.end()) + 1;
    const at::Tensor memory =
        as_operable(tensor_.detach()).as_strided({rows, size}, {row_stride_, 1});
    const at::Tensor index = at::tensor(offsets_, at::kLong).to(tensor_.device());
    tensor_ = at::index_select(memory, 1, index).to(at::kCPU).contiguous();
    row_stride_ = static_cast<std::int64_t>(std::exchange(offsets_, {}).size());
  }

  const std::byte* address(std::size_t row, std::size_t element) const {
    const std::int64_t offset =
        static_cast<std::int64_t>(row) * row_stride_ + static_cast<std::int64_t>(element);
    return data_ + offset * static_cast<std::int64_t>(element_bytes_);
  }

  // Returns `count` elements one after another: in the tensor's memory, or copied into `buffer`.
  const std::byte* read(std::size_t row, std::size_t first, std::size_t count,
                        std::byte* buffer) const {
    if (offsets_.empty()) return address(row, first);
    for (std::size_t k = 0; k < count; ++k) {
      std::memcpy(buffer + k * element_bytes_,
                  address(row, static_cast<std::size_t>(offsets_[first + k])), element_bytes_);
    }
    return buffer;
  }

  at::Tensor tensor_;  // keeps the memory alive
  at::ScalarType type_;
  std::size_t element_bytes_;
  Pieces pieces_;
  std::int64_t row_stride_ = 0;        // in elements
  std::vector<std::int64_t> offsets_;  // of the sampled elements; empty: rows are contiguous
  const std::byte* data_ = nullptr;
  bool is_read_in_place_ = false;
};

InputSampler::InputSampler(std::span<const at::Tensor> tensors, Per per, IsOnHost on_host)
    : tensors_(tensors), per_(per), on_host_(on_host) {
  for (const at::Tensor& tensor : tensors_) {
    is_costly_ = is_costly_ || (tensor.numel() > 0 && !on_host_(tensor));
  }
}

InputSampler::InputSampler(std::span<const at::Tensor> tensors, std::vector<DimSet> dims,
                           const RowPadding& padding, IsOnHost on_host)
    : InputSampler(tensors, Per::kRow, on_host) {
  dims_ = std::move(dims);
  padding_ = &padding;
}

InputSampler::~InputSampler() = default;

std::vector<InputSampler::SampledTensor> InputSampler::sampled(
    std::span<const at::Tensor> tensors) const {
  const std::size_t blocks = blocks_of(tensors);
  std::vector<SampledTensor> sampled;
  sampled.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) sampled.emplace_back(tensor, per_, blocks, on_host_(tensor));
  }
  return sampled;
}

// Returns the row as if it had never been padded.
std::vector<at::Tensor> InputSampler::valid_part(std::size_t row) const {
  std::vector<at::Tensor> cut;
  cut.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor one = tensors_[i].narrow(0, static_cast<std::int64_t>(row), 1);
    cut.push_back(cut_to_length(one, dims_[i] << 1, padding_->lengths[row], padding_->true_part));
  }
  return cut;
}

cache::MeasuredInput InputSampler::measure(std::size_t row) const {
  cache::MeasuredInput measured;
  try {
    if (padding_ != nullptr) {
      for (const SampledTensor& tensor : sampled(valid_part(row))) tensor.add_row(0, measured);
    } else if (per_ == Per::kCall && !is_costly_) {  // measured once or twice
      const std::size_t blocks = blocks_of(tensors_);
      for (const at::Tensor& tensor : tensors_) {
        if (tensor.numel() > 0) SampledTensor(tensor, per_, blocks, true).add_row(0, measured);
      }
    } else {
      if (!std::exchange(is_prepared_, true)) sampled_ = sampled(tensors_);
      for (const SampledTensor& tensor : sampled_) tensor.add_row(row, measured);
    }
  } catch (const std::exception&) {
    measured = {};
  }
  return measured;
}

}  // namespace modcache::tensor
