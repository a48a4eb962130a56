// SPDX-License-Identifier: Apache-2.0
#include "tensor/layout.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/process_wide.h"
#include "tensor/dim_order.h"
#include "tensor/rows.h"
#include "tensor/storable.h"
#include "tensor/torch_version.h"

namespace modcache::tensor {
namespace {

constexpr std::size_t kAlignmentBytes = 64;
// Half the distance between neighbouring numbers, relative to the number.
constexpr double kHalfRounding = 1.0 / 2048;
constexpr double kBFloat16Rounding = 1.0 / 256;
// Half the smallest number: the distance is constant among subnormal numbers.
constexpr double kHalfSubnormalRounding = 1.0 / (1 << 25);
constexpr double kBFloat16SubnormalRounding = 0x1p-134;

std::size_t size_of(const Node& node) {
  std::size_t size = sizeof(Node) + node.text.capacity();
  for (const std::string& name : node.names) size += sizeof(std::string) + name.capacity();
  for (const std::string& type : node.types) size += sizeof(std::string) + type.capacity();
  for (const Node& child : node.children) size += size_of(child);
  return size;
}

bool multiply(std::size_t& product, std::int64_t factor) {
  return !__builtin_mul_overflow(product, static_cast<std::size_t>(factor), &product);
}

// Returns whether copy_to_store() stores `dtype` as `stored`. No other pair is accepted, as torch
// cannot convert every dtype to every other.
bool is_stored_as(at::ScalarType dtype, at::ScalarType stored) {
  if (stored == dtype) return true;
  return (dtype == at::kFloat || dtype == at::kDouble) &&
         (stored == at::kHalf || stored == at::kBFloat16);
}

bool have_sizes_beside_padding(const TensorLayout& a, const TensorLayout& b) {
  if (a.padded_dims != b.padded_dims || a.sizes.size() != b.sizes.size()) return false;
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    if (((a.padded_dims >> d) & 1) == 0 && a.sizes[d] != b.sizes[d]) return false;
  }
  return true;
}

Result<at::ScalarType> dtype_from(std::uint8_t number) {
  const auto type = static_cast<at::ScalarType>(number);
  if (number >= static_cast<std::uint8_t>(at::ScalarType::NumOptions) || !is_storable_dtype(type)) {
    return Status::corruption("a value header has the unknown dtype " + std::to_string(number));
  }
  return type;
}

// The layouts of the lone tensors that were seen last. With one layout for the values of a model, a
// hit finds it in the processor's caches, whichever value it is of.
class RecentLayouts : public ProcessWide<RecentLayouts> {
 public:
  // Returns null where none has this header. REQUIRES: it is that of a lone tensor.
  LayoutPtr find(const ValueHeader& header) {
    MutexLock lock(mutex);
    const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const Recent& one) {
      return one.layout != nullptr && one.codec == header.codec &&
             one.tensor == header.tensors.front();
    });
    if (found == recent_.end()) return nullptr;
    std::rotate(recent_.begin(), found, std::next(found));
    return recent_.front().layout;
  }

  void add(const ValueHeader& header, const LayoutPtr& layout) {
    MutexLock lock(mutex);
    std::rotate(recent_.begin(), std::prev(recent_.end()), recent_.end());
    recent_.front() = {header.tensors.front(), header.codec, layout};
  }

 private:
  struct Recent {
    TensorLayout tensor;
    std::uint8_t codec = 0;
    LayoutPtr layout;
  };
  std::array<Recent, 8> recent_ MODCACHE_GUARDED_BY(mutex);  // front: seen last
};

RowMarks row_marks_in(const std::vector<TensorLayout>& tensors) {
  RowMarks marks;
  if (tensors.empty()) return marks;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].is_constant) marks.constants.push_back(i);
  }
  marks.are_unproven = tensors.front().is_unproven;
  marks.are_unproven_alone = tensors.front().is_unproven_alone;
  return marks;
}

constexpr auto kPlain = static_cast<std::uint8_t>(codec::Codec::kNone);
// No codec makes numbers smaller by this factor, so a header that claims it is damaged.
constexpr std::size_t kMostShrinking = 1 << 16;

}  // namespace

bool has_countable_elements(const std::vector<std::int64_t>& sizes, std::int64_t rows) {
  std::int64_t bytes = rows * 16;  // for the largest element
  return std::all_of(sizes.begin(), sizes.end(), [&bytes](std::int64_t size) {
    return !__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes);
  });
}

