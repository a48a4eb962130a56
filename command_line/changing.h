// SPDX-License-Identifier: Apache-2.0
//
// Shared by the commands that change a directory, or take a part of one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/status.h"
#include "store/store.h"

namespace modcache::command_line {

// Returns the options for opening a store: the budget from the environment, and the policy that
// decides which entries leave when the directory is made smaller. That is "longest unused first",
// or, with the policy `keep`, "newest first". Other policies protect new entries while their budget
// is far away, but this command wants space below the budget.
store::StoreOptions options_of(const std::string& directory);

// Opens the store as a program that stores entries would, and waits a while for another one that
// has it locked. Returns kInvalidArgument when it is not a directory of modcache, and kIoError when
// it cannot be written.
Result<std::unique_ptr<store::Store>> open_to_change(const std::string& path);

// Returns the filter for the options --scope and --prefix. kInvalidArgument when one was given with
// an empty value, which would match everything; nobody who narrows a command wants that.
Result<store::ClearFilter> filter_of(const std::optional<std::string>& scope,
                                     const std::optional<std::string>& prefix);

// The size of all files; 0 when it cannot be determined.
std::int64_t size_bytes_of(const std::string& path);

// Writing a file for people at once: a reader sees all of it, or what was there before.
// Replaces a file that is empty or begins with `beginning`, which only files of this kind do, or
// makes it. kInvalidArgument: something else is there, or its folder is not; nothing was changed.
// kIoError, kNoSpace: it cannot be written; what was there stays.
Status write_whole_file(const std::string& path, std::string_view text, std::string_view beginning);

}  // namespace modcache::command_line
