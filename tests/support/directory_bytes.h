// SPDX-License-Identifier: Apache-2.0
//
// What a directory holds on disk, for tests that compare or damage it.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace modcache::testing {

inline std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline void flip_bit(const std::string& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x10));
}

// Every file below `directory`: its bytes by its path.
inline std::map<std::string, std::string> all_bytes(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    files[entry.path().string()] = entry.is_regular_file() ? file_bytes(entry.path()) : "directory";
  }
  return files;
}

inline std::vector<std::string> segment_files(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory + "/segments")) {
    paths.push_back(entry.path().string());
  }
  return paths;
}

// How many files below `directory` this process has open or mapped that no name leads to.
inline std::size_t unlinked_files_held(const std::string& directory) {
  const auto is_one = [&](const std::string& line) {
    const std::size_t path = line.find(directory + '/');
    return path != std::string::npos && line.find(" (deleted)", path) != std::string::npos;
  };
  std::size_t held = 0;
  std::error_code error;  // a file of another thread may be closed meanwhile
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    if (is_one(std::filesystem::read_symlink(entry.path(), error).string())) ++held;
  }
  std::ifstream mappings("/proc/self/maps");
  for (std::string line; std::getline(mappings, line);) {
    if (is_one(line)) ++held;
  }
  return held;
}

}  // namespace modcache::testing
