// SPDX-License-Identifier: Apache-2.0
#include "cache/remote_push.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/context.h"
#include "remote/record.h"

namespace modcache::cache {
namespace {

using store::Listing;

// A batch is asked for at once, and written in parts of at most so many bytes, or one entry.
constexpr std::size_t kMostOfPushed = 512;
constexpr std::size_t kBytesOfWrite = std::size_t{8} << 20;
// A record has some more bytes than its payload.
constexpr std::size_t kMostPayloadBytes = remote::kMostValueBytes - (std::size_t{64} << 20);
// A server that took nothing of so many writes in a row is left.
constexpr int kMostVainWrites = 3;

class Pushing {
 public:
  Pushing(const PushSource& source, RemoteBulk& server, const MoveFilter& filter,
          const OnPushProgress& on_progress)
      : listing_(source.listing()),
        store_(source.store()),
        server_(server),
        filter_(filter),
        on_progress_(on_progress) {}

  Result<PushSummary> run(bool dry) {
    is_dry_ = dry;
    MODCACHE_ASSIGN_OR_RETURN(auto listed, listing_.contexts());
    for (store::ListedContext& context : listed) add_context(std::move(context));
    Status status;
    for (std::size_t i = 0; i < contexts_.size() && status.is_ok(); ++i) status = take_all(i);
    if (status.is_ok()) status = push_batch();
    // The server's failures end the push; others are the directory's.
    if (!status.is_ok() && !is_servers_) return status;
    if (summary_.failure.is_ok()) summary_.failure = std::move(status);
    return std::move(summary_);
  }

 private:
  struct Of {
    store::ListedContext listed;
    RemoteBulk::Owner owner;
    bool is_told = false;  // the server has its text
  };
  struct Row {
    std::size_t context = 0;
    store::ListedEntry entry;
    Digest128 address;
  };
  // The rows of a batch are in the order of their contexts.
  struct Part {
    std::size_t context = 0;
    std::vector<std::size_t> rows;  // that the server lacks
  };

  // Nobody would ask a server for the entries of a context that does not fit together.
  void add_context(store::ListedContext listed) {
    ContextParts parts;
    const bool is_sound = unpack_context(listed.context, parts);
    if (!filter_.covers(parts.name_space, parts.scope)) return;
    of_entries_ += listed.entries;
    if (!is_sound) {
      summary_.broken += listed.entries;
      return;
    }
    contexts_.push_back(
        {std::move(listed), {std::string(parts.name_space), std::string(parts.scope)}});
  }

  // Remembers that a failure is the server's.
  Status of_server(Status status) {
    if (!status.is_ok()) is_servers_ = true;
    return status;
  }

  Status take_all(std::size_t context) {
    const store::ListedContext& listed = contexts_[context].listed;
    std::string from;
    while (true) {
      MODCACHE_ASSIGN_OR_RETURN(auto page, listing_.page(listed, from, kMostOfPushed));
      const bool is_last = page.size() < kMostOfPushed;
      if (!page.empty()) from = Listing::key_after(page.back().key);
      for (store::ListedEntry& entry : page) {
        const Digest128 address = store::address_of(listed.context.digest, entry.key);
        batch_.push_back({context, std::move(entry), address});
        if (batch_.size() == kMostOfPushed) MODCACHE_RETURN_IF_ERROR(push_batch());
      }
      if (is_last) return Status::ok();
    }
  }

  Status push_batch() {
    if (batch_.empty()) return Status::ok();
    std::vector<Part> parts;
    for (const Row& row : batch_) {
      if (parts.empty() || parts.back().context != row.context) parts.push_back({row.context, {}});
    }
    MODCACHE_RETURN_IF_ERROR(of_server(learn_marks(parts)));
    if (!is_dry_) MODCACHE_RETURN_IF_ERROR(of_server(tell_contexts(parts)));
    MODCACHE_RETURN_IF_ERROR(of_server(choose(parts)));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      MODCACHE_RETURN_IF_ERROR(push_part(parts[i], marks_[i]));
    }
    MODCACHE_RETURN_IF_ERROR(write());
    batch_.clear();
    if (on_progress_) on_progress_(summary_, of_entries_);
    return Status::ok();
  }

