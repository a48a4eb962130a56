// SPDX-License-Identifier: Apache-2.0
//
// What the golden directories hold: make_golden.cpp writes it, golden_test.cpp reads it.
// Never changed: a new version of the format gets a new directory, and contents of its own if it
// needs them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "store/store.h"

namespace modcache::testing {

struct GoldenEntry {
  store::Context context;
  std::string key;
  std::string header;
  std::string payload;
  std::int64_t run_us;
};

inline store::Context golden_context(const std::string& scope) {
  return {blake2b_128("golden " + scope), scope, "the golden context of " + scope};
}

inline std::string golden_payload(std::size_t size_bytes) {
  std::string payload(size_bytes, '\0');
  std::uint32_t state = 1;
  for (char& byte : payload) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  return payload;
}

// What is found. Besides: "replaced" had another value before, and "gone" of scope "encoder" was
// cleared by its prefix "go".
inline std::vector<GoldenEntry> golden_entries() {
  const store::Context encoder = golden_context("encoder");
  const store::Context other = golden_context("other \xc3\xa9");
  return {
      {encoder, "key", "a header", golden_payload(2048), 1500},
      {encoder, "empty", "", "", 0},
      {encoder, std::string("bytes\0\xff", 7), std::string("\0\x01", 2), golden_payload(100), 7},
      {encoder, "replaced", "new", golden_payload(65), 2},
      {other, "key", "another header", golden_payload(3000), 3},
      {other, "gone", "not of the cleared scope", golden_payload(10), 4},
  };
}

}  // namespace modcache::testing
