// SPDX-License-Identifier: Apache-2.0
#include "command_line/changing.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "cache/settings.h"
#include "command_line/cache_directory.h"
#include "command_line/disk_files.h"
#include "fs/posix_file_system.h"
#include "policy/policy.h"

namespace modcache::command_line {
namespace {

Status refused(const std::string& path, const std::string& why) {
  return Status::invalid_argument("'" + path + "' " + why);
}

Status check_may_replace(fs::FileSystem& file_system, const std::string& path,
                         std::string_view beginning) {
  const auto info = file_system.name_info(path);
  if (info.is_not_found()) return Status::ok();
  if (!info.is_ok()) return info.status();
  if (!info.value().is_regular) {
    return refused(path, std::string("is a ") + info.value().kind + "; name a file");
  }
  if (info.value().size_bytes == 0) return Status::ok();
  MODCACHE_ASSIGN_OR_RETURN(const auto file, file_system.open(path, fs::OpenMode::kRead));
  std::string found(beginning.size(), '\0');
  MODCACHE_ASSIGN_OR_RETURN(const auto size, file->read_at(0, found.data(), found.size()));
  if (size == beginning.size() && found == beginning) return Status::ok();
  return refused(path, "is there and was not written by this command; remove it, or name another");
}

Status write_new(fs::FileSystem& file_system, const std::string& path, std::string_view text) {
  MODCACHE_ASSIGN_OR_RETURN(const auto file, file_system.open(path, fs::OpenMode::kCreateToShare));
  MODCACHE_RETURN_IF_ERROR(file->write_at(0, {{text.data(), text.size()}}));
  return file->sync_data();
}

}  // namespace

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

Status write_whole_file(const std::string& path, std::string_view text,
                        std::string_view beginning) {
  fs::FileSystem& file_system = fs::posix_file_system();
  const std::size_t slash = path.rfind('/');
  const std::string given = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.empty() || name == "." || name == "..") return refused(path, "names no file");
  const std::string folder = file_system.resolve(given);
  const auto place = file_system.info(folder);
  if (!place.is_ok() || !place.value().is_directory) {
    return refused(path, "would be in a folder that is not there");
  }
  const std::string whole = folder + '/' + name;
  MODCACHE_RETURN_IF_ERROR(check_may_replace(file_system, whole, beginning));
  const std::string making = whole + '.' + std::to_string(::getpid()) + ".new";
  Status status = write_new(file_system, making, text);
  if (status.is_ok()) status = file_system.rename(making, whole);
  if (!status.is_ok()) {
    (void)file_system.remove(making);
    return status;
  }
  return file_system.sync_directory(folder);
}

}  // namespace modcache::command_line
