// SPDX-License-Identifier: Apache-2.0
//
// Writes a golden model of the torch that this is built against: refill_model MODEL DIR loads the
// MODEL that make_model.py made, fills DIR/cache from it and saves it, with what it computed, as
// DIR/model.pt. Run once; what it wrote is committed and never made again.
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "support/operators.h"

namespace modcache::testing {
namespace {

void refill(const std::string& file, const std::string& directory) {
  torch::jit::Module model = torch::jit::load(file);
  configure({{"dir", directory + "/cache"}, {"disk", "4MB"}});
  model.setattr("expected", model.get_method("calls")({}));
  model.save(directory + "/model.pt");
  call_operator("flush", {});
  configure({{"dir", directory + "/elsewhere"}});
}

}  // namespace
}  // namespace modcache::testing

int main(int argc, char** argv) {
  if (argc != 3 || !std::filesystem::create_directory(argv[2])) {
    std::fprintf(stderr, "usage: refill_model MODEL DIR (a directory that is not there yet)\n");
    return 2;
  }
  const std::string directory = argv[2];
  modcache::testing::refill(argv[1], directory);
  // Empty by now, and only of use to running processes.
  std::filesystem::remove(directory + "/cache/index.sqlite-wal");
  std::filesystem::remove(directory + "/cache/index.sqlite-shm");
  return 0;
}
