// SPDX-License-Identifier: Apache-2.0
//
// A directory, and a pack of it, that are made once, then copied and forged: with entries that were
// replaced, entries that were cleared, and two segments at least.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/store.h"

namespace modcache::fuzz {

using Address = std::pair<std::string, std::string>;  // the context's digest, and the key

struct History {
  store::Context context;
  std::string key;
  std::set<std::string> values;  // all that were ever stored
  std::string current;           // empty: it was cleared
};

class Base {
 public:
  // Makes it in `folder`, which is there and empty.
  explicit Base(std::string folder);

  std::string directory() const { return folder_ + "/base"; }
  std::string pack() const { return folder_ + "/base.pack"; }
  const std::map<Address, History>& histories() const { return histories_; }
  // The records of the segments, as bytes with their payload: what is not among them was forged.
  const std::set<std::string>& records_of_segments() const { return records_of_segments_; }
  const std::set<std::string>& records_of_pack() const { return records_of_pack_; }

  static store::StoreOptions options_for(const std::string& directory);

 private:
  void fill(store::Store& store, int round);
  void put(store::Store& store, const store::Context& context, const std::string& key,
           const std::string& value);
  void clear(store::Store& store, const store::ClearFilter& filter);

  const std::string folder_;
  std::map<Address, History> histories_;
  std::set<std::string> records_of_segments_;
  std::set<std::string> records_of_pack_;
};

// What records of kind entry there are at any place of `bytes`, a segment's or a pack's, that pass
// their checksums: the bytes of each, by the entry that it says it is.
std::vector<std::pair<Address, std::string>> believable_records(const std::string& bytes);

}  // namespace modcache::fuzz
