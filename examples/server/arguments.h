// SPDX-License-Identifier: Apache-2.0
//
// The command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace server {

struct Configuration {
  std::string model;
  std::string host = "127.0.0.1";
  int port = 8080;               // 0: any that is free
  std::size_t connections = 64;  // at a time; each has a thread of its own
  int threads = 1;               // of torch, for each run of the model
  std::string dtype = "float32";
  std::vector<std::int64_t> shape;  // -1: any size. Empty: whatever the model takes
  std::int64_t rows = 4096;         // of an input, where `shape` does not fix them
  std::size_t body_bytes = std::size_t{4} << 20;
  int request_timeout_ms = 10'000;  // from the first byte of a request to its last
  int idle_timeout_ms = 30'000;     // between two requests of a connection
  int drain_ms = 1000;
  std::vector<std::string> names;  // by which browsers may reach the switch, besides addresses
  std::map<std::string, std::string> settings;  // of the cache
};

// Returns true where the server is to start; otherwise `exit_code` says how the program ends, and
// whatever a person has to know was printed. Does not throw.
bool read_arguments(int argc, char** argv, Configuration& configuration, int& exit_code);

}  // namespace server
