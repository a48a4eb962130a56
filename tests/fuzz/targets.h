// SPDX-License-Identifier: Apache-2.0
//
// What is fuzzed: everything that reads bytes which strangers or broken disks can have written.
// Each target takes any bytes, and aborts (FUZZ_CHECK) when a promise does not hold. libFuzzer runs
// them (fuzz_main.cpp); the unit tests replay corpus/ and mutations of it (fuzz_corpus_test.cpp).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#define FUZZ_CHECK(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

namespace modcache::fuzz {

struct Target {
  const char* name;  // of its folder in corpus/
  void (*run)(std::string_view bytes);
};
const std::vector<Target>& targets();

void run_record(std::string_view bytes);          // a segment's header, a record's head
void run_segment(std::string_view bytes);         // scanned, and made an index of
void run_sealed_segment(std::string_view bytes);  // the same, its checksums set right first
void run_pack(std::string_view bytes);
void run_sealed_pack(std::string_view bytes);  // the same, its checksums set right first
void run_index_table(std::string_view bytes);  // zeros at its end may be left out
void run_control(std::string_view bytes);
void run_note(std::string_view bytes);
void run_log(std::string_view bytes);  // SQLite's, as far as we look at it
void run_entry_header(std::string_view bytes);
void run_value_header(std::string_view bytes);
void run_codec(std::string_view bytes);

}  // namespace modcache::fuzz
