// SPDX-License-Identifier: Apache-2.0
#include "fuzz/hostile/trial.h"

#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/entry_header.h"
#include "fs/posix_file_system.h"
#include "fuzz/targets.h"
#include "store/listing/listing.h"
#include "store/pack/pack_verify.h"
#include "store/packing/packing.h"
#include "store/verify/verify.h"
#include "support/directory_bytes.h"
#include "tensor/value_header.h"

namespace modcache::fuzz {
namespace {

namespace files = std::filesystem;

// Beside its budget: a segment for the one writer, and the directory's own files.
constexpr std::uint64_t kSlackBytes = 2 << 20;

fs::FileSystem& file_system() { return fs::posix_file_system(); }

}  // namespace

Trial::Trial(const Base& base, std::string folder, Kind kind, std::uint64_t seed)
    : base_(base),
      folder_(std::move(folder)),
      kind_(kind),
      random_(seed),
      histories_(base.histories()) {
  options_ = Base::options_for(directory());
  if (below(2) == 0) options_.read_via = store::ReadVia::kPread;
}

void Trial::run() {
  for (const auto& entry : files::directory_iterator(folder_)) files::remove_all(entry.path());
  forge();
  if (kind_ == Kind::kPack) {
    run_pack();
  } else {
    run_directory();
  }
}

void Trial::forge() {
  Forger forger(random_);
  if (kind_ == Kind::kPack) {
    const std::string bytes = forger.forged_pack(testing::file_bytes(base_.pack()));
    remember_forged(bytes, base_.records_of_pack());
    testing::write_file(pack(), bytes);
    return;
  }
  files::copy(base_.directory(), directory(), files::copy_options::recursive);
  if (kind_ == Kind::kSegment) {
    const auto paths = testing::segment_files(directory());
    const std::string& path = paths[below(paths.size())];
    const std::string bytes = forger.forged_segment(testing::file_bytes(path));
    remember_forged(bytes, base_.records_of_segments());
    testing::write_file(path, bytes);
    is_database_removed_ = below(3) == 0;
    if (is_database_removed_) files::remove(directory() + "/index.sqlite");
    if (below(6) == 0) files::remove(directory() + "/control");
    return;
  }
  const bool is_map = kind_ == Kind::kMap;
  const std::string path = directory() + (is_map ? "/index.map" : "/control");
  std::string bytes = testing::file_bytes(path);
  FUZZ_CHECK(!bytes.empty());
  auto database = file_system().info(directory() + "/index.sqlite");
  FUZZ_CHECK(database.is_ok());
  testing::write_file(path, is_map ? forger.forged_map(std::move(bytes), database.value().inode)
                                   : forger.forged_control(std::move(bytes)));
}

void Trial::remember_forged(const std::string& bytes, const std::set<std::string>& sound) {
  for (auto& [address, record] : believable_records(bytes)) {
    if (sound.count(record) == 0) forged_.insert(address);
  }
}

void Trial::check(const Address& address, const std::string& header, const std::string& payload,
                  Allowed allowed) const {
  std::string_view signature;
  std::string_view value_header;
  if (cache::unpack_header(header, signature, value_header)) {
    (void)tensor::decode_value_header(value_header);
  }
  if (allowed.as_forged && forged_.count(address) != 0) return;
  const auto known = histories_.find(address);
  FUZZ_CHECK(known != histories_.end());
  const History& history = known->second;
  const bool is_past = allowed.past && history.values.count(payload) != 0;
  const bool is_current = !history.current.empty() && payload == history.current;
  if (is_current || is_past) return;
  std::fprintf(stderr, "wrong: %s gave %.20s, not %.20s\n", history.key.c_str(), payload.c_str(),
               history.current.c_str());
  FUZZ_CHECK(is_current);
}

void Trial::look_up_all(store::Store& store, Allowed allowed) {
  for (int times = 0; times < 2; ++times) {  // anew, and from what is known
    for (const auto& [address, history] : histories_) {
      const store::EntryId id{history.context, history.key};
      auto found = store.find(id);
      if (!found.is_ok()) {
        if (found.status().code() == StatusCode::kCorruption) (void)store.drop(id, 0);
        continue;
      }
      std::string payload(found.value()->payload_size_bytes(), '\0');
      if (found.value()->read_payload(payload.data()).is_ok()) {
        check(address, found.value()->header(), payload, allowed);
      }
    }
  }
  look_up_in_batches(store, allowed);
  (void)store.totals();
  (void)store.find_note("about");
}

void Trial::look_up_in_batches(store::Store& store, Allowed allowed) {
  std::map<std::string, std::vector<const History*>> by_context;
  for (const auto& [address, history] : histories_) by_context[address.first].push_back(&history);
  for (const auto& [digest, histories] : by_context) {
    std::vector<std::string_view> keys;
    for (const History* history : histories) keys.push_back(history->key);
    const store::FoundEntries found = store.find_all(histories[0]->context, keys);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i >= found.size() || !found.has(i)) continue;
      std::string payload(found.payload_size_bytes(i), '\0');
      if (!found.read(i, payload.data()).is_ok()) continue;
      check({digest, std::string(keys[i])}, *found.header(i), payload, allowed);
    }
  }
}

