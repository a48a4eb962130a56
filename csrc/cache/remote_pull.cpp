// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_pull.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/context.h"
#include "cache/entry_header.h"
#include "remote/record.h"
#include "store/packing/directory_filler.h"

namespace modcache::cache {
namespace {

// Servers give entries in no order. Many at once, in the order of their keys, change a page of the
// directory's index once that each of them would have changed by itself.
constexpr std::size_t kMostOfBatch = 8192;
constexpr std::size_t kBytesOfBatch = std::size_t{32} << 20;
// More contexts than this are forgotten, and asked for again.
constexpr std::size_t kMostContexts = 10'000;

class Pulling {
 public:
  Pulling(RemoteBulk& server, store::DirectoryFiller& filler, const MoveFilter& filter,
          const OnPullProgress& on_progress)
      : server_(server), filler_(filler), filter_(filter), on_progress_(on_progress) {}

  Result<PullSummary> run() {
    const Status visited =
        server_.visit_entries([this](std::string_view name, const SharedBytes& bytes) {
          take(name, bytes);
          if (batch_.size() >= kMostOfBatch || batch_bytes_ >= kBytesOfBatch) put_batch();
          return directory_.is_ok() && summary_.failure.is_ok();
        });
    if (directory_.is_ok() && summary_.failure.is_ok()) put_batch();
    if (!directory_.is_ok()) return directory_;
    if (summary_.failure.is_ok()) summary_.failure = visited;
    // Also where the server failed: what it gave before is kept.
    MODCACHE_ASSIGN_OR_RETURN(const store::FillSummary filled, filler_.finish());
    count(filled);
    return std::move(summary_);
  }

 private:
  // The parts of the record point into the bytes.
  struct Taken {
    SharedBytes bytes;
    remote::Record record;
  };
  struct KnownContext {
    enum class State { kMissing, kDamaged, kOther, kWanted };
    State state = State::kMissing;
    store::Context context;
    RemoteBulk::Owner owner;
  };
  // A context of the batch, and its entries.
  struct Part {
    const KnownContext* of = nullptr;
    std::vector<const Taken*> entries;
  };

  // Keeps a record for the batch, unless it is none by itself.
  void take(std::string_view name, const SharedBytes& bytes) {
    const auto record = remote::decode_record(bytes.view(), server_.names().seal());
    const std::size_t name_bytes = server_.names().entry_name({}).size();
    if (name.size() != name_bytes || record.status().code() == StatusCode::kUnsupportedVersion) {
      ++summary_.foreign;
      return;
    }
    if (!record.is_ok() || !is_sound(name, record.value())) {
      ++summary_.damaged;
      return;
    }
    batch_bytes_ += bytes.size_bytes;
    batch_.push_back({bytes, record.value()});
  }

  // An entry lies under its own address, and the store has bounds for its parts.
  bool is_sound(std::string_view name, const remote::Record& record) const {
    std::string_view signature;
    std::string_view value_header;
    return name == server_.names().entry_name(store::address_of(record.context, record.key)) &&
           !record.key.empty() && record.key.size() <= store::kMaxKeySizeBytes &&
           record.header.size() <= store::kMaxHeaderSizeBytes && record.stored_at_us > 0 &&
           unpack_header(record.header, signature, value_header);
  }

  void put_batch() {
    summary_.failure = learn_contexts();
    if (!summary_.failure.is_ok()) return;
    std::vector<Part> parts = parts_of_batch();
    std::vector<RemoteBulk::Owner> owners;
    owners.reserve(parts.size());
    for (const Part& part : parts) owners.push_back(part.of->owner);
    std::vector<RemoteBulk::Marks> marks;
    summary_.failure = server_.find_marks(owners, marks);
    if (!summary_.failure.is_ok()) return;
    for (std::size_t i = 0; i < parts.size() && directory_.is_ok(); ++i) {
      directory_ = put_part(parts[i], marks[i]);
    }
    batch_.clear();
    batch_bytes_ = 0;
    count(filler_.so_far());
    if (on_progress_) on_progress_(summary_);
  }

