// SPDX-License-Identifier: Apache-2.0
//
// StoreLife: everything that is done to a store, once, with a Ledger of what it promised. Tests run
// it while calls fail, power is lost or the process is killed, and compare what is there then.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/ledger.h"
#include "support/store_fixture.h"

namespace modcache::testing {

class StoreLife {
 public:
  // Called for each value found: a name and the value, or Ledger::kMissing.
  using Seen = std::function<void(const std::string& name, const std::string& found)>;

  StoreLife(fs::FileSystem& file_system, store::StoreOptions options, Ledger& ledger, Seen seen)
      : file_system_(file_system),
        options_(with_notice(std::move(options), ledger)),
        ledger_(ledger),
        seen_(std::move(seen)) {}

  // Returns early when the directory cannot be opened twice in a row.
  void run() {
    if (!open()) return;
    put("a", "first");
    put("large", std::string(100000, 'l'));
    put_rows("r", 6);
    flush();
    look();
    put("a", "second");
    look();
    flush();
    drop("r5");
    clear("r1");
    put("r1", "again");
    put("b", "one more");
    if (!reopen()) return;
    look();
    clear("");
    put("a", "third");
    put("c", "of those that stay");
    put_rows("s", 3);
    flush();
    clear("s1");
    put("c", "replaced");
    flush();
    look();
    if (!reopen()) return;
    store_ = nullptr;
    (void)file_system_.remove(options_.directory + "/index.sqlite");
    if (!reopen()) return;
    look();
    put("large", std::string(50000, 'm'));
    flush();
    evict();
    flush();
    look();
    put("d", "last");
    flush();
    store_ = nullptr;
  }

  // What the directory holds, as a store that opens it without faults finds it. Any failure but a
  // missing key is given in angle brackets.
  static void read(store::Store& store, const Ledger& ledger, const Seen& seen) {
    for (const std::string& name : ledger.names()) seen(name, get(store, context(), name));
  }

  static const store::Context& context() {
    static const store::Context context = context_named("scope");
    return context;
  }

 private:
  // What found no room is no failure, and nothing that a flush promises.
  static store::StoreOptions with_notice(store::StoreOptions options, Ledger& ledger) {
    options.on_not_kept = [&ledger](std::int64_t) { ledger.flushed(false); };
    return options;
  }

  bool open() {
    for (int attempt = 0; attempt < 2; ++attempt) {
      auto opened = store::Store::open(file_system_, options_);
      if (!opened.is_ok()) continue;
      store_ = std::move(opened).value();
      return true;
    }
    return false;
  }
  bool reopen() {
    store_ = nullptr;
    ledger_.flushed(false);  // what was queued is committed, or not
    return open();
  }

  void put(const std::string& name, const std::string& text) {
    const std::string value = name + '/' + text;
    ledger_.put(name, value);
    const auto sequence = testing::put(*store_, context(), name, value);
    const bool is_ok = sequence.is_ok() && sequence.value() != 0;
    if (!is_ok) ledger_.fail(name);
    // A strict put is as safe as all that was flushed.
    if (is_ok && options_.durability == store::Durability::kStrict) ledger_.flushed(true);
  }
  void put_rows(const std::string& prefix, int count) {
    std::vector<std::string> names;
    std::vector<store::RowPut> puts;
    for (int i = 0; i < count; ++i) names.push_back(prefix + std::to_string(i));
    for (const std::string& name : names) {
      const std::string value = name + "/row";
      ledger_.put(name, value);
      puts.push_back({name, "row header", share_bytes(value), 3});
    }
    std::vector<store::Sequence> sequences;
    (void)store_->put_all(context(), puts, sequences);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (sequences[i] == 0) ledger_.fail(names[i]);
    }
  }
  void flush() { ledger_.flushed(store_->flush().is_ok()); }
  void drop(const std::string& name) {
    auto found = store_->find({context(), name});
    if (!found.is_ok()) return;
    ledger_.drop(name);
    (void)store_->drop({context(), name}, found.value()->sequence());
  }
  void clear(const std::string& prefix) {
    ledger_.clear(prefix);
    const bool is_ok = store_->clear({"", prefix}).is_ok();
    if (is_ok) {
      ledger_.cleared(prefix);
    } else {
      ledger_.fail(prefix);
    }
  }

  // Whatever did not leave stays, and a flush promises it again.
  void evict() {
    ledger_.evict();
    (void)store_->evict(200000);
    for (const std::string& name : ledger_.names()) {
      const std::string found = get(*store_, context(), name);
      if (!found.empty() && found.front() != '<') ledger_.put(name, found);
    }
  }

  // Failures are misses here: while calls fail, whatever is not found is run again.
  void look() {
    const std::vector<std::string> names = ledger_.names();
    for (const std::string& name : names) {
      std::string found = get(*store_, context(), name);
      seen_(name, found.empty() || found.front() == '<' ? Ledger::kMissing : std::move(found));
    }
    const std::vector<std::string_view> keys(names.begin(), names.end());
    const store::FoundEntries rows = store_->find_all(context(), keys);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!rows.has(i)) continue;
      std::string value(rows.payload_size_bytes(i), '?');
      if (rows.read(i, value.data()).is_ok()) seen_(names[i], value);
    }
  }

  fs::FileSystem& file_system_;
  const store::StoreOptions options_;
  Ledger& ledger_;
  const Seen seen_;
  std::unique_ptr<store::Store> store_;
};

}  // namespace modcache::testing
