// SPDX-License-Identifier: Apache-2.0
//
// Intake: what put() does in its caller's thread. It refuses what cannot be stored and what there
// is no room for, numbers the rest and queues it. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/status.h"
#include "store/attached/attached_directory.h"
#include "store/entry/entry_id.h"
#include "store/entry/put.h"
#include "store/lookup/lookup.h"
#include "store/queue/write_queue.h"
#include "store/reclaim/admission.h"
#include "store/write/outdated_remover.h"
#include "store/write/writer.h"

namespace modcache::store {

class Intake {
 public:
  // All of them must outlive it.
  Intake(AttachedDirectory& attached, Admission& admission, Lookup& lookup, WriteQueue& queue,
         OutdatedRemover& remover, Writer& writer)
      : attached_(attached),
        admission_(admission),
        lookup_(lookup),
        queue_(queue),
        remover_(remover),
        writer_(writer) {}
  Intake(const Intake&) = delete;
  Intake& operator=(const Intake&) = delete;

  // See store.h.
  Status put_all(const Context& context, std::span<const Digest128> addresses,
                 const std::vector<RowPut>& puts, std::vector<Sequence>& sequences);

 private:
  using QueuedPuts = std::vector<std::shared_ptr<QueuedPut>>;
  std::shared_ptr<const Context> shared_context(const Context& context);
  QueuedPuts within_budget(const Context& context, std::span<const Digest128> addresses,
                           const std::vector<RowPut>& puts, std::vector<std::size_t>& rows);
  Status number(const Context& context, const QueuedPuts& puts);

  AttachedDirectory& attached_;
  Admission& admission_;
  Lookup& lookup_;
  WriteQueue& queue_;
  OutdatedRemover& remover_;
  Writer& writer_;
  Mutex contexts_mutex_;
  std::unordered_map<Digest128, std::shared_ptr<const Context>, Digest128Hash> contexts_
      MODCACHE_GUARDED_BY(contexts_mutex_);
};

}  // namespace modcache::store
