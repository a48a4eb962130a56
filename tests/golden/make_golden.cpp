// SPDX-License-Identifier: Apache-2.0
//
// Writes a golden directory: make_golden DIR. Run once for each version of the format, draft
// versions too. What it writes is committed, without index.map.
#include <cstdio>
#include <filesystem>
#include <string>

#include "fs/posix_file_system.h"
#include "golden/golden_contents.h"
#include "store/store.h"

namespace modcache::testing {
namespace {

bool put(store::Store& store, const GoldenEntry& entry) {
  return store
      .put({{entry.context, entry.key}, entry.header, share_bytes(entry.payload), entry.run_us})
      .is_ok();
}

bool fill(const std::string& directory) {
  store::StoreOptions options;
  options.directory = directory;
  auto first = store::Store::open(fs::posix_file_system(), options);
  auto second = store::Store::open(fs::posix_file_system(), options);
  if (!first.is_ok() || !second.is_ok()) return false;
  // Two that write at a time have a segment each.
  store::Store& one = *first.value();
  store::Store& two = *second.value();
  const store::Context encoder = golden_context("encoder");
  bool is_ok = put(one, {encoder, "replaced", "old", golden_payload(64), 1}) &&
               put(one, {encoder, "gone", "", golden_payload(64), 1}) && one.flush().is_ok() &&
               one.clear({"encoder", "go"}).is_ok();
  for (const GoldenEntry& entry : golden_entries()) {
    is_ok = is_ok && put(entry.context.scope == "encoder" ? one : two, entry);
  }
  return is_ok && one.flush().is_ok() && two.flush().is_ok();
}

}  // namespace
}  // namespace modcache::testing

int main(int argc, char** argv) {
  if (argc != 2 || !modcache::testing::fill(argv[1])) {
    std::fprintf(stderr, "usage: make_golden DIR (a directory that is not there yet)\n");
    return 2;
  }
  // Empty by now, and only of use to running processes.
  std::filesystem::remove(std::string(argv[1]) + "/index.sqlite-wal");
  std::filesystem::remove(std::string(argv[1]) + "/index.sqlite-shm");
  return 0;
}
