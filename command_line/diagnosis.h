// SPDX-License-Identifier: Apache-2.0
//
// The checks of `doctor`, one function each. None of them changes a byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command_line/disk_files.h"
#include "command_line/installation.h"

namespace modcache::command_line {

struct Finding {
  enum class State { kOk, kNote, kProblem };  // a note is worth knowing, but not a fault
  State state = State::kOk;
  std::string check;
  std::string found;
  std::string cure;  // empty: nothing to do
};

Finding check_file_system(const std::string& directory);
Finding check_permissions(const std::string& directory, const DiskFiles& files);
Finding check_kinds(const std::string& directory);
Finding check_free_space(const std::string& directory, std::int64_t budget_bytes,
                         std::int64_t used_bytes);
Finding check_database(const std::string& directory);
Finding check_clock(const DiskFiles& files, std::int64_t last_stored_at_us, std::int64_t now_us);
Finding check_leftovers(const DiskFiles& files, std::int64_t now_us);
Finding check_processes(const std::string& directory);
Finding check_limits();
Finding check_settings(std::int64_t& budget_bytes);
Finding check_installation();
// The server of the setting `remote`, where the environment has one; waits for it some seconds.
Finding check_server();

// The judgement of the checks, apart from the numbers, which differ between machines.
Finding judge_file_system(std::uint64_t type);
Finding judge_free_space(std::int64_t free_bytes, std::int64_t free_files,
                         std::int64_t budget_bytes, std::int64_t used_bytes);
Finding judge_installation(const Installation& installation);
Finding judge_limits(std::int64_t open_files, std::int64_t mappings);

}  // namespace modcache::command_line