Result<LayoutPtr> Layout::of(ValueHeader header) {
  const bool is_shared = header.root.kind == Node::Kind::kTensor && header.tensors.size() == 1;
  if (!is_shared) return make(std::move(header));
  RecentLayouts& recent = RecentLayouts::instance();
  if (LayoutPtr known = recent.find(header)) return known;
  MODCACHE_ASSIGN_OR_RETURN(auto layout, make(std::move(header)));
  recent.add(layout->header_, layout);
  return layout;
}

Result<LayoutPtr> Layout::make(ValueHeader header) {
  auto layout = std::make_shared<Layout>();
  std::size_t end = 0;
  for (const TensorLayout& tensor : header.tensors) {
    Place place;
    MODCACHE_ASSIGN_OR_RETURN(auto dtype, dtype_from(tensor.dtype));
    MODCACHE_ASSIGN_OR_RETURN(auto stored_dtype, dtype_from(tensor.stored_dtype));
    place.dtype = dtype;
    place.stored_dtype = stored_dtype;
    place.size_bytes = c10::elementSize(place.stored_dtype);
    if (!is_stored_as(place.dtype, place.stored_dtype)) {
      return Status::corruption("a value header has a dtype that is not stored as another");
    }
    bool fits = has_countable_elements(tensor.sizes);
    for (const std::int64_t size : tensor.sizes) fits = fits && multiply(place.size_bytes, size);
    place.sizes = permuted(tensor.sizes, tensor.dim_order);
    fits = fits && !__builtin_add_overflow(end, kAlignmentBytes - 1, &end);
    place.offset = end / kAlignmentBytes * kAlignmentBytes;
    fits = fits && !__builtin_add_overflow(place.offset, place.size_bytes, &end);
    if (!fits) return Status::corruption("a value header has sizes that overflow");
    layout->places_.push_back(std::move(place));
  }
  layout->payload_size_bytes_ = end;
  layout->size_bytes_ = sizeof(Layout) + size_of(header.root) +
                        header.tensors.size() * (sizeof(Place) + sizeof(TensorLayout) + 64);
  layout->row_marks_ = row_marks_in(header.tensors);
  layout->header_ = std::move(header);
  return LayoutPtr(std::move(layout));
}

Result<LayoutPtr> Layout::decode(std::string_view bytes) {
  MODCACHE_ASSIGN_OR_RETURN(auto header, decode_value_header(bytes));
  return of(std::move(header));
}

LayoutPtr Layout::of_stored(Node root, const std::vector<at::Tensor>& copies,
                            const std::vector<at::Tensor>& originals,
                            std::optional<at::Device> input_device, const RowMarks* row) {
  const bool is_row = row != nullptr;
  ValueHeader header;
  header.root = std::move(root);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    TensorLayout tensor;
    tensor.dtype = static_cast<std::uint8_t>(originals[i].scalar_type());
    tensor.stored_dtype = static_cast<std::uint8_t>(copies[i].scalar_type());
    tensor.is_beside_input = input_device.has_value() && *input_device == originals[i].device();
    tensor.sizes = originals[i].sizes().slice(is_row ? 1 : 0).vec();
    set_dim_order(tensor, originals[i], is_row);
    if (is_row) {
      const auto& constants = row->constants;
      tensor.is_constant = std::find(constants.begin(), constants.end(), i) != constants.end();
      tensor.is_unproven = row->are_unproven;
      tensor.is_unproven_alone = row->are_unproven_alone;
    }
    header.tensors.push_back(std::move(tensor));
  }
  return of(std::move(header)).value();
}

// Two hold it beside the values: the value's maker, and the table of those that were seen last.
std::size_t Layout::share_bytes(const LayoutPtr& layout) {
  const auto sharers = std::max<std::int64_t>(1, layout.use_count() - 2);
  return layout->size_bytes_ / static_cast<std::size_t>(sharers);
}

std::size_t Layout::element_size_bytes() const {
  return places_.empty() ? 1 : c10::elementSize(places_[0].stored_dtype);
}

std::string Layout::header_with(std::uint8_t codec) const {
  if (codec == header_.codec) return encode_value_header(header_);
  ValueHeader header = header_;
  header.codec = codec;
  return encode_value_header(header);
}

Tolerance Layout::tolerance(double rtol) const {
  Tolerance rounding;
  for (const Place& place : places_) {
    if (place.dtype == place.stored_dtype) continue;
    const bool is_half = place.stored_dtype == at::kHalf;
    rounding.relative = std::max(rounding.relative, is_half ? kHalfRounding : kBFloat16Rounding);
    rounding.absolute =
        std::max(rounding.absolute, is_half ? kHalfSubnormalRounding : kBFloat16SubnormalRounding);
  }
  return {rtol + rounding.relative, rounding.absolute};
}

