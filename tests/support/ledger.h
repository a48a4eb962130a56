// SPDX-License-Identifier: Apache-2.0
//
// Ledger: what a test has put, replaced and cleared, and what of it a store has promised. It
// answers whether what was found for a key may be. Thread-safe.
//
// A key has versions; the first is to be missing. A promise is a floor: no version before it may be
// found any more.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace modcache::testing {

class Ledger {
 public:
  inline static const std::string kMissing = "<missing>";

  enum class Event : char {
    kPut = 'p',
    kClear = 'c',
    kDrop = 'd',
    kEvict = 'e',
    kFail = 'f',
    kCleared = 'C',
    kFlushed = 'F',
    kNotFlushed = 'N',
  };

  // Before the call. Whatever it says, this version may be found from now on.
  void put(const std::string& name, const std::string& value) { note(Event::kPut, name, value); }
  void clear(const std::string& prefix) { note(Event::kClear, prefix); }
  // The store may lose the entry, and need not.
  void drop(const std::string& name) { note(Event::kDrop, name); }

  // The same for all entries.
  void evict() { note(Event::kEvict, ""); }

  // After the call that was to store or clear it failed: a flush promises nothing of it.
  void fail(const std::string& prefix) { note(Event::kFail, prefix); }
  // After a clear that did not fail: from now on nothing older is found while there is power.
  void cleared(const std::string& prefix) { note(Event::kCleared, prefix); }
  // After a flush; when it failed, which of the entries are safe cannot be told.
  void flushed(bool is_ok) { note(is_ok ? Event::kFlushed : Event::kNotFlushed, ""); }

  // Tells another process, which note()s the same in a ledger of its own.
  using Journal = std::function<void(Event, const std::string& name, const std::string& value)>;
  void tell(Journal journal) { journal_ = std::move(journal); }

  void note(Event event, const std::string& name, const std::string& value = "") {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (journal_) journal_(event, name, value);
    if (event == Event::kPut || event == Event::kDrop) keys_[name];
    for (auto& [known, key] : keys_) {
      const bool is_one = event == Event::kPut || event == Event::kDrop;
      if (is_one ? known == name : known.rfind(name, 0) == 0) apply(event, value, key);
    }
  }

  std::vector<std::string> names() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, key] : keys_) names.push_back(name);
    return names;
  }
  // Whether this may be found while the machine has power.
  bool allows(const std::string& name, const std::string& found) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Key& key = keys_.at(name);
    return is_among(key, key.live_floor, found);
  }
  // The same after power loss. An entry that was replaced may then be lost with what replaced it:
  // the row may have reached the disk, and the record not.
  bool allows_after_power_loss(const std::string& name, const std::string& found) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Key& key = keys_.at(name);
    const bool is_replaced = key.safe_floor + 1 < key.versions.size();
    return is_among(key, key.safe_floor, found) || (is_replaced && found == kMissing);
  }
  // For messages: all versions that may be found.
  std::string expected(const std::string& name) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Key& key = keys_.at(name);
    std::string text;
    for (std::size_t i = 0; i < key.versions.size(); ++i) {
      if (i == key.safe_floor) text += " [safe]";
      if (i == key.live_floor) text += " [live]";
      text += ' ' + key.versions[i].substr(0, 24);
    }
    return text;
  }

  Ledger() = default;
  // What was promised up to now, for a look at it later.
  Ledger(const Ledger& other) {
    const std::lock_guard<std::mutex> lock(other.mutex_);
    keys_ = other.keys_;
  }
  Ledger& operator=(const Ledger&) = delete;

 private:
  struct Key {
    std::vector<std::string> versions{kMissing};
    std::size_t live_floor = 0;
    std::size_t safe_floor = 0;
    bool is_new = false;  // since the last flush
  };

  static void apply(Event event, const std::string& value, Key& key) {
    const bool adds = event == Event::kPut || event == Event::kClear || event == Event::kDrop ||
                      event == Event::kEvict;
    if (adds) key.versions.push_back(event == Event::kPut ? value : kMissing);
    const std::size_t last = key.versions.size() - 1;
    if (event == Event::kCleared) key.live_floor = last;
    if (event == Event::kFlushed && key.is_new) key.safe_floor = key.live_floor = last;
    if (event != Event::kCleared) key.is_new = event == Event::kPut || event == Event::kClear;
  }
  static bool is_among(const Key& key, std::size_t floor, const std::string& found) {
    for (std::size_t i = floor; i < key.versions.size(); ++i) {
      if (key.versions[i] == found) return true;
    }
    return false;
  }

  mutable std::mutex mutex_;
  std::map<std::string, Key> keys_;
  Journal journal_;
};

}  // namespace modcache::testing
