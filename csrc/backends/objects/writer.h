// SPDX-License-Identifier: Apache-2.0
//
// Writer: makes known what a backend has written. A segment that is stored counts once the writer's
// head names it, and the writer is found through the list of writers.
//
// 32 segments are merged into one, and 32 of those again, so that who comes later has few to read.
// The list is read, changed and written, which two writers can do at once. Where the server knows
// conditions on a PUT none is lost. Elsewhere a writer waits until who read the list before it
// wrote has written, too, and looks whether it is in there; it looks again after a second, after
// two, four and so on, and announces itself again every minute in which it writes.
//
// Writers of processes that have ended would make the list ever longer. Where it is long, a writer
// takes over what old ones have written down and drops them from it. One that lives all the same
// announces itself again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/objects/http_client.h"
#include "backends/objects/layout.h"
#include "backends/objects/news.h"
#include "backends/objects/object_index.h"
#include "base/result.h"
#include "base/status.h"

namespace modcache::backends {

class Writer {
 public:
  static constexpr std::size_t kMergedAtOnce = 32;
  static constexpr std::size_t kMostMergedBytes = std::size_t{32} << 20;
  static constexpr std::size_t kLongList = 64;

  // One of the index's writers, which it gives back at its end.
  Writer(HttpClient& client, ObjectIndex& index);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  std::uint64_t id() const { return state_->id; }
  std::uint32_t next_pack() { return state_->next_pack++; }
  // The PUT of the next segment, which may be repeated with other bytes until publish().
  // `bytes` outlive it.
  HttpRequest segment_put(const std::string& bytes) const;
  // The next segment is stored: names it in the head.
  Status publish(std::size_t segment_bytes);
  // Merges and announces at need. What was published is kept, whatever this returns.
  Status keep_up();

 private:
  Status put_head();
  Status put(const HttpRequest& request);
  bool is_merge_due() const;
  Status merge();
  Status check();
  Status announce();
  void wait_for_rivals(int attempt, std::int64_t took_ms) const;
  enum class Announced { kListed, kWritten, kOthersCameBefore };
  // One attempt: it is done where the list already has the announcement. `gone` leave the list.
  Result<Announced> announce_once(std::int64_t announced_us,
                                  const std::vector<std::uint64_t>& gone);
  Result<Announced> put_list(const WritersList& before, const std::vector<ListedWriter>& after);
  // Takes over some old writers of a long list, and adds them to `gone`.
  Status take_over(std::vector<std::uint64_t>& gone);

  HttpClient& client_;
  ObjectIndex& index_;
  std::unique_ptr<WriterState> state_;
};

}  // namespace modcache::backends
