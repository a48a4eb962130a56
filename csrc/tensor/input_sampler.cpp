// SPDX-License-Identifier: Apache-2.0
#include "tensor/input_sampler.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "base/hash.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"
#include "tensor/value_header.h"

namespace modcache::tensor {
namespace {

// All of these determine the samples that are stored on disk. A change of one needs a new version
// of the sample (FORMAT.md).
constexpr std::size_t kMostPieces = SampledPieces::kMost;
static_assert(kMostPieces == cache::BlockSums::kMost);
constexpr std::size_t kPieceElements = 16;  // of a long row of floats
constexpr std::size_t kExactPieceBytes = 64;
constexpr std::size_t kMostWholeExactBytes = 8192;
// The dimensions of a storable tensor, and one more for the parts of complex numbers.
constexpr std::size_t kMostDimensions = ValueHeader::kMostDimensions + 1;

SampledPieces whole(std::size_t elements, std::size_t pieces) {
  SampledPieces found;
  found.count = std::min(pieces, elements);
  for (std::size_t i = 0; i < found.count; ++i) {
    const std::size_t first = i * elements / found.count;
    found.all[i] = {first, (i + 1) * elements / found.count - first};
  }
  return found;
}

// Splits the row into equal parts and takes one piece of each, at a place that looks random. Equal
// distances might always hit the same phase of a periodic row, such as one of an image.
SampledPieces spread(std::size_t elements, std::size_t pieces, std::size_t piece_elements) {
  SampledPieces found;
  found.are_apart = true;
  found.count = pieces;
  const std::size_t part = elements / pieces;
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::uint64_t random = ((i + 1) * 0x9e3779b97f4a7c15ULL) >> 40;  // 24 bits
    const std::size_t shift = (random * (part - piece_elements + 1)) >> 24;
    const std::size_t first = i * part + shift;
    found.all[i] = {first / piece_elements * piece_elements, piece_elements};
  }
  return found;
}

SampledPieces pieces_of_floats(std::size_t elements, std::size_t blocks) {
  return elements <= blocks * cache::kMostBlockElements ? whole(elements, blocks)
                                                        : spread(elements, blocks, kPieceElements);
}

SampledPieces pieces_of_exact(std::size_t elements, std::size_t element_bytes) {
  return elements * element_bytes <= kMostWholeExactBytes
             ? whole(elements, 1)
             : spread(elements, kMostPieces, kExactPieceBytes / element_bytes);
}

void convert_halves(const std::byte* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, from + 2 * i, sizeof half);
    // Moves the exponent to its place in a float and corrects its bias by a product, which also
    // normalizes the subnormal numbers. Infinities and NaN get the largest exponent.
    const std::uint32_t magnitude = half & 0x7fffU;
    const std::uint32_t bits = magnitude << 13;
    float number = 0;
    std::memcpy(&number, &bits, sizeof number);
    number *= 0x1p112F;
    std::uint32_t scaled = 0;
    std::memcpy(&scaled, &number, sizeof scaled);
    scaled |= magnitude >= 0x7c00U ? 0x7f800000U : 0U;
    scaled |= (half & 0x8000U) << 16;
    std::memcpy(to + i, &scaled, sizeof scaled);
  }
}

void convert_bfloats(const std::byte* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t upper = 0;
    std::memcpy(&upper, from + 2 * i, sizeof upper);
    const std::uint32_t bits = static_cast<std::uint32_t>(upper) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

void convert_doubles(const std::byte* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    double number = 0;
    std::memcpy(&number, from + 8 * i, sizeof number);
    to[i] = static_cast<float>(number);
  }
}

void convert(at::ScalarType type, const std::byte* from, std::size_t count, float* to) {
  switch (type) {
    case at::kHalf: convert_halves(from, count, to); break;
    case at::kBFloat16: convert_bfloats(from, count, to); break;
    case at::kDouble: convert_doubles(from, count, to); break;
    default: std::memcpy(to, from, count * sizeof(float));  // convertible() leaves no other
  }
}

