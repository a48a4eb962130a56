// SPDX-License-Identifier: Apache-2.0
//
// Values for tests of the tiers: a text, written down as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/value.h"

namespace modcache::testing {

class TextValue final : public cache::Value {
 public:
  static constexpr std::string_view kHeader = "a text";

  explicit TextValue(std::string text) : text_(std::move(text)) {}
  const std::string& text() const { return text_; }
  std::size_t size_bytes() const override { return text_.size(); }
  std::size_t payload_size_bytes() const override { return text_.size(); }
  cache::Written write(codec::Codec) const override {
    return {std::string(kHeader), share_bytes(text_)};
  }

 private:
  const std::string text_;
};

class TextFormat : public cache::ValueFormat {
 public:
  std::vector<Result<std::shared_ptr<const cache::Value>>> read_all(
      cache::Form, const cache::FoundRows& found,
      const std::vector<std::size_t>& rows) const override {
    std::vector<Result<std::shared_ptr<const cache::Value>>> values;
    for (const std::size_t row : rows) {
      if (found.header(row).value_header != TextValue::kHeader) {
        values.emplace_back(Status::corruption("not the header of a text"));
        continue;
      }
      std::string text(found.payload_size_bytes(row), '?');
      const Status status = found.read(row, text.data());
      if (status.is_ok()) {
        values.emplace_back(std::make_shared<const TextValue>(std::move(text)));
      } else {
        values.emplace_back(status);
      }
    }
    return values;
  }
  // A text says where it was moved: "text@cuda:0".
  std::shared_ptr<const cache::Value> moved(std::shared_ptr<const cache::Value> value,
                                            const cache::Place& place) const override {
    const std::string& text = static_cast<const TextValue&>(*value).text();
    const std::string plain = text.substr(0, text.find('@'));
    if (place.is_host()) return std::make_shared<const TextValue>(plain);
    const bool is_pinned = place.kind == cache::Place::Kind::kPinned;
    return std::make_shared<const TextValue>(plain + '@' + (is_pinned ? "pinned" : place.device));
  }
};

inline cache::EntryPtr text_entry(std::string text, std::string signature = "",
                                  std::optional<std::int64_t> run_us = std::nullopt) {
  return std::make_shared<const cache::Entry>(cache::Entry{
      std::make_shared<const TextValue>(std::move(text)), std::move(signature), run_us});
}

// The text, or "<missing>".
inline std::string text_of(const cache::EntryPtr& entry) {
  return entry == nullptr ? "<missing>" : static_cast<const TextValue&>(*entry->value).text();
}

}  // namespace modcache::testing