bool Layout::has_rows_of_the_kind_of(const Layout& other) const {
  if (this == &other) return true;
  if (header_.tensors.size() != other.header_.tensors.size()) return false;
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    const TensorLayout& mine = header_.tensors[i];
    const TensorLayout& theirs = other.header_.tensors[i];
    if (mine.dtype != theirs.dtype || mine.sizes.size() != theirs.sizes.size() ||
        mine.padded_dims != theirs.padded_dims || mine.is_constant != theirs.is_constant) {
      return false;
    }
  }
  return header_.root.has_form_of(other.header_.root);
}

LayoutPtr Layout::cut_to_length(const std::vector<std::uint64_t>& dims, std::int64_t length) const {
  ValueHeader header = header_;
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    TensorLayout& tensor = header.tensors[i];
    tensor.padded_dims = dims[i];
    for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
      if (((dims[i] >> d) & 1) != 0) tensor.sizes[d] = length;
    }
  }
  return of(std::move(header)).value();
}

std::optional<std::int64_t> Layout::length() const {
  for (const TensorLayout& tensor : header_.tensors) {
    for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
      if (((tensor.padded_dims >> d) & 1) != 0) return tensor.sizes[d];  // all have one
    }
  }
  return std::nullopt;
}

std::vector<std::uint64_t> Layout::padded_dims() const {
  std::vector<std::uint64_t> dims;
  dims.reserve(header_.tensors.size());
  for (const TensorLayout& tensor : header_.tensors) dims.push_back(tensor.padded_dims);
  return dims;
}

bool Layout::has_rows_like(const Layout& other, bool is_padded) const {
  if (this == &other) return true;
  if (header_.tensors.size() != other.header_.tensors.size()) return false;
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    const TensorLayout& mine = header_.tensors[i];
    const TensorLayout& theirs = other.header_.tensors[i];
    if (mine.dtype != theirs.dtype || mine.is_constant != theirs.is_constant) return false;
    if (!(is_padded ? have_sizes_beside_padding(mine, theirs) : mine.sizes == theirs.sizes)) {
      return false;
    }
  }
  return header_.root == other.header_.root;
}

at::Tensor tensor_at(const Layout& layout, std::size_t i, const std::byte* payload) {
  OrdinaryTensors ordinary;
  const Layout::Place& place = layout.places()[i];
  at::Tensor stored = at::empty(place.sizes, at::device(at::kCPU).dtype(place.stored_dtype));
  copy_bytes(mutable_bytes(stored), payload + place.offset, place.size_bytes);
  at::Tensor tensor = stored.to(place.dtype);
  restore_logical_order(tensor, layout.tensors()[i].dim_order);
  return tensor;
}

cache::Written write_payload(const Layout& layout, SharedBytes payload, codec::Codec codec) {
  if (codec != codec::Codec::kNone) {
    auto encoded = codec::encode(codec, layout.element_size_bytes(), payload.view());
    if (encoded.has_value()) {
      return {layout.header_with(static_cast<std::uint8_t>(codec)),
              share_bytes(*std::move(encoded))};
    }
  }
  return {layout.header_with(kPlain), std::move(payload)};
}

bool is_plain(const Layout& layout) { return layout.codec() == kPlain; }

Status check_payload_size(const Layout& layout, std::size_t stored_size_bytes) {
  const std::size_t size_bytes = layout.payload_size_bytes();
  const bool fits = layout.codec() == kPlain ? stored_size_bytes == size_bytes
                                             : size_bytes / kMostShrinking <= stored_size_bytes;
  if (fits) return Status::ok();
  return Status::corruption("a value header asks for " + std::to_string(size_bytes) +
                            " bytes, its payload has " + std::to_string(stored_size_bytes));
}

Status read_payload(const Layout& layout, std::size_t stored_size_bytes, const ReadStored& read,
                    void* target) {
  if (layout.codec() == kPlain) return read(target);
  std::string encoded(stored_size_bytes, '\0');
  MODCACHE_RETURN_IF_ERROR(read(encoded.data()));
  return codec::decode(static_cast<codec::Codec>(layout.codec()), layout.element_size_bytes(),
                       encoded, target, layout.payload_size_bytes());
}

}  // namespace modcache::tensor