bool is_read_as_float(at::ScalarType type) {
  return c10::isFloatingType(type) && !is_packed_float(type);
}

// Returns the same values in a form whose memory shows them: complex numbers as pairs, without lazy
// conjugation or negation, and no zeros that take no memory.
at::Tensor readable(at::Tensor tensor) {
  if (tensor._is_zerotensor()) tensor = at::zeros(tensor.sizes(), tensor.options());
  if (c10::isComplexType(tensor.scalar_type())) tensor = at::view_as_real(tensor.resolve_conj());
  return tensor.resolve_neg();
}

bool is_read_as_it_is(const at::Tensor& tensor) {
  return !c10::isComplexType(tensor.scalar_type()) && !tensor.is_neg() && !tensor._is_zerotensor();
}

at::Tensor convertible(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble: return tensor;
    default: return is_read_as_float(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
  }
}

}  // namespace

// One tensor, and the pieces that are read of each of its rows.
class InputSampler::Source {
 public:
  // `blocks`: the number of pieces for a tensor of floats.
  Source(at::Tensor tensor, Per per, std::size_t blocks, IsOnHost on_host) {
    const bool has_rows = per == Per::kRow;
    if (!is_read_as_it_is(tensor)) {
      OrdinaryTensors ordinary;
      tensor = readable(std::move(tensor));
    }
    is_float_ = is_read_as_float(tensor.scalar_type());
    const std::int64_t rows = has_rows ? tensor.size(0) : 1;
    const std::size_t elements =
        rows == 0 ? 0 : static_cast<std::size_t>(tensor.numel() / std::max<std::int64_t>(rows, 1));
    pieces_ = is_float_ ? pieces_of_floats(elements, blocks)
                        : pieces_of_exact(elements, tensor.element_size());
    if (on_host(tensor)) {
      see_rows(convertible_of(tensor), has_rows);
    } else {
      OrdinaryTensors ordinary;
      see_rows(convertible(gathered(tensor, rows, elements)), /*has_rows=*/true);
    }
  }

  bool is_float() const { return is_float_; }
  std::size_t blocks() const { return pieces_.count; }

  // Returns the number of elements in the longest piece. REQUIRES: is_float().
  std::size_t sum_up(std::size_t row, cache::BlockSums& sums) const {
    if (!is_summed_in_place_) return sum_up_copies(row, sums);
    std::array<cache::FloatBlock, kMostPieces> blocks;
    const auto* const elements = reinterpret_cast<const float*>(place(row, 0));
    std::size_t longest = 0;
    for (std::size_t i = 0; i < pieces_.count; ++i) {
      const SampledPiece& piece = pieces_.all[i];
      blocks[i] = {elements + piece.first, piece.count};
      expect_next(row, piece);
      longest = std::max(longest, piece.count);
    }
    cache::sum_blocks(blocks.data(), pieces_.count, sums);
    return longest;
  }

  std::uint64_t hash(std::size_t row, std::uint64_t seed) const {
    std::array<std::byte, kMostWholeExactBytes> gathered;
    if (pieces_.count == 1) {
      const SampledPiece& piece = pieces_.all[0];
      return xxh3_64(read(row, piece, gathered.data()), piece.count * element_bytes_, seed);
    }
    std::byte* next = gathered.data();
    for (const SampledPiece& piece : pieces_) {
      const std::size_t size_bytes = piece.count * element_bytes_;
      const std::byte* const bytes = read(row, piece, next);
      expect_next(row, piece);
      if (bytes != next) std::memcpy(next, bytes, size_bytes);
      next += size_bytes;
    }
    return xxh3_64(gathered.data(), static_cast<std::size_t>(next - gathered.data()), seed);
  }

