// SPDX-License-Identifier: Apache-2.0
#include "fuzz/hostile/base.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>

#include "cache/entry_header.h"
#include "fs/posix_file_system.h"
#include "fuzz/targets.h"
#include "store/packing/packing.h"
#include "store/segment/record.h"
#include "support/directory_bytes.h"
#include "tensor/value_header.h"

namespace modcache::fuzz {
namespace {

constexpr std::uint64_t kBudgetBytes = 4 << 20;

store::Context context_named(const std::string& scope, const std::string& rest) {
  return {blake2b_128(scope + "|" + rest), scope, "context of " + scope + " " + rest};
}

// That of the bytes that are stored, beside a text.
std::string header_for(const std::string& value) {
  tensor::ValueHeader header;
  header.root.kind = tensor::Node::Kind::kTuple;
  header.root.children.resize(2);
  header.root.children[1].kind = tensor::Node::Kind::kString;
  header.root.children[1].text = "text";
  tensor::TensorLayout layout;
  layout.sizes = {static_cast<std::int64_t>(value.size())};
  if (value.size() % 2 == 1) {
    layout.sizes.insert(layout.sizes.begin(), 1);
    layout.dim_order = {1, 0};
    layout.padded_dims = 0b10;
  }
  header.tensors.push_back(layout);
  return cache::pack_header("(uint8[2])", tensor::encode_value_header(header));
}

}  // namespace

Base::Base(std::string folder) : folder_(std::move(folder)) {
  {
    auto store = store::Store::open(fs::posix_file_system(), options_for(directory()));
    FUZZ_CHECK(store.is_ok());
    fill(*store.value(), 0);
    fill(*store.value(), 1);
    FUZZ_CHECK(store.value()->keep_note("about", "a text").is_ok());
  }
  FUZZ_CHECK(store::write_pack(fs::posix_file_system(), directory(), pack()).is_ok());
  for (const std::string& path : testing::segment_files(directory())) {
    for (auto& record : believable_records(testing::file_bytes(path))) {
      records_of_segments_.insert(std::move(record.second));
    }
  }
  for (auto& record : believable_records(testing::file_bytes(pack()))) {
    records_of_pack_.insert(std::move(record.second));
  }
}

store::StoreOptions Base::options_for(const std::string& directory) {
  store::StoreOptions options;
  options.directory = directory;
  options.disk_budget_bytes = kBudgetBytes;
  return options;
}

// In the second round some are replaced, and then some are cleared.
void Base::fill(store::Store& store, int round) {
  const store::Context contexts[] = {context_named("one", ""), context_named("one", "other"),
                                     context_named("two", "")};
  for (int i = 0; i < 40; ++i) {
    const bool is_replaced = round == 1 && i % 4 == 0;
    const std::string key = (round == 0 || is_replaced ? "a" : "b") + std::to_string(i);
    const std::size_t size = i % 20 == 7 ? 20000 : static_cast<std::size_t>(i) * 31;
    put(store, contexts[i % 3], key, std::to_string(round) + key + std::string(size, 'v'));
    FUZZ_CHECK(i % 20 != 19 || store.flush().is_ok());
  }
  if (round == 0) return;
  clear(store, {"one", "a1"});
  clear(store, {"two", "b2"});
  put(store, contexts[2], "a20", "again");
  FUZZ_CHECK(store.flush().is_ok());
}

void Base::put(store::Store& store, const store::Context& context, const std::string& key,
               const std::string& value) {
  FUZZ_CHECK(store.put({{context, key}, header_for(value), share_bytes(value), 7}).is_ok());
  History& history = histories_[{context.digest.bytes(), key}];
  history.context = context;
  history.key = key;
  history.values.insert(value);
  history.current = value;
}

void Base::clear(store::Store& store, const store::ClearFilter& filter) {
  FUZZ_CHECK(store.clear(filter).is_ok());
  for (auto& [address, history] : histories_) {
    if (history.context.scope == filter.scope && history.key.rfind(filter.key_prefix, 0) == 0) {
      history.current.clear();
    }
  }
}

std::vector<std::pair<Address, std::string>> believable_records(const std::string& bytes) {
  std::vector<std::pair<Address, std::string>> records;
  auto segment = store::decode_segment_header(bytes);
  if (!segment.is_ok()) return records;
  const std::string_view all = bytes;
  for (std::size_t at = store::kSegmentHeaderSizeBytes;
       at + store::kRecordFixedSizeBytes <= all.size(); at += store::kRecordAlignmentBytes) {
    auto head = store::decode_record_head(all.substr(at), segment.value().salt);
    if (!head.is_ok() || head.value().fixed.kind != store::RecordKind::kEntry) continue;
    const store::RecordHead& fixed = head.value().fixed;
    const std::uint64_t size = fixed.payload_offset() + fixed.payload_size_bytes;
    if (size > all.size() - at) continue;
    records.emplace_back(Address(fixed.context.bytes(), head.value().key), all.substr(at, size));
  }
  return records;
}

}  // namespace modcache::fuzz