  Status learn_marks(const std::vector<Part>& parts) {
    std::vector<RemoteBulk::Owner> owners;
    owners.reserve(parts.size());
    for (const Part& part : parts) owners.push_back(contexts_[part.context].owner);
    return is_dry_ ? server_.find_marks(owners, marks_)
                   : server_.find_or_make_marks(owners, marks_);
  }

  // Writes the texts of contexts before their entries, so that who finds these finds those. Where
  // the server drops what is old, the texts of older entries must not go before these, so they are
  // written anew.
  Status tell_contexts(const std::vector<Part>& parts) {
    std::vector<std::string> names;
    std::vector<std::size_t> untold;
    for (const Part& part : parts) {
      if (contexts_[part.context].is_told) continue;
      untold.push_back(part.context);
      names.push_back(server_.names().context_name(contexts_[part.context].listed.context.digest));
    }
    std::vector<SharedBytes> values;
    MODCACHE_RETURN_IF_ERROR(server_.get_all(names, values));
    std::vector<remote::NamedValue> lacking;
    for (std::size_t i = 0; i < untold.size(); ++i) {
      const store::Context& context = contexts_[untold[i]].listed.context;
      std::string text =
          remote::encode_context({context.scope, context.description}, server_.names().seal());
      if (server_.ttl_ms() == 0 && values[i].view() == text) continue;
      lacking.push_back({names[i], std::move(text)});
    }
    std::vector<bool> are_stored;
    MODCACHE_RETURN_IF_ERROR(server_.put_all(std::move(lacking), are_stored));
    if (std::find(are_stored.begin(), are_stored.end(), false) != are_stored.end()) {
      return Status::io_error("the server '" + server_.shown_address() +
                              "' does not take everything: a part of it does not answer");
    }
    for (const std::size_t context : untold) contexts_[context].is_told = true;
    return Status::ok();
  }

  // Puts the rows that the server lacks into their parts.
  Status choose(std::vector<Part>& parts) {
    std::vector<std::string> names;
    names.reserve(batch_.size());
    for (const Row& row : batch_) names.push_back(server_.names().entry_name(row.address));
    std::vector<SharedBytes> values;
    MODCACHE_RETURN_IF_ERROR(
        server_.get_beginnings(names, remote::RecordBeginning::kSizeBytes, values));
    std::size_t part = 0;
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      if (parts[part].context != batch_[i].context) ++part;
      const RemoteBulk::Marks& marks = marks_[part];
      if (marks.has_value() && batch_[i].entry.stored_at_us < marks->not_before_us) {
        ++summary_.cleared;
      } else if (marks.has_value() && has(batch_[i], values[i], *marks)) {
        ++summary_.there;
      } else {
        parts[part].rows.push_back(i);
      }
    }
    return Status::ok();
  }

  bool has(const Row& row, const SharedBytes& bytes,
           const remote::Generations::Current& marks) const {
    if (bytes.owner == nullptr) return false;
    const auto record = remote::decode_beginning(bytes.view());
    return record.has_value() &&
           record->is_as_new(marks.generation, contexts_[row.context].listed.context.digest,
                             row.entry.key.size(), row.entry.stored_at_us);
  }

  Status push_part(const Part& part, const RemoteBulk::Marks& marks) {
    if (part.rows.empty()) return Status::ok();
    if (is_dry_) {
      for (const std::size_t row : part.rows) {
        ++summary_.entries;
        summary_.payload_bytes += batch_[row].entry.location.payload_size_bytes;
      }
      return Status::ok();
    }
    const store::Context& context = contexts_[part.context].listed.context;
    std::vector<std::string_view> keys;
    keys.reserve(part.rows.size());
    for (const std::size_t row : part.rows) keys.emplace_back(batch_[row].entry.key);
    const store::FoundEntries found = store_.find_all(context, keys);
    if (!found.index_status().is_ok()) return found.index_status();
    summary_.broken += static_cast<std::int64_t>(found.failures().size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      // An entry that is gone since it was listed is none any more.
      if (!found.has(i)) continue;
      MODCACHE_RETURN_IF_ERROR(add(batch_[part.rows[i]], found, i, marks->generation));
    }
    return Status::ok();
  }