 private:
  std::size_t sum_up_copies(std::size_t row, cache::BlockSums& sums) const {
    using Copy = std::array<std::byte, cache::kMostBlockElements * sizeof(double)>;
    std::array<Copy, kMostPieces> gathered;
    std::array<std::array<float, cache::kMostBlockElements>, kMostPieces> converted;
    std::array<cache::FloatBlock, kMostPieces> blocks;
    std::size_t longest = 0;
    for (std::size_t i = 0; i < pieces_.count; ++i) {
      const SampledPiece& piece = pieces_.all[i];
      const std::byte* const bytes = read(row, piece, gathered[i].data());
      expect_next(row, piece);
      convert(type_, bytes, piece.count, converted[i].data());
      blocks[i] = {converted[i].data(), piece.count};
      longest = std::max(longest, piece.count);
    }
    cache::sum_blocks(blocks.data(), pieces_.count, sums);
    return longest;
  }

  // Prefetches a piece of the row that will most likely be measured next. A row that is read as a
  // whole is left to the processor, which does better there. Always inlined, since GCC 12 deletes
  // calls of a function that has no other effect.
  [[gnu::always_inline]] void expect_next(std::size_t row, const SampledPiece& piece) const {
    if (is_contiguous_ && pieces_.are_apart) __builtin_prefetch(place(row + 1, piece.first));
  }

  static at::Tensor convertible_of(const at::Tensor& tensor) {
    const at::ScalarType type = tensor.scalar_type();
    if (type == at::kFloat || !is_read_as_float(type)) return tensor;
    OrdinaryTensors ordinary;
    return convertible(tensor);
  }

  // Returns the pieces of all rows, side by side in the host's memory.
  at::Tensor gathered(const at::Tensor& tensor, std::int64_t rows, std::size_t elements) {
    std::vector<std::int64_t> index;
    for (SampledPiece& piece : pieces_.all) {
      const std::size_t first = index.size();
      for (std::size_t i = 0; i < piece.count; ++i) {
        index.push_back(static_cast<std::int64_t>(piece.first + i));
      }
      piece.first = first;
    }
    const at::Tensor flat =
        as_operable(tensor.detach()).reshape({rows, static_cast<std::int64_t>(elements)});
    const at::Tensor picked =
        at::index_select(flat, 1, at::tensor(index, at::kLong).to(tensor.device()))
            .to(at::kCPU)
            .contiguous();
    return picked.scalar_type() == tensor.scalar_type() ? picked
                                                        : picked.view(tensor.scalar_type());
  }

  void see_rows(at::Tensor tensor, bool has_rows) {
    tensor_ = std::move(tensor);
    type_ = tensor_.scalar_type();
    element_bytes_ = tensor_.element_size();
    data_ = const_bytes(tensor_);
    const auto sizes = tensor_.sizes().slice(has_rows ? 1 : 0);
    const auto strides = tensor_.strides().slice(has_rows ? 1 : 0);
    row_stride_ = has_rows ? tensor_.stride(0) : 0;
    std::int64_t dense = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      is_contiguous_ = is_contiguous_ && (sizes[i] == 1 || strides[i] == dense);
      dense *= sizes[i];
    }
    is_summed_in_place_ = is_contiguous_ && type_ == at::kFloat &&
                          reinterpret_cast<std::uintptr_t>(data_) % alignof(float) == 0;
    sizes_.assign(sizes.begin(), sizes.end());
    strides_.assign(strides.begin(), strides.end());
  }

  // REQUIRES: the row is contiguous.
  const std::byte* place(std::size_t row, std::size_t element) const {
    const std::int64_t offset =
        static_cast<std::int64_t>(row) * row_stride_ + static_cast<std::int64_t>(element);
    return data_ + offset * static_cast<std::int64_t>(element_bytes_);
  }

  // Returns the elements of a piece side by side: in place where they are contiguous, otherwise in
  // `buffer`.
  const std::byte* read(std::size_t row, const SampledPiece& piece, std::byte* buffer) const {
    if (is_contiguous_) return place(row, piece.first);
    std::array<std::int64_t, kMostDimensions> position;
    std::int64_t offset = static_cast<std::int64_t>(row) * row_stride_;
    auto rest = static_cast<std::int64_t>(piece.first);
    for (std::size_t i = sizes_.size(); i-- > 0;) {
      position[i] = rest % sizes_[i];
      rest /= sizes_[i];
      offset += position[i] * strides_[i];
    }
    for (std::size_t k = 0; k < piece.count; ++k) {
      std::memcpy(buffer + k * element_bytes_,
                  data_ + offset * static_cast<std::int64_t>(element_bytes_), element_bytes_);
      for (std::size_t i = sizes_.size(); i-- > 0;) {
        offset += strides_[i];
        if (++position[i] < sizes_[i]) break;
        offset -= sizes_[i] * strides_[i];
        position[i] = 0;
      }
    }
    return buffer;
  }

  at::Tensor tensor_;  // keeps the memory alive
  const std::byte* data_ = nullptr;
  std::int64_t row_stride_ = 0;  // in elements, as all strides are
  std::size_t element_bytes_ = 0;
  at::ScalarType type_ = at::kFloat;
  bool is_float_ = false;
  bool is_contiguous_ = true;
  bool is_summed_in_place_ = false;
  SampledPieces pieces_;
  c10::SmallVector<std::int64_t, 6> sizes_;  // of one row
  c10::SmallVector<std::int64_t, 6> strides_;
};

