// SPDX-License-Identifier: Apache-2.0
//
// What a batch costs that only a server has, beside a raw loop over the same bytes.
//
//     remote_batch ADDRESS [ROUNDS]      ADDRESS: redis://host:port/0
//
// Each round asks for the same rows in three ways, one after the other: through a Cache, without
// nearer tiers; by a pipeline of GETs on a connection of libvalkey's; and through a Cache with
// one key at a time. Prints one object of JSON with the medians, in us.
#include <valkey/valkey.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache.h"
#include "remote/address.h"
#include "support/text_value.h"

namespace {

using modcache::cache::Cache;
using modcache::cache::ContextPtr;
using modcache::cache::Found;
using modcache::cache::Keys;

constexpr std::size_t kRows = 256;
constexpr std::size_t kRowBytes = 2048;
constexpr std::int64_t kRunUs = 10'000;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "remote_batch: %s\n", why.c_str());
  std::exit(1);
}

double us_of(const std::function<void()>& work) {
  const auto started = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - started;
  return took.count();
}

double median_of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

class Rows {
 public:
  explicit Rows(const std::string& address) : cache_(format_), out_(kRows * kRowBytes, '\0') {
    const modcache::Status status = cache_.configure(
        {{"remote", address}, {"memory", "0"}, {"disk", "0"}, {"remote_timeout_ms", "5000"}});
    if (!status.is_ok()) give_up(status.message());
    modcache::cache::ContextParts parts;
    parts.scope = "scope";
    parts.method = "forward";
    parts.form = modcache::cache::Form::kRow;
    context_ = modcache::cache::make_context(parts);
    for (std::size_t i = 0; i < kRows; ++i) texts_.push_back("key-" + std::to_string(i));
    keys_.assign(texts_.begin(), texts_.end());
    store();
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const std::string& key : texts_) {
      names.push_back("modcache/e/" + modcache::store::address_of(context_->digest, key).hex());
    }
    return names;
  }

  void read_all() { read(keys_); }
  void read_one_by_one() {
    for (const std::string_view key : keys_) read({key});
  }

 private:
  void store() {
    std::vector<modcache::cache::EntryPtr> entries;
    for (std::size_t i = 0; i < kRows; ++i) {
      entries.push_back(modcache::testing::text_entry(
          std::string(kRowBytes, static_cast<char>('a' + i % 26)), "", kRunUs));
    }
    (void)cache_.store(asked(keys_), entries);
    cache_.flush();
    if (cache_.stats().at("remote_stored") < static_cast<std::int64_t>(kRows)) {
      give_up("the server did not take the rows");
    }
  }
  Keys asked(const std::vector<std::string_view>& keys) {
    Keys all(context_, keys);
    all.configuration = cache_.configuration();
    all.form = modcache::cache::Form::kRow;
    return all;
  }
  void read(const std::vector<std::string_view>& texts) {
    const Keys keys = asked(texts);
    modcache::cache::LookupOptions options;
    options.may_write = true;
    const Found found = cache_.lookup(keys, options);
    cache_.count_hits(keys, found, true);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!found.is_row(i)) give_up("a row was not found");
      if (!found.rows().read(found.row(i), &out_[i * kRowBytes]).is_ok()) give_up("a row broke");
    }
  }

  const modcache::testing::TextFormat format_;
  Cache cache_;
  ContextPtr context_;
  std::vector<std::string> texts_;
  std::vector<std::string_view> keys_;
  std::string out_;
};

// The bytes that the server sent.
std::size_t pipelined(valkeyContext& connection, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const char* arguments[] = {"GET", name.c_str()};
    const std::size_t sizes[] = {3, name.size()};
    valkeyAppendCommandArgv(&connection, 2, arguments, sizes);
  }
  std::size_t size_bytes = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    void* reply = nullptr;
    if (valkeyGetReply(&connection, &reply) != VALKEY_OK) give_up(connection.errstr);
    size_bytes += static_cast<valkeyReply*>(reply)->len;
    freeReplyObject(reply);
  }
  return size_bytes;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) give_up("usage: remote_batch ADDRESS [ROUNDS]");
  const auto address = modcache::remote::parse_address(arguments[1]);
  if (!address.is_ok()) give_up(address.status().message());
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 300;
  const auto& host = address.value().hosts.front();
  const std::unique_ptr<valkeyContext, decltype(&valkeyFree)> connection(
      valkeyConnect(host.name.c_str(), host.port), &valkeyFree);
  if (connection == nullptr || connection->err != 0) give_up("the server does not answer");
  Rows rows(arguments[1]);
  const std::vector<std::string> names = rows.names();
  std::vector<double> batch;
  std::vector<double> raw;
  std::vector<double> single;
  std::size_t size_bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    batch.push_back(us_of([&] { rows.read_all(); }));
    raw.push_back(us_of([&] { size_bytes = pipelined(*connection, names); }));
    if (round % 20 == 0) single.push_back(us_of([&] { rows.read_one_by_one(); }));
  }
  std::printf(
      "{\"rows\": %zu, \"bytes\": %zu, \"batch_us\": %.1f, \"raw_pipeline_us\": %.1f, "
      "\"one_by_one_us\": %.1f}\n",
      kRows, size_bytes, median_of(batch), median_of(raw), median_of(single));
  return 0;
}
