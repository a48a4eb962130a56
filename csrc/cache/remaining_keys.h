// SPDX-License-Identifier: Apache-2.0
//
// RemainingKeys: the keys of a batch that no tier has been found to have so far, and which rows of
// the batch they are. Costs no memory while that is all of them. Used by one thread.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "cache/tier.h"

namespace modcache::cache {

class RemainingKeys {
 public:
  // All of a batch. Borrowed.
  explicit RemainingKeys(const TierKeys& all) : all_(all) {}

  bool empty() const { return size() == 0; }
  std::size_t size() const { return are_all_ ? all_.size() : rows_.size(); }
  // Which row of the batch the i-th remaining key is.
  std::size_t row(std::size_t i) const { return are_all_ ? i : rows_[i]; }
  TierKeys keys() const { return are_all_ ? all_ : TierKeys(all_.context(), keys_, addresses_); }

  // The keys that a tier which was asked for keys() does not have.
  RemainingKeys without(const TierFound& answer) const {
    RemainingKeys rest(all_);
    rest.are_all_ = false;
    for (std::size_t i = 0; i < size(); ++i) {
      if (answer.has(i)) continue;
      rest.rows_.push_back(row(i));
      rest.keys_.push_back(all_.keys[row(i)]);
      rest.addresses_.push_back(all_.addresses[row(i)]);
    }
    return rest;
  }

 private:
  TierKeys all_;
  bool are_all_ = true;
  std::vector<std::size_t> rows_;
  std::vector<std::string_view> keys_;
  std::vector<Digest128> addresses_;
};

}  // namespace modcache::cache
