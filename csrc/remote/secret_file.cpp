// SPDX-License-Identifier: Apache-2.0
#include "remote/secret_file.h"

#include "fs/posix_file_system.h"

namespace modcache::remote {
namespace {

constexpr std::size_t kMostBytes = 1 << 16;

}  // namespace

Result<std::string> read_secret_file(const std::string& path, const std::string& parameter,
                                     const std::string& holds) {
  const auto file = fs::posix_file_system().open(path, fs::OpenMode::kReadFollowing);
  Status failure = file.status();
  if (file.is_ok()) {
    std::string secret(kMostBytes + 1, '\0');
    const auto read = file.value()->read_at(0, secret.data(), secret.size());
    failure = read.status();
    secret.resize(read.is_ok() ? read.value() : 0);
    if (secret.size() > kMostBytes) {
      failure = Status::invalid_argument("it is too large for a secret");
      secret.clear();
    }
    while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
    if (!secret.empty()) return secret;
  }
  return Status::invalid_argument(
      "the file '" + path + "' (parameter " + parameter + " of remote) " +
      (failure.is_ok() ? "is empty" : "cannot be read: " + failure.message()) + "; it holds " +
      holds);
}

}  // namespace modcache::remote
