// SPDX-License-Identifier: Apache-2.0
#include "command_line/changing.h"

#include <utility>
#include <vector>

#include "cache/settings.h"
#include "command_line/cache_directory.h"
#include "command_line/disk_files.h"
#include "fs/posix_file_system.h"
#include "policy/policy.h"

namespace modcache::command_line {

store::StoreOptions options_of(const std::string& directory) {
  std::vector<std::string> warnings;  // doctor reports them
  const cache::Settings settings = cache::settings_from_environment(warnings);
  store::StoreOptions options;
  options.directory = directory;
  options.disk_budget_bytes = settings.disk_bytes;
  const bool is_keep = settings.policy == policy::Kind::kKeep;
  options.make_policy = [is_keep](void* shared_state) {
    return policy::make_policy(is_keep ? policy::Kind::kKeep : policy::Kind::kLru, shared_state);
  };
  options.patience_ms = 10'000;
  return options;
}

Result<std::unique_ptr<store::Store>> open_to_change(const std::string& path) {
  MODCACHE_RETURN_IF_ERROR(check_is_cache(path));
  store::StoreOptions options = options_of(path);
  Status foreign;
  options.on_foreign_file = [&foreign](const Status& status) { foreign = status; };
  MODCACHE_ASSIGN_OR_RETURN(auto opened,
                            store::Store::open(fs::posix_file_system(), std::move(options)));
  if (opened->is_read_only()) {
    if (!foreign.is_ok()) return foreign;
    return Status::io_error("'" + path +
                            "' cannot be written: its owner, or chmod -R u+w, can help");
  }
  return opened;
}

Result<store::ClearFilter> filter_of(const std::optional<std::string>& scope,
                                     const std::optional<std::string>& prefix) {
  for (const auto& [name, given] : {std::pair("--scope", &scope), std::pair("--prefix", &prefix)}) {
    if (*given && (*given)->empty()) {
      return Status::invalid_argument(std::string(name) +
                                      " is empty; leave it out to name all entries");
    }
  }
  return store::ClearFilter{scope.value_or(""), prefix.value_or(""), 0};
}

std::int64_t size_bytes_of(const std::string& path) {
  auto files = DiskFiles::list(path);
  return files.is_ok() ? files.value().size_bytes() : 0;
}

}  // namespace modcache::command_line
