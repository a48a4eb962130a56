// SPDX-License-Identifier: Apache-2.0
#include "store/counters/totals_file.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/random.h"
#include "store/counters/counter_totals.h"

namespace modcache::store {
namespace {

constexpr std::string_view kTotalsTitle = "modcache counters 2\n";
constexpr std::string_view kAnyTitle = "modcache counters ";
constexpr std::size_t kDigestBytes = Digest128::kSizeBytes;
// A directory has far fewer files of processes that ended.
constexpr std::uint32_t kMostGathered = 1 << 16;
constexpr std::size_t kMostTotalsBytes = 4 << 20;

std::string path_of_totals(const Directory& directory) {
  return directory.counters_path() + "/totals";
}

template <typename Number>
void append(Number number, std::string& bytes) {
  char encoded[sizeof(Number)];
  write_number(number, encoded);
  bytes.append(encoded, sizeof encoded);
}

// Takes numbers and texts from the front of bytes that nobody has checked.
class Pieces {
 public:
  explicit Pieces(std::string_view bytes) : rest_(bytes) {}

  std::string_view bytes(std::size_t count) {
    is_whole_ = is_whole_ && count <= rest_.size();
    if (!is_whole_) return {};
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  template <typename Number>
  Number number() {
    const std::string_view taken = bytes(sizeof(Number));
    return is_whole_ ? read_number<Number>(taken.data()) : Number{};
  }
  bool is_whole() const { return is_whole_; }
  bool is_at_end() const { return is_whole_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool is_whole_ = true;
};

std::string body_of(const TotalsFile& totals) {
  std::string body;
  append(totals.serial, body);
  append(totals.since_us, body);
  append<std::uint32_t>(totals.was_zeroed ? 1 : 0, body);
  append(static_cast<std::uint32_t>(totals.gathered.size()), body);
  append(static_cast<std::uint32_t>(totals.days.size()), body);
  for (const std::uint64_t id : totals.gathered) append(id, body);
  for (const CountedDay& day : totals.days) {
    append(day.day, body);
    append(static_cast<std::uint32_t>(day.scope.size()), body);
    body += day.scope;
    for (const std::int64_t count : day.counts) append(count, body);
  }
  return body;
}

bool read_body(std::string_view body, TotalsFile& totals) {
  Pieces pieces(body);
  totals.serial = pieces.number<std::uint64_t>();
  totals.since_us = pieces.number<std::int64_t>();
  totals.was_zeroed = pieces.number<std::uint32_t>() != 0;
  const auto gathered = pieces.number<std::uint32_t>();
  const auto days = pieces.number<std::uint32_t>();
  if (gathered > kMostGathered || days > kMostCountedDays) return false;
  for (std::uint32_t i = 0; i < gathered; ++i) {
    totals.gathered.push_back(pieces.number<std::uint64_t>());
  }
  for (std::uint32_t i = 0; i < days && pieces.is_whole(); ++i) {
    CountedDay day;
    day.day = pieces.number<std::int32_t>();
    const auto scope_bytes = pieces.number<std::uint32_t>();
    if (scope_bytes > kMostScopeBytes) return false;
    day.scope = pieces.bytes(scope_bytes);
    for (std::int64_t& count : day.counts) count = pieces.number<std::int64_t>();
    totals.days.push_back(std::move(day));
  }
  return pieces.is_at_end();
}

Result<std::string> read_whole(const Directory& directory) {
  MODCACHE_ASSIGN_OR_RETURN(
      auto file, directory.file_system().open(path_of_totals(directory), fs::OpenMode::kRead));
  MODCACHE_ASSIGN_OR_RETURN(auto info, file->info());
  std::string bytes(std::min<std::uint64_t>(info.size_bytes, kMostTotalsBytes), '\0');
  MODCACHE_ASSIGN_OR_RETURN(auto size, file->read_at(0, bytes.data(), bytes.size()));
  bytes.resize(size);
  return bytes;
}

}  // namespace

Result<TotalsFile> read_totals_file(const Directory& directory) {
  const auto bytes = read_whole(directory);
  if (bytes.is_not_found()) return TotalsFile{};
  if (!bytes.is_ok()) return bytes.status();
  const std::string_view all = bytes.value();
  const std::string_view title = all.substr(0, kTotalsTitle.size());
  const bool is_totals =
      title.size() == kTotalsTitle.size() && title.substr(0, kAnyTitle.size()) == kAnyTitle;
  if (is_totals && title != kTotalsTitle) {
    return Status::unsupported_version("'" + path_of_totals(directory) +
                                       "' is of another version of modcache");
  }
  const std::size_t begins = kTotalsTitle.size() + kDigestBytes;
  if (all.size() < begins || title != kTotalsTitle) return TotalsFile{};
  const std::string_view body = all.substr(begins);
  if (all.substr(kTotalsTitle.size(), kDigestBytes) != xxh3_128(body).bytes()) return TotalsFile{};
  TotalsFile totals;
  return read_body(body, totals) ? totals : TotalsFile{};
}

Status write_totals_file(const Directory& directory, const TotalsFile& given) {
  TotalsFile totals = given;
  totals.serial = random_number();
  if (totals.days.size() > kMostCountedDays) totals.days.resize(kMostCountedDays);
  const std::string body = body_of(totals);
  const std::string bytes = std::string(kTotalsTitle) + xxh3_128(body).bytes() + body;
  fs::FileSystem& file_system = directory.file_system();
  const std::string path = path_of_totals(directory);
  const std::string making = path + ".new";
  // A process may have died here and left one.
  MODCACHE_RETURN_IF_ERROR(file_system.remove(making));
  {
    MODCACHE_ASSIGN_OR_RETURN(auto file, file_system.open(making, fs::OpenMode::kCreateExclusive));
    MODCACHE_RETURN_IF_ERROR(file->write_at(0, {{bytes.data(), bytes.size()}}));
    MODCACHE_RETURN_IF_ERROR(file->sync_data());
  }
  return file_system.rename(making, path);
}

}  // namespace modcache::store