  // Asks for the contexts of the batch that are not known.
  Status learn_contexts() {
    if (contexts_.size() > kMostContexts) contexts_.clear();
    std::vector<Digest128> digests;
    std::vector<std::string> names;
    for (const Taken& taken : batch_) {
      if (!contexts_.emplace(taken.record.context, KnownContext{}).second) continue;
      digests.push_back(taken.record.context);
      names.push_back(server_.names().context_name(taken.record.context));
    }
    std::vector<SharedBytes> values;
    MODCACHE_RETURN_IF_ERROR(server_.get_all(names, values));
    for (std::size_t i = 0; i < digests.size(); ++i) {
      if (values[i].owner != nullptr) learn_context(digests[i], values[i], contexts_[digests[i]]);
    }
    return Status::ok();
  }

  void learn_context(const Digest128& digest, const SharedBytes& bytes, KnownContext& known) const {
    known.state = KnownContext::State::kDamaged;
    auto record = remote::decode_context(bytes.view(), server_.names().seal());
    if (!record.is_ok()) return;
    known.context = {digest, std::move(record.value().scope),
                     std::move(record.value().description)};
    ContextParts parts;
    if (!unpack_context(known.context, parts)) return;
    known.state = filter_.covers(parts.name_space, parts.scope) ? KnownContext::State::kWanted
                                                                : KnownContext::State::kOther;
    known.owner = {std::string(parts.name_space), std::string(parts.scope)};
  }

  // Counts entries whose context is not there, and leaves out those that are not wanted.
  std::vector<Part> parts_of_batch() {
    std::vector<Part> parts;
    std::unordered_map<const KnownContext*, std::size_t> places;
    for (const Taken& taken : batch_) {
      const KnownContext& known = contexts_.at(taken.record.context);
      if (known.state == KnownContext::State::kMissing) ++summary_.no_context;
      if (known.state == KnownContext::State::kDamaged) ++summary_.damaged;
      if (known.state != KnownContext::State::kWanted) continue;
      const auto [place, is_new] = places.emplace(&known, parts.size());
      if (is_new) parts.push_back({&known, {}});
      parts[place->second].entries.push_back(&taken);
    }
    for (Part& part : parts) {
      std::sort(part.entries.begin(), part.entries.end(),
                [](const Taken* a, const Taken* b) { return a->record.key < b->record.key; });
    }
    return parts;
  }

  Status put_part(const Part& part, const RemoteBulk::Marks& marks) {
    std::vector<store::RowPut> puts;
    puts.reserve(part.entries.size());
    for (const Taken* const taken : part.entries) {
      const remote::Record& record = taken->record;
      // Without marks nothing on the server counts.
      if (!marks.has_value() || !(record.generation == marks->generation) ||
          record.stored_at_us < marks->not_before_us) {
        ++summary_.cleared;
        continue;
      }
      const auto* const payload = reinterpret_cast<const std::byte*>(record.payload.data());
      puts.push_back({record.key,
                      record.header,
                      {taken->bytes.owner, payload, record.payload.size()},
                      record.run_us,
                      /*replaces=*/false,
                      record.stored_at_us});
    }
    return filler_.put(part.of->context, std::move(puts));
  }

  void count(const store::FillSummary& filled) {
    summary_.entries = filled.entries;
    summary_.there = filled.there;
    summary_.not_kept = filled.not_kept;
    summary_.payload_bytes = filled.payload_bytes;
  }

  RemoteBulk& server_;
  store::DirectoryFiller& filler_;
  const MoveFilter& filter_;
  const OnPullProgress& on_progress_;
  PullSummary summary_;
  Status directory_;  // its first failure
  std::unordered_map<Digest128, KnownContext, Digest128Hash> contexts_;
  std::vector<Taken> batch_;
  std::size_t batch_bytes_ = 0;
};

}  // namespace

Result<PullSummary> pull_entries(fs::FileSystem& file_system, RemoteBulk& server,
                                 store::StoreOptions into, const MoveFilter& filter,
                                 const OnPullProgress& on_progress) {
  MODCACHE_ASSIGN_OR_RETURN(const auto filler,
                            store::DirectoryFiller::open(file_system, std::move(into)));
  return Pulling(server, *filler, filter, on_progress).run();
}

}  // namespace modcache::cache
