// SPDX-License-Identifier: Apache-2.0
#include "module/exported.h"

#include "tensor/torch_version.h"

#if MODCACHE_TORCH_HAS_EXPORT

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mutex.h"
#include "module/eager.h"
#include "module/exported_held.h"
#include "tensor/storable.h"

namespace modcache::module {
namespace {

using cache::Counter;
constexpr const char* kOp = "modcache.lookup_or_run";
constexpr std::int64_t kNoTicket = -1;

// Which ticket holds what, for as long as the storage of its number lives. The number stands for
// the question, so that one question has one ticket; who holds a copy of it gets what any asker
// holds.
class Tickets {
 public:
  static Tickets& instance() {
    static Tickets* const tickets = [] {
      auto* created = new Tickets;  // never destroyed: models may run while the process exits
      hold_across_fork(created->mutex_);
      return created;
    }();
    return *tickets;
  }

  // `question`: any number that stands for it.
  at::Tensor issue(std::uint64_t question, const std::shared_ptr<HeldCall>& held, bool is_found) {
    const auto number = static_cast<std::int64_t>(question >> 2) + 1;
    auto memory = std::make_shared<std::int64_t>(is_found ? number : kNoTicket - number);
    const void* const place = memory.get();
    {
      MutexLock lock(mutex_);
      held_.insert({number, {place, held}});
    }
    return tensor_of(std::move(memory), [this, number, place, held] { drop(number, place); });
  }
  static at::Tensor none() {
    return tensor_of(std::make_shared<std::int64_t>(kNoTicket), [] {});
  }

  // Of this very ticket, if it is no copy.
  std::shared_ptr<HeldCall> find(std::int64_t number, const void* place) {
    MutexLock lock(mutex_);
    std::shared_ptr<HeldCall> found;
    const auto [first, last] = held_.equal_range(number);
    for (auto one = first; one != last; ++one) {
      auto held = one->second.held.lock();
      if (held == nullptr) continue;
      if (one->second.place == place) return held;
      found = std::move(held);
    }
    return found;
  }

 private:
  struct Place {
    const void* place;
    std::weak_ptr<HeldCall> held;
  };

  void drop(std::int64_t number, const void* place) {
    MutexLock lock(mutex_);
    const auto [first, last] = held_.equal_range(number);
    const auto found =
        std::find_if(first, last, [&](const auto& one) { return one.second.place == place; });
    if (found != last) held_.erase(found);
  }

  template <typename Release>
  static at::Tensor tensor_of(std::shared_ptr<std::int64_t> memory, const Release& release) {
    tensor::OrdinaryTensors ordinary;
    std::int64_t* const data = memory.get();
    return at::from_blob(
        data, {}, [memory = std::move(memory), release](void*) { release(); },
        at::TensorOptions().dtype(at::kLong));
  }

  Mutex mutex_;
  std::unordered_multimap<std::int64_t, Place> held_ MODCACHE_GUARDED_BY(mutex_);
};

// Watches of weights by where they lie: an exported program has no module to keep one for.
class WeightWatches {
 public:
  static WeightWatches& instance() {
    static WeightWatches* const watches = [] {
      auto* created = new WeightWatches;
      hold_across_fork(created->mutex_);
      return created;
    }();
    return *watches;
  }

  std::string digest_of(const std::vector<at::Tensor>& tensors,
                        std::shared_ptr<const WatchedContents>* contents = nullptr) {
    const WatchPtr watch = watch_of(tensors);
    std::string digest = tensors_digest(watch->number, tensors);
    if (contents != nullptr) *contents = contents_of_watch(watch->number);
    return digest;
  }

  // The next digest hashes all of them anew.
  void distrust(const std::vector<at::Tensor>& tensors) {
    refresh_watch(watch_of(tensors)->number);
  }

 private:
  static constexpr std::size_t kMostWatches = 1024;

  // Of another thread that is about to use it, a watch that makes room is not taken.
  struct Watch {
    const std::int64_t number = new_watch();

    Watch() = default;
    ~Watch() { forget_watch(number); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
  };
  using WatchPtr = std::shared_ptr<const Watch>;

  WatchPtr watch_of(const std::vector<at::Tensor>& tensors) {
    Xxh3Hasher hasher;
    for (const at::Tensor& tensor : tensors) {
      const void* const data = tensor.has_storage() ? tensor.const_data_ptr() : nullptr;
      hasher.add(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data)));
      hasher.add(static_cast<std::uint64_t>(tensor.numel()));
    }
    const Digest128 place = hasher.digest();
    MutexLock lock(mutex_);
    const auto known = watches_.find(place);
    if (known != watches_.end()) return known->second;
    if (watches_.size() >= kMostWatches) watches_.clear();
    return watches_.emplace(place, std::make_shared<const Watch>()).first->second;
  }

  Mutex mutex_;
  std::unordered_map<Digest128, WatchPtr, Digest128Hash> watches_ MODCACHE_GUARDED_BY(mutex_);
};

// Throws when a weight cannot be hashed.
std::string scope_of(const ExportedSite& site, const std::vector<at::Tensor>& weights,
                     std::shared_ptr<const WatchedContents>& contents) {
  if (site.scope_kind == ScopeKind::kNamed) return site.scope;
  const std::string digest = WeightWatches::instance().digest_of(weights, &contents);
  if (site.scope_kind == ScopeKind::kBaked && digest == site.digest) return site.scope;
  return blake2b_128(site.scope + '/' + digest).hex();
}

bool any_requires_grad(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.requires_grad(); });
}

