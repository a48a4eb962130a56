// SPDX-License-Identifier: Apache-2.0
#include "triton_cache/packed_response.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace modcache::triton_cache {
namespace {

class PackedReader {
 public:
  explicit PackedReader(std::string_view bytes) : rest_(bytes) {}

  bool is_at_end() const { return rest_.empty(); }

  // Triton writes numbers as the machine has them.
  template <typename Number>
  bool read(Number& number) {
    if (rest_.size() < sizeof number) return false;
    std::memcpy(&number, rest_.data(), sizeof number);
    rest_.remove_prefix(sizeof number);
    return true;
  }
  // A size, and as many bytes.
  template <typename Size>
  bool read_sized(std::string_view& bytes) {
    Size size = 0;
    if (!read(size) || size > rest_.size()) return false;
    bytes = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(static_cast<std::size_t>(size));
    return true;
  }

 private:
  std::string_view rest_;
};

bool is_output(std::string_view bytes) {
  PackedReader reader(bytes);
  std::string_view name;
  std::string_view dtype;
  std::string_view shape;
  std::string_view data;
  return reader.read_sized<std::uint32_t>(name) && reader.read_sized<std::uint32_t>(dtype) &&
         reader.read_sized<std::uint32_t>(shape) && shape.size() % sizeof(std::int64_t) == 0 &&
         reader.read_sized<std::uint64_t>(data) && reader.is_at_end();
}

}  // namespace

bool is_packed_response(std::string_view bytes) {
  PackedReader reader(bytes);
  std::uint32_t outputs = 0;
  if (!reader.read(outputs) || outputs == 0) return false;
  for (std::uint32_t i = 0; i < outputs; ++i) {
    std::string_view output;
    if (!reader.read_sized<std::uint64_t>(output) || !is_output(output)) return false;
  }
  return reader.is_at_end();
}

}  // namespace modcache::triton_cache