  Status add(const Row& row, const store::FoundEntries& found, std::size_t i,
             const remote::Generation& generation) {
    if (found.payload_size_bytes(i) > kMostPayloadBytes) {
      ++summary_.failed;
      return Status::ok();
    }
    payload_.resize(found.payload_size_bytes(i));
    if (!found.read(i, payload_.data()).is_ok()) {
      ++summary_.broken;
      return Status::ok();
    }
    const store::Context& context = contexts_[row.context].listed.context;
    writes_.push_back(
        {server_.names().entry_name(row.address),
         remote::encode_record({generation, context.digest, row.entry.key, found.whole_header(i),
                                payload_, found.run_us(i), found.stored_at_us(i)},
                               server_.names().seal())});
    payload_sizes_.push_back(payload_.size());
    bytes_of_writes_ += payload_.size();
    return bytes_of_writes_ < kBytesOfWrite ? Status::ok() : write();
  }

  // Goes on where the server refuses some, and ends where nothing is taken any more.
  Status write() {
    if (writes_.empty()) return Status::ok();
    std::vector<bool> are_stored;
    Status status = server_.put_all(std::move(writes_), are_stored);
    std::int64_t stored = 0;
    for (std::size_t i = 0; i < are_stored.size(); ++i) {
      if (!are_stored[i]) continue;
      ++stored;
      summary_.payload_bytes += payload_sizes_[i];
    }
    const auto all = static_cast<std::int64_t>(are_stored.size());
    summary_.entries += stored;
    summary_.failed += all - stored;
    writes_.clear();
    payload_sizes_.clear();
    bytes_of_writes_ = 0;
    if (on_progress_) on_progress_(summary_, of_entries_);
    if (stored == all) return Status::ok();
    if (status.is_ok()) {
      status = Status::io_error("the server '" + server_.shown_address() +
                                "' does not take everything: a part of it does not answer");
    }
    if (summary_.failure.is_ok()) summary_.failure = status;
    vain_writes_ = stored == 0 ? vain_writes_ + 1 : 0;
    const bool is_for_good = status.code() == StatusCode::kNoSpace ||
                             status.code() == StatusCode::kForeign ||
                             status.code() == StatusCode::kInvalidArgument;
    return is_for_good || vain_writes_ == kMostVainWrites ? of_server(status) : Status::ok();
  }

  Listing& listing_;
  store::Store& store_;
  RemoteBulk& server_;
  const MoveFilter& filter_;
  const OnPushProgress& on_progress_;
  bool is_dry_ = false;
  bool is_servers_ = false;
  PushSummary summary_;
  std::int64_t of_entries_ = 0;
  std::vector<Of> contexts_;
  std::vector<Row> batch_;
  std::vector<RemoteBulk::Marks> marks_;  // of the parts of the batch
  std::string payload_;
  std::vector<remote::NamedValue> writes_;
  std::vector<std::size_t> payload_sizes_;  // of the writes
  std::size_t bytes_of_writes_ = 0;
  int vain_writes_ = 0;
};

}  // namespace

Result<PushSource> PushSource::open(fs::FileSystem& file_system, const std::string& directory) {
  PushSource source;
  MODCACHE_ASSIGN_OR_RETURN(source.listing_, Listing::open(file_system, directory));
  store::StoreOptions options;
  options.directory = directory;
  options.writable = false;
  options.read_via = store::ReadVia::kPread;
  MODCACHE_ASSIGN_OR_RETURN(source.store_, store::Store::open(file_system, options));
  return source;
}

Result<PushSummary> push_entries(const PushSource& source, RemoteBulk& server,
                                 const MoveFilter& filter, bool dry,
                                 const OnPushProgress& on_progress) {
  return Pushing(source, server, filter, on_progress).run(dry);
}

}  // namespace modcache::cache