at::Tensor look_up(const ExportedCall& call, CallParts parts) {
  const ExportedSite& site = call.site;
  const auto per = call.ids.has_value() ? tensor::Per::kRow : tensor::Per::kCall;
  const std::int64_t rows = call.ids.has_value() ? call.ids->numel() : 1;
  parts.input = tensor::summarize_form(site.input, call.input, per);
  const auto session = cache::Cache::instance().session();
  if (!parts.input.why_not_cacheable.empty()) {
    refuse(parts, *session, Counter::kBypassedType, rows, "input",
           parts.who() + " is not cached: its input holds a tensor or value that is " +
               parts.input.why_not_cacheable);
    return Tickets::none();
  }
  // An exported program that Python runs computes under the autocast that it is run under.
  const std::string arithmetic = tensor::arithmetic_state();
  if (!site.is_compiled && !arithmetic.empty() && arithmetic != site.arithmetic) {
    refuse(parts, *session, Counter::kBypassedType, rows, "arithmetic",
           parts.who() +
               " is not cached: the program runs under another autocast or default dtype "
               "(" +
               arithmetic + ") than it was recorded under");
    return Tickets::none();
  }
  try {
    parts.scope = scope_of(site, call.weights, parts.weights);
  } catch (const c10::Error& error) {
    refuse_unidentified(parts, rows, error.what_without_backtrace());
    return Tickets::none();
  }
  try {
    std::optional<at::Tensor> ids;  // the caller may write into his own
    if (call.ids.has_value()) ids = copies_of({*call.ids})[0];
    const auto held = std::make_shared<HeldCall>(parts, site.key, std::move(ids),
                                                 Expected{site.dtypes, call.sizes, site.root});
    const std::uint64_t question = held->question();
    const bool is_found = held->look_up();
    return Tickets::instance().issue(question, held, is_found);
  } catch (const std::exception& error) {
    report_failure(parts, "looked up", error);
    return Tickets::none();
  }
}

std::int64_t number_of(const at::Tensor& ticket) {
  TORCH_CHECK_VALUE(ticket.scalar_type() == at::kLong && ticket.numel() == 1, kOp,
                    ": a ticket is one int64, but got ", ticket.scalar_type(), ticket.sizes());
  return ticket.item<std::int64_t>();
}

std::shared_ptr<HeldCall> held_by(const at::Tensor& ticket, std::int64_t number) {
  if (number <= 0) return nullptr;
  return Tickets::instance().find(number, ticket.has_storage() ? ticket.const_data_ptr() : nullptr);
}

}  // namespace

at::Tensor probe(const ExportedCall& call) {
  const std::int64_t rows = call.ids.has_value() ? call.ids->numel() : 1;
  if (call.ids.has_value()) {
    tensor::check_rows(at::IValue(c10::ivalue::Tuple::create(
                           std::vector<at::IValue>(call.input.begin(), call.input.end()))),
                       rows);
  }
  CallParts parts;
  parts.method = call.site.method;
  parts.class_name = call.site.class_name;
  parts.arithmetic = call.site.arithmetic;
  if (is_bypassed_by_mode(rows)) return Tickets::none();
  if (rows == 0) return Tickets::none();
  if (at::GradMode::is_enabled() &&
      (any_requires_grad(call.input) || any_requires_grad(call.weights))) {
    // An optimizer may write the weights without a trace.
    WeightWatches::instance().distrust(call.weights);
    refuse(parts, *cache::Cache::instance().session(), Counter::kBypassedGrad, rows, "grad",
           parts.who() +
               " is not cached: when the program was recorded its result required no "
               "grad, and now the input or a weight does. Run the program under "
               "torch.no_grad(), or detach the input");
    return Tickets::none();
  }
  return look_up(call, std::move(parts));
}

at::Tensor no_ticket(const std::string& why) {
  cache::Cache::instance().counters().add(Counter::kErrors);
  log_once(LogLevel::kError, "no ticket", why + ": it runs without the cache");
  return Tickets::none();
}

std::vector<at::Tensor> fetch(const at::Tensor& ticket) {
  const std::int64_t number = number_of(ticket);
  const auto held = held_by(ticket, number);
  auto found = held == nullptr ? std::nullopt : held->take();
  TORCH_CHECK(found.has_value(), kOp, ": ticket ", number,
              " of an exported program holds no result (any more): it outlived the tensor that "
              "cache::_probe gave. Please report how the program was compiled, and run it with "
              "MODCACHE_MODE=off meanwhile");
  return *std::move(found);
}

std::vector<at::Tensor> put(const at::Tensor& ticket, const std::vector<at::Tensor>& values) {
  const auto held = held_by(ticket, kNoTicket - number_of(ticket));
  return held == nullptr ? copies_of(values) : held->complete(values);
}

std::string weights_digest(const std::vector<at::Tensor>& tensors) {
  return WeightWatches::instance().digest_of(tensors);
}

}  // namespace modcache::module

#endif  // MODCACHE_TORCH_HAS_EXPORT
