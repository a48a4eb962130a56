// SPDX-License-Identifier: Apache-2.0
//
// A batch: many keys of one context that go through the tiers together.
//
//     found = session->lookup_all(request, may_write)       hits, counted; found.missing()
//     lead = session->lead_rows(found)                      which of those this thread shall run
//         run lead.led, and if session->store_all(...) kept any: lead.lead.stored()
//         lead.lead.give_up()                               before it waits for others
//     if (session->wait_for(request, lead.awaited).look_again) ...   look those up again
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/one_or_many.h"
#include "cache/context.h"
#include "cache/found_rows.h"
#include "cache/single_flight.h"
#include "cache/tier.h"
#include "cache/value.h"

namespace modcache::cache {

struct BatchRequest {
  ContextPtr context;
  std::span<const std::string_view> keys;  // distinct, none empty; borrowed for each call
  std::string_view signature;              // of every row's input; empty: matches any entry
  // Null: only signatures are compared. Otherwise keys[i] comes with row rows[i] of it. Whether to
  // look at an input is asked once for a call (Session::compares_input), however often it looks up.
  const InputSource* input = nullptr;
  std::span<const std::size_t> rows = {};
  Form form = Form::kRow;
  // One for each key, in place of `signature`, where the rows have shapes of their own.
  std::span<const std::string_view> own_signatures = {};
  // The caller can run the module, to compare hits with what it returns (verify_share).
  bool may_be_verified = false;

  std::string_view signature_of(std::size_t i) const {
    return own_signatures.empty() ? signature : own_signatures[i];
  }
};

// Where the rows of a batch were found, by their place in BatchRequest::keys.
class BatchFound {
 public:
  BatchFound() = default;
  std::size_t size() const { return rows_.size(); }

  bool is_missing(std::size_t i) const { return rows_[i].tier == kNone; }
  // In ascending order. Those to be compared are not among them.
  std::vector<std::size_t> missing() const;
  // Rows that were found, and are to be run and compared with what is stored; in ascending order.
  const std::vector<std::size_t>& verified() const { return verified_; }

  // Missing rows of which there is an entry of another input: their results replace it.
  const std::vector<std::size_t>& conflicts() const { return conflicts_; }

  // Null: not from memory.
  const EntryPtr& in_memory(std::size_t i) const { return rows_[i].held.entry; }
  // Whether it is a row of a farther tier.
  bool is_row(std::size_t i) const { return !is_missing(i) && in_memory(i) == nullptr; }
  // Which row of rows() it is. REQUIRES: is_row(i).
  std::size_t row(std::size_t i) const { return rows_[i].row; }
  // That of the input that the entry was computed from. REQUIRES: !is_missing(i).
  std::string_view signature(std::size_t i) const {
    return is_row(i) ? std::string_view(rows().header(row(i)).signature)
                     : std::string_view(in_memory(i)->signature);
  }
  const FoundRows& rows() const { return rows_found_.has_value() ? *rows_found_ : no_rows(); }

 private:
  friend class Session;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Row {
    HeldEntry held;                 // of a row that a nearer tier kept: its place there
    std::uint32_t tier = kNone;     // that has it, counted from the nearest
    std::uint32_t kept_by = kNone;  // the nearest tier that has it now
    std::uint32_t row = 0;
  };

  static const FoundRows& no_rows();

  explicit BatchFound(std::size_t size) : rows_(size) {}

  OneOrMany<Row> rows_;
  OneOrMany<Digest128> addresses_;  // of the keys
  std::vector<std::size_t> conflicts_;
  std::vector<std::size_t> verified_;
  std::optional<FoundRows> rows_found_;
  std::function<bool()> still_holds_;  // of the far tier's answer
  bool is_outdated_ = false;           // what the far tier answered must not be kept
  std::uint64_t completed_runs_ = 0;   // of single flight, before the first look
  bool may_write_ = false;             // the mode of the look-up, by which its hits are counted
};

struct BatchLead {
  SingleFlight::Lead lead;           // for all of `led`
  std::vector<std::size_t> led;      // rows to run; in ascending order
  std::vector<std::size_t> awaited;  // rows that other threads run; in ascending order
  // A run ended between the look and the lead, and may have been that of a row in `led`: look
  // them up once more before they are run.
  bool look_again = false;
};

}  // namespace modcache::cache
