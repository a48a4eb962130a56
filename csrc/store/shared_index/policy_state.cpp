// SPDX-License-Identifier: Apache-2.0
#include "store/shared_index/policy_state.h"

#include <cstring>
#include <string>
#include <utility>

namespace modcache::store {
namespace {

constexpr char kPolicyMagic[16] = "modcache policy";
constexpr std::uint64_t kVersion = 2;
constexpr std::size_t kPolicyVersionOffset = 16;
constexpr std::size_t kTicksOffset = 64;
constexpr std::size_t kPolicyHeaderBytes = 4096;
constexpr std::size_t kFileBytes = kPolicyHeaderBytes + policy::kSharedStateBytes;

std::string empty_state() {
  std::string bytes(kFileBytes, '\0');
  std::memcpy(bytes.data(), kPolicyMagic, sizeof kPolicyMagic);
  std::memcpy(bytes.data() + kPolicyVersionOffset, &kVersion, sizeof kVersion);
  return bytes;
}

Result<std::unique_ptr<fs::File>> open_file(const Directory& directory) {
  MODCACHE_ASSIGN_OR_RETURN(auto file, directory.file_system().open(directory.policy_state_path(),
                                                                    fs::OpenMode::kReadWrite));
  MODCACHE_ASSIGN_OR_RETURN(auto info, file->info());
  char head[kPolicyVersionOffset + sizeof kVersion];
  MODCACHE_ASSIGN_OR_RETURN(auto count, file->read_at(0, head, sizeof head));
  if (info.size_bytes != kFileBytes || count != sizeof head ||
      std::memcmp(head, kPolicyMagic, sizeof kPolicyMagic) != 0 ||
      std::memcmp(head + kPolicyVersionOffset, &kVersion, sizeof kVersion) != 0) {
    return Status::corruption("'" + directory.policy_state_path() + "' is no state of policies");
  }
  return file;
}

// A link or a pipe in the file's place is replaced by a new file; what it leads to stays as it is.
bool is_lost(const Status& status) {
  return status.is_not_found() || status.code() == StatusCode::kCorruption ||
         status.code() == StatusCode::kForeign;
}

}  // namespace

PolicyState::PolicyState(std::unique_ptr<fs::File> file, std::shared_ptr<fs::Mapping> mapping)
    : file_(std::move(file)), mapping_(std::move(mapping)) {}

Result<std::unique_ptr<PolicyState>> PolicyState::open(const Directory& directory,
                                                       bool may_create) {
  auto file = open_file(directory);
  if (may_create && is_lost(file.status())) {
    const std::string temporary = directory.policy_state_path() + ".new";
    MODCACHE_RETURN_IF_ERROR(directory.file_system().remove(temporary));
    MODCACHE_ASSIGN_OR_RETURN(
        auto created, directory.file_system().open(temporary, fs::OpenMode::kCreateExclusive));
    const std::string bytes = empty_state();
    const Status written = created->write_at(0, {{bytes.data(), bytes.size()}});
    if (!written.is_ok()) {
      (void)directory.file_system().remove(temporary);  // half a file takes room others need
      return written;
    }
    MODCACHE_RETURN_IF_ERROR(
        directory.file_system().rename(temporary, directory.policy_state_path()));
    file = open_file(directory);
  }
  if (!file.is_ok()) return file.status();
  MODCACHE_ASSIGN_OR_RETURN(auto mapping, file.value()->map(kFileBytes, true));
  return std::unique_ptr<PolicyState>(new PolicyState(std::move(file).value(), std::move(mapping)));
}

void* PolicyState::bytes() const { return mapping_->data() + kPolicyHeaderBytes; }

std::atomic<std::uint64_t>& PolicyState::ticks() const {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_->data() + kTicksOffset);
}

}  // namespace modcache::store