InputSampler::InputSampler(std::vector<at::Tensor> tensors, Per per, IsOnHost on_host)
    : tensors_(std::move(tensors)), per_(per), on_host_(on_host) {
  for (const at::Tensor& tensor : tensors_) {
    is_costly_ = is_costly_ || (tensor.numel() > 0 && !on_host_(tensor));  // others are not read
  }
}

InputSampler::InputSampler(std::vector<at::Tensor> tensors, std::vector<DimSet> dims,
                           const RowPadding& padding, IsOnHost on_host)
    : InputSampler(std::move(tensors), Per::kRow, on_host) {
  dims_ = std::move(dims);
  padding_ = &padding;
}

InputSampler::~InputSampler() = default;

bool InputSampler::prepare() const {
  if (is_prepared_) return !sources_.empty();
  is_prepared_ = true;
  try {
    std::size_t floats = 0;
    for (const at::Tensor& tensor : tensors_) {
      const at::ScalarType type = tensor.scalar_type();
      if (is_read_as_float(type) || c10::isComplexType(type)) ++floats;
    }
    const std::size_t blocks =
        std::max<std::size_t>(1, kMostPieces / std::max<std::size_t>(floats, 1));
    for (const at::Tensor& tensor : tensors_) {
      if (tensor.numel() == 0) continue;
      sources_.emplace_back(tensor, per_, blocks, on_host_);
    }
  } catch (const std::exception&) {
    sources_.clear();
  }
  return !sources_.empty();
}

// Measures the row as if it had never been padded.
bool InputSampler::measure_true_part(std::size_t row, cache::MeasuredInput& measured) const {
  try {
    std::vector<at::Tensor> cut;
    cut.reserve(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const at::Tensor one = tensors_[i].narrow(0, static_cast<std::int64_t>(row), 1);
      cut.push_back(cut_to_length(one, dims_[i] << 1, padding_->lengths[row], padding_->true_part));
    }
    return InputSampler(std::move(cut), Per::kRow, on_host_).measure(0, measured);
  } catch (const std::exception&) {
    return false;
  }
}

bool InputSampler::measure(std::size_t row, cache::MeasuredInput& measured) const {
  if (padding_ != nullptr) return measure_true_part(row, measured);
  if (!prepare()) return false;
  std::uint64_t hash = 0;
  bool has_exact = false;
  cache::BlockSums sums;
  for (const Source& source : sources_) {
    if (!source.is_float()) {
      hash = source.hash(row, hash);
      has_exact = true;
    } else if (measured.blocks() + source.blocks() <= cache::MeasuredInput::kMostBlocks) {
      const std::size_t longest = source.sum_up(row, sums);
      measured.add_blocks(sums, longest);
    }
  }
  if (has_exact) measured.set_exact(hash);
  return !measured.empty();
}

}  // namespace modcache::tensor
