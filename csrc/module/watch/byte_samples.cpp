// SPDX-License-Identifier: Apache-2.0
#include "module/watch/byte_samples.h"

#include <algorithm>
#include <cstring>

#include "tensor/torch_version.h"

namespace modcache::module {
namespace {

// How far a sample may be moved past zeros, since scaling a tensor does not change those.
constexpr std::size_t kZerosBytes = 1024;

std::uint64_t word_at(const std::byte* place) {
  std::uint64_t word = 0;
  std::memcpy(&word, place, sizeof word);
  return word;
}

// Returns the offset of the first 16 bytes in [from, to) that are not all zero. REQUIRES: to <= the
// number of readable bytes.
std::optional<std::size_t> first_nonzero(const std::byte* bytes, std::size_t from, std::size_t to) {
  for (std::size_t at = from; at + 16 <= to; at += 16) {
    if ((word_at(bytes + at) | word_at(bytes + at + 8)) != 0) return at;
  }
  return std::nullopt;
}

// The range of a tensor's memory that samples may be taken from.
struct Extent {
  const std::byte* bytes = nullptr;
  std::size_t size_bytes = 0;
};

bool is_dense(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
}

Extent extent_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.numel() == 0) return {};
  const std::byte* bytes = tensor::const_bytes(tensor);
  if (bytes == nullptr) return {};
  if (is_dense(tensor)) return {bytes, tensor.nbytes()};
  const auto element_bytes = static_cast<std::size_t>(tensor.element_size());
  // A tensor with gaps is sampled in its first element only, as the bytes in between are not its
  // own. Without versions that would be too little, so there a needless hashing is accepted.
  if (!tensor.is_inference()) return {bytes, element_bytes};
  std::size_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    last += static_cast<std::size_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  return {bytes, (last + 1) * element_bytes};
}

// Returns an offset into the tensor's bytes at which its gradient, if there is one, is not zero.
std::optional<std::size_t> place_by_gradient(const at::Tensor& tensor, std::size_t limit_bytes) {
  const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided || !gradient.is_cpu() ||
      !gradient.has_storage() || gradient.scalar_type() != tensor.scalar_type() ||
      gradient.sizes() != tensor.sizes() || gradient.strides() != tensor.strides() ||
      !is_dense(tensor)) {
    return std::nullopt;
  }
  const std::byte* bytes = tensor::const_bytes(gradient);
  if (bytes == nullptr) return std::nullopt;
  const std::size_t to = std::min(limit_bytes, tensor.nbytes());
  return first_nonzero(bytes, 0, to);
}

}  // namespace

bool ByteSamples::Sample::matches() const {
  if (size_bytes == kSampleBytes) {
    return word_at(place) == word_at(bytes.data()) &&
           word_at(place + 8) == word_at(bytes.data() + 8);
  }
  return std::memcmp(place, bytes.data(), size_bytes) == 0;
}

bool ByteSamples::Whole::matches() const {
  return std::memcmp(place, bytes.data(), bytes.size()) == 0;
}

ByteSamples::Sample ByteSamples::sample_at(const std::byte* place, std::size_t size_bytes,
                                           std::size_t tensor) {
  Sample taken{
      place, {}, static_cast<std::uint32_t>(size_bytes), static_cast<std::uint32_t>(tensor)};
  std::memcpy(taken.bytes.data(), place, size_bytes);
  return taken;
}

void ByteSamples::add(std::size_t index, const at::Tensor& tensor, Effort effort) {
  const Extent extent = extent_of(tensor);
  if (extent.size_bytes == 0) return;
  if (tensor.is_inference() && extent.size_bytes <= kWholeBytes) {
    whole_.push_back({extent.bytes, {extent.bytes, extent.bytes + extent.size_bytes}, index});
    return;
  }
  if (extent.size_bytes <= kSampleBytes) {
    fixed_.push_back(sample_at(extent.bytes, extent.size_bytes, index));
    return;
  }
  // Distributes the places evenly from the first to the last bytes.
  const std::size_t last = extent.size_bytes - kSampleBytes;
  for (std::size_t i = 0; i <= kRotating; ++i) {
    const std::size_t place = last / kRotating * i + last % kRotating * i / kRotating;
    const std::size_t to = std::min(extent.size_bytes, place + kZerosBytes);
    const std::size_t nonzero = first_nonzero(extent.bytes, place, to).value_or(place);
    auto& samples = tensor.is_inference() ? uncounted_ : i == 0 ? fixed_ : rotating_[i - 1];
    samples.push_back(sample_at(extent.bytes + nonzero, kSampleBytes, index));
  }
  if (tensor.is_inference()) return;
  const std::size_t limit_bytes = effort == Effort::kHigh ? extent.size_bytes : kZerosBytes;
  if (const auto place = place_by_gradient(tensor, limit_bytes)) {
    fixed_.back() = sample_at(extent.bytes + *place, kSampleBytes, index);
  }
}

template <typename Samples>
std::optional<std::size_t> ByteSamples::find_change_in(const Samples& samples, std::uint64_t turn) {
  const std::size_t count = std::min(samples.size(), kMostPerTurn);
  std::size_t next = count < samples.size() ? turn * kMostPerTurn % samples.size() : 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!samples[next].matches()) return samples[next].tensor;
    if (++next == samples.size()) next = 0;
  }
  return std::nullopt;
}

std::optional<std::size_t> ByteSamples::find_change(std::uint64_t turn) const {
  if (const auto found = find_change_in(fixed_, turn)) return found;
  if (const auto found = find_change_in(rotating_[turn % kRotating], turn / kRotating)) {
    return found;
  }
  if (const auto found = find_change_in(uncounted_, turn)) return found;
  return find_change_in(whole_, turn);
}

bool ByteSamples::all_match(std::size_t index) const {
  const auto match_in = [index](const auto& samples) {
    auto at = std::lower_bound(samples.begin(), samples.end(), index,
                               [](const auto& sample, std::size_t i) { return sample.tensor < i; });
    for (; at != samples.end() && at->tensor == index; ++at) {
      if (!at->matches()) return false;
    }
    return true;
  };
  return match_in(fixed_) && match_in(uncounted_) && match_in(whole_) &&
         std::all_of(rotating_.begin(), rotating_.end(), match_in);
}

}  // namespace modcache::module
