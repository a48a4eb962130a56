// SPDX-License-Identifier: Apache-2.0
//
// What commands that change a directory share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "store/store.h"

namespace modcache::command_line {

// What a store is to be told besides its directory: how large it may be, as the environment says,
// and what leaves when it is made smaller: what was used longest ago, or, by the policy `keep`,
// what came last. (By other policies what is new stays for as long as their budget is far away,
// whatever is used beside it: here somebody asks for room that no budget does.)
store::StoreOptions options_of(const std::string& directory);

// As a program that stores would, with time for the one that is at it. kInvalidArgument: no
// directory of modcache. kIoError: one that cannot be written.
Result<std::unique_ptr<store::Store>> open_to_change(const std::string& path);

// Of all files; 0 where that cannot be told.
std::int64_t size_bytes_of(const std::string& path);

}  // namespace modcache::command_line
