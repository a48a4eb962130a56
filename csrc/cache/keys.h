// SPDX-License-Identifier: Apache-2.0
//
// Keys: distinct keys of one context that are looked up or stored together, with the input that
// each of them comes with. A single key is a batch of one. A plain value that borrows the keys and
// the input; used by one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/one_or_many.h"
#include "cache/context.h"
#include "cache/input_sample.h"
#include "store/store.h"

namespace modcache::cache {

struct Configuration;

class Keys {
 public:
  Keys(ContextPtr of_context, std::string_view key)
      : keys(1), addresses(1), context_(std::move(of_context)) {
    keys[0] = key;
    addresses[0] = store::address_of(context_->digest, key);
  }
  Keys(ContextPtr of_context, std::span<const std::string_view> many)
      : keys(many.size()), context_(std::move(of_context)) {
    std::copy(many.begin(), many.end(), keys.begin());
    addresses = store::addresses_of(context_->digest, many);
  }

  const ContextPtr& context() const { return context_; }
  std::size_t size() const { return keys.size(); }
  store::EntryIds ids() const { return {*context_, keys, addresses}; }
  store::EntryId id(std::size_t i) const { return {*context_, keys[i], addresses[i]}; }

  // Returns the keys at these places, with their input.
  Keys only(const std::vector<std::size_t>& places) const;

  std::string_view signature_of(std::size_t i) const {
    return signatures.empty() ? signature : signatures[i];
  }
  std::size_t input_row(std::size_t i) const { return input_rows.empty() ? i : input_rows[i]; }

  // The settings and tiers that a call uses from its start to its end, however often `configure`
  // changes them meanwhile. Set it before the keys are looked up or stored.
  std::shared_ptr<const Configuration> configuration;
  OneOrMany<std::string_view> keys;  // none is empty
  OneOrMany<Digest128> addresses;
  // Dtypes and shapes of the input of each key. Empty: matches any entry.
  std::string_view signature;
  std::vector<std::string_view> signatures = {};  // in place of `signature`, one for each key
  // The values of the input; null: not compared. Key i comes with row input_row(i) of it.
  const InputSource* input = nullptr;
  std::vector<std::size_t> input_rows = {};
  Form form = Form::kWhole;

 private:
  explicit Keys(ContextPtr context) : context_(std::move(context)) {}

  ContextPtr context_;
};

}  // namespace modcache::cache