void Trial::list_all(const std::string& path) const {
  auto listing = store::Listing::open(file_system(), path);
  if (!listing.is_ok()) return;
  auto contexts = listing.value()->contexts();
  if (!contexts.is_ok()) return;
  for (const store::ListedContext& context : contexts.value()) {
    std::string from;
    while (true) {
      auto page = listing.value()->page(context, from, 16);
      if (!page.is_ok() || page.value().size() < 16) break;
      FUZZ_CHECK(page.value().back().key >= from);
      from = store::Listing::key_after(page.value().back().key);
    }
  }
  (void)listing.value()->visit_notes([](std::string_view, std::string_view) {});
}

void Trial::run_directory() {
  store::VerifyOptions verifying;
  verifying.directory = directory();
  if (below(4) == 0) {
    list_all(directory());
    (void)store::verify_directory(file_system(), verifying);
  }
  if (below(4) == 0) options_.writable = false;
  // While it is there the database tells what was replaced and cleared: but of a forged map, which
  // may lead to an older record of the same key.
  const Allowed allowed{is_database_removed_ || kind_ == Kind::kMap};
  {
    auto store = store::Store::open(file_system(), options_);
    if (!store.is_ok()) {
      FUZZ_CHECK(!store.status().message().empty());
      return;
    }
    look_up_all(*store.value(), allowed);
  }
  options_.writable = true;
  if (below(8) == 0) {
    auto packed = store::write_pack(file_system(), directory(), pack());
    if (packed.is_ok() && packed.value().entries > 0) {
      list_all(pack());
      auto store = store::Store::open(file_system(), Base::options_for(pack()));
      FUZZ_CHECK(store.is_ok());
      look_up_all(*store.value(), {true});
    }
  }
  write_and_read_again();
  if (below(4) == 0) repair_and_read_again();
  check_size();
}

void Trial::run_pack() {
  store::VerifyOptions verifying;
  verifying.directory = pack();
  (void)store::verify_pack(file_system(), verifying);
  list_all(pack());
  {
    options_.directory = pack();
    auto store = store::Store::open(file_system(), options_);
    if (store.is_ok()) look_up_all(*store.value(), {});
  }
  options_.directory = directory();
  auto unpacked = store::unpack_into(file_system(), pack(), options_);
  if (!unpacked.is_ok()) return;
  {
    auto store = store::Store::open(file_system(), options_);
    FUZZ_CHECK(store.is_ok());
    look_up_all(*store.value(), {});
  }
  check_size();
}

// What is stored over a forged directory is found again, or nothing is.
void Trial::write_and_read_again() {
  constexpr const char* kAgain = "stored again";
  std::vector<Address> confirmed;
  {
    auto store = store::Store::open(file_system(), options_);
    if (!store.is_ok()) return;
    std::vector<Address> put;
    for (const auto& [address, history] : histories_) {
      if (below(4) != 0) continue;
      auto sequence = store.value()->put({{history.context, history.key},
                                          cache::pack_header("", "header"),
                                          share_bytes(kAgain),
                                          7,
                                          /*replaces=*/true});
      if (sequence.is_ok() && sequence.value() != 0) put.push_back(address);
    }
    if (store.value()->flush().is_ok() && store.value()->is_attached()) confirmed = put;
    for (const Address& address : put) histories_[address].values.insert(kAgain);
    for (const Address& address : confirmed) histories_[address].current = kAgain;
    if (below(4) == 0) (void)store.value()->evict(64 << 10);
    if (below(8) == 0) (void)store.value()->clear({"two", ""});
  }
  auto store = store::Store::open(file_system(), options_);
  if (!store.is_ok()) return;
  // A forged record may claim to be the last of its key, or that there was a clear.
  look_up_all(*store.value(), {kind_ == Kind::kSegment || kind_ == Kind::kMap});
}

void Trial::repair_and_read_again() {
  store::VerifyOptions options;
  options.directory = directory();
  auto repairs = store::repair_directory(file_system(), options);
  if (!repairs.is_ok()) return;
  for (const store::Finding& finding : repairs.value().after.findings) {
    if (!finding.is_damage) continue;
    std::fprintf(stderr, "left by repairs: %s\n", finding.what.c_str());
  }
  FUZZ_CHECK(repairs.value().after.is_clean());
  auto store = store::Store::open(file_system(), options_);
  FUZZ_CHECK(store.is_ok());
  look_up_all(*store.value(), {kind_ == Kind::kSegment || kind_ == Kind::kMap});
}

void Trial::check_size() const {
  std::uint64_t size_bytes = 0;
  for (const auto& entry : files::recursive_directory_iterator(directory())) {
    if (entry.is_regular_file()) size_bytes += entry.file_size();
  }
  FUZZ_CHECK(size_bytes <= options_.disk_budget_bytes + kSlackBytes);
}

}  // namespace modcache::fuzz
