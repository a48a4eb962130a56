// SPDX-License-Identifier: Apache-2.0
#include "store/directory/directory_lock.h"

namespace modcache::store {

Result<DirectoryLock> DirectoryLock::take(fs::File& file, std::int64_t patience_ms) {
  MODCACHE_RETURN_IF_ERROR(fs::lock_within(file, patience_ms));
  return DirectoryLock(&file);
}

DirectoryLock::~DirectoryLock() {
  if (file_ != nullptr) file_->unlock();
}

}  // namespace modcache::store
