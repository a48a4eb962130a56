// SPDX-License-Identifier: Apache-2.0
//
// Responses as Triton packs them (triton_cache/response.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace modcache::testing {

template <typename Number>
std::string machine_bytes(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

inline std::string packed_text(std::string_view text) {
  return machine_bytes(static_cast<std::uint32_t>(text.size())) + std::string(text);
}

// An output "y" of one dimension of bytes.
inline std::string packed_output(std::string_view data) {
  const std::string output = packed_text("y") + packed_text("UINT8") +
                             packed_text(machine_bytes(static_cast<std::int64_t>(data.size()))) +
                             machine_bytes(std::uint64_t{data.size()}) + std::string(data);
  return machine_bytes(std::uint64_t{output.size()}) + output;
}

inline std::string packed_response(const std::vector<std::string>& outputs) {
  std::string packed = machine_bytes(static_cast<std::uint32_t>(outputs.size()));
  for (const std::string& data : outputs) packed += packed_output(data);
  return packed;
}

}  // namespace modcache::testing
