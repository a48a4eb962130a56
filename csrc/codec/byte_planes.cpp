// SPDX-License-Identifier: Apache-2.0
#include "codec/byte_planes.h"

#include <array>
#include <cstring>

namespace modcache::codec {
namespace {

// The number of planes is a template argument, so that the compiler vectorizes the loops.
template <std::size_t kPlanes>
void split(const char* __restrict source, std::size_t elements, char* __restrict target) {
  for (std::size_t k = 0; k < kPlanes; ++k) {
    for (std::size_t i = 0; i < elements; ++i) target[k * elements + i] = source[i * kPlanes + k];
  }
}

template <std::size_t kPlanes>
void join(const char* const* sources, std::size_t elements, char* __restrict target) {
  std::array<const char*, kPlanes> planes;
  for (std::size_t k = 0; k < kPlanes; ++k) planes[k] = sources[k];
  for (std::size_t i = 0; i < elements; ++i) {
    for (std::size_t k = 0; k < kPlanes; ++k) target[i * kPlanes + k] = planes[k][i];
  }
}

}  // namespace

std::size_t plane_count(std::size_t element_size_bytes) {
  switch (element_size_bytes) {
    case 2:
    case 4:
    case 8:
    case 16: return element_size_bytes;
    default: return 1;
  }
}

void split_into_planes(const char* source, std::size_t planes, std::size_t elements, char* target) {
  switch (planes) {
    case 2: return split<2>(source, elements, target);
    case 4: return split<4>(source, elements, target);
    case 8: return split<8>(source, elements, target);
    case 16: return split<16>(source, elements, target);
    default: std::memcpy(target, source, elements);
  }
}

void join_planes(const char* const* sources, std::size_t planes, std::size_t elements,
                 char* target) {
  switch (planes) {
    case 2: return join<2>(sources, elements, target);
    case 4: return join<4>(sources, elements, target);
    case 8: return join<8>(sources, elements, target);
    case 16: return join<16>(sources, elements, target);
    default: std::memcpy(target, sources[0], elements);
  }
}

}  // namespace modcache::codec
