// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_header.h"

namespace modcache::tensor {
namespace {

constexpr std::size_t kFixedBytes = 4;

}  // namespace

std::string encode_tensor_header(const TensorHeader& header) {
  std::string out;
  out.reserve(kFixedBytes + 8 * header.sizes.size());
  out.push_back(static_cast<char>(TensorHeader::kVersion));
  out.push_back(static_cast<char>(header.dtype));
  out.push_back(static_cast<char>(header.flags));
  out.push_back(static_cast<char>(header.sizes.size()));
  for (const std::int64_t size : header.sizes) {
    const auto bits = static_cast<std::uint64_t>(size);
    for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
  }
  return out;
}

Result<TensorHeader> decode_tensor_header(std::string_view bytes) {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (bytes.size() < kFixedBytes) return Status::corruption("a tensor header is too short");
  if (byte_at(0) != TensorHeader::kVersion) {
    return Status::corruption("a tensor header has the unknown version " +
                              std::to_string(byte_at(0)));
  }
  TensorHeader header;
  header.dtype = byte_at(1);
  header.flags = byte_at(2);
  const std::size_t dimensions = byte_at(3);
  if (dimensions > TensorHeader::kMostDimensions || bytes.size() != kFixedBytes + 8 * dimensions) {
    return Status::corruption("a tensor header has " + std::to_string(bytes.size()) +
                              " bytes for " + std::to_string(dimensions) + " dimensions");
  }
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::uint64_t bits = 0;
    for (std::size_t i = 8; i-- > 0;) bits = (bits << 8) | byte_at(kFixedBytes + 8 * d + i);
    const auto size = static_cast<std::int64_t>(bits);
    if (size < 0) return Status::corruption("a tensor header has a negative size");
    header.sizes.push_back(size);
  }
  return header;
}

}  // namespace modcache::tensor
