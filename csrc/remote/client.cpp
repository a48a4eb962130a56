// SPDX-License-Identifier: Apache-2.0
#include "remote/client.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "base/fork.h"
#include "base/mutex.h"
#include "base/without_throwing.h"

namespace modcache::remote {
namespace {

constexpr auto kLookForStop = std::chrono::milliseconds(20);
constexpr auto kLongestIdle = std::chrono::seconds(1);

// Full or closed to writers is not down: reads go on.
bool is_of_server(const Status& failure) {
  return !failure.is_ok() && failure.code() != StatusCode::kNoSpace &&
         failure.code() != StatusCode::kForeign && !failure.is_not_found();
}

// A host's handlers do not run on our threads; and a connection that a server closed must not end
// the process by SIGPIPE. Faults of the thread itself are the handlers' all the same.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
    sigdelset(&all, fault);
  }
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace

class Client::Crew : public std::enable_shared_from_this<Client::Crew> {
 public:
  Crew(MakeBackend make_backend, OnChange on_change)
      : make_backend_(std::move(make_backend)),
        on_change_(std::move(on_change)),
        telling_registration_(hold_across_fork(telling_)),
        fork_registration_(hold_across_fork(mutex_)) {}
  ~Crew() {
    stop_holding_across_fork(fork_registration_);
    stop_holding_across_fork(telling_registration_);
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // In a forked child nobody would probe a server that its parent left alone.
  bool is_available() const {
    return breaker_.is_closed() ||
           fork_generation_.load(std::memory_order_relaxed) != modcache::fork_generation();
  }
  // `is_stopping`: null for those who do not wait for the end (Client::run_to_end()).
  Status run(Work work, std::chrono::milliseconds timeout,
             const std::function<bool()>* is_stopping);
  void stop();

 private:
  struct Job {
    Work work;
    Status status;
    bool has_begun = false;
    bool is_done = false;
    std::atomic<bool> is_late{false};
    CondVar ended;
  };
  using JobPtr = std::shared_ptr<Job>;
  // The threads, and what they wait for. A forked child starts with another one: threads that do
  // not exist there wait for this one's condition.
  struct Shift {
    CondVar changed;
    std::deque<JobPtr> jobs;
    std::size_t threads = 0;
    std::size_t idle = 0;
    bool is_probing = false;
    bool is_stopping = false;
  };

  Shift& shift() MODCACHE_REQUIRES(mutex_);
  void wait_for(Job& job, Clock::time_point deadline, const std::function<bool()>* is_stopping)
      MODCACHE_REQUIRES(mutex_);
  Status hire(Shift& shift) MODCACHE_REQUIRES(mutex_);
  void work_until_stopped(Shift& shift);
  // Null: a probe is due.
  bool take(Shift& shift, JobPtr& job) MODCACHE_REQUIRES(mutex_);
  bool is_probe_due(const Shift& shift) MODCACHE_REQUIRES(mutex_);
  void probe(std::unique_ptr<Backend>& backend);
  Status on_backend(std::unique_ptr<Backend>& backend, const Work& work);
  void note_failure(const Status& failure);
  void tell(const Status& change);

  const MakeBackend make_backend_;
  std::atomic<std::uint64_t> fork_generation_{modcache::fork_generation()};  // of the shift
  Breaker breaker_;
  // Held while it is called, so that it is not called after stop().
  Mutex telling_;
  OnChange on_change_ MODCACHE_GUARDED_BY(telling_);
  Mutex mutex_;
  std::unique_ptr<Shift> shift_ MODCACHE_GUARDED_BY(mutex_) = std::make_unique<Shift>();
  std::uint64_t telling_registration_;
  std::uint64_t fork_registration_;
};

Client::Crew::Shift& Client::Crew::shift() {
  if (fork_generation_.load(std::memory_order_relaxed) != modcache::fork_generation()) {
    shift_.release();  // NOLINT(bugprone-unused-return-value)
    shift_ = std::make_unique<Shift>();
    breaker_.close();
    fork_generation_.store(modcache::fork_generation(), std::memory_order_relaxed);
  }
  return *shift_;
}

void Client::Crew::tell(const Status& change) {
  MutexLock lock(telling_);
  if (on_change_) on_change_(change);
}

void Client::Crew::note_failure(const Status& failure) {
  if (breaker_.note_failure()) tell(failure);
}

// A thread owns a share of the crew, so it can outlive the client.
Status Client::Crew::hire(Shift& shift) {
  if (shift.threads >= kMostConnections) return Status::ok();
  return without_throwing([&] {
    std::thread([self = shared_from_this(), &shift] { self->work_until_stopped(shift); }).detach();
    ++shift.threads;
    return Status::ok();
  });
}

void Client::Crew::wait_for(Job& job, Clock::time_point deadline,
                            const std::function<bool()>* is_stopping) {
  while (!job.is_done && Clock::now() < deadline) {
    if (is_stopping == nullptr) {
      (void)job.ended.wait_until(mutex_, deadline);
      continue;
    }
    if ((*is_stopping)()) return;
    (void)job.ended.wait_until(mutex_, std::min(deadline, Clock::now() + kLookForStop));
  }
}

Status Client::Crew::run(Work work, std::chrono::milliseconds timeout,
                         const std::function<bool()>* is_stopping) {
  const auto deadline = Clock::now() + timeout;
  const auto job = std::make_shared<Job>();
  job->work = std::move(work);
  {
    MutexLock lock(mutex_);
    Shift& now = shift();
    if (!breaker_.is_closed() || now.is_stopping) {
      return Status::busy("the server is left alone for a while");
    }
    now.jobs.push_back(job);
    const Status hired = now.idle < now.jobs.size() ? hire(now) : Status::ok();
    if (!hired.is_ok() && now.threads == 0) {
      now.jobs.pop_back();
      return hired;
    }
    now.changed.notify_all();
    wait_for(*job, deadline, is_stopping);
    if (job->is_done) return std::move(job->status);
    if (!job->has_begun) {
      now.jobs.erase(std::remove(now.jobs.begin(), now.jobs.end(), job), now.jobs.end());
      return Status::busy("all its connections are in use");
    }
    job->is_late.store(true);
    // The thread that hangs cannot see that the server answers again.
    if (now.idle == 0 && !now.is_stopping) (void)hire(now);
  }
  Status late = Status::busy("it did not answer within " + std::to_string(timeout.count()) + " ms");
  note_failure(late);
  if (is_stopping == nullptr) return late;
  MutexLock lock(mutex_);
  wait_for(*job, Clock::time_point::max(), is_stopping);
  return job->is_done ? std::move(job->status) : late;
}

bool Client::Crew::is_probe_due(const Shift& shift) {
  return !shift.is_probing && !breaker_.is_closed() && Clock::now() >= breaker_.probe_at();
}

bool Client::Crew::take(Shift& shift, JobPtr& job) {
  job = nullptr;
  while (!shift.is_stopping) {
    if (!shift.jobs.empty()) {
      job = std::move(shift.jobs.front());
      shift.jobs.pop_front();
      job->has_begun = true;
      return true;
    }
    if (is_probe_due(shift)) {
      shift.is_probing = true;
      return true;
    }
    auto until = Clock::now() + kLongestIdle;
    if (!breaker_.is_closed()) until = std::min(until, breaker_.probe_at());
    ++shift.idle;
    (void)shift.changed.wait_until(mutex_, until);
    --shift.idle;
  }
  return false;
}

// A job's end is told by the lock under which its thread takes the next one or becomes idle, so
// that a caller with one call after another needs one thread.
void Client::Crew::work_until_stopped(Shift& shift) {
  block_signals();
  std::unique_ptr<Backend> backend;
  JobPtr done;
  bool has_probed = false;
  while (true) {
    JobPtr job;
    {
      MutexLock lock(mutex_);
      if (done != nullptr) {
        done->is_done = true;
        done->ended.notify_all();
        done = nullptr;
      }
      if (has_probed) shift.is_probing = false;
      if (!take(shift, job)) break;
    }
    has_probed = job == nullptr;
    if (has_probed) {
      probe(backend);
      continue;
    }
    job->status = on_backend(backend, job->work);
    if (is_of_server(job->status)) {
      note_failure(job->status);
    } else if (!job->is_late) {
      breaker_.note_success();
    }
    job->work = nullptr;
    done = std::move(job);
  }
  backend = nullptr;
  MutexLock lock(mutex_);
  --shift.threads;
  shift.changed.notify_all();
}

Status Client::Crew::on_backend(std::unique_ptr<Backend>& backend, const Work& work) {
  return without_throwing([&]() -> Status {
    if (backend == nullptr) {
      auto made = make_backend_();
      if (!made.is_ok()) return made.status();
      backend = std::move(made).value();
      // It is connected before the work begins, so that work can say how long it took by itself.
      Status connected = backend->ping();
      if (is_of_server(connected)) {
        backend = nullptr;
        return connected;
      }
    }
    return work(*backend);
  });
}

void Client::Crew::probe(std::unique_ptr<Backend>& backend) {
  const Status status = on_backend(backend, [](Backend& server) { return server.ping(); });
  if (is_of_server(status)) {
    breaker_.note_failed_probe();
  } else if (!breaker_.is_closed()) {
    breaker_.close();
    tell(Status::ok());
  }
}

void Client::Crew::stop() {
  {
    MutexLock lock(telling_);
    on_change_ = nullptr;
  }
  const auto until = Clock::now() + kLongestGoodbye;
  MutexLock lock(mutex_);
  Shift& now = shift();
  now.is_stopping = true;
  now.changed.notify_all();
  while (now.threads > 0 && now.changed.wait_until(mutex_, until)) {
  }
}

Client::Client(MakeBackend make_backend, OnChange on_change)
    : crew_(std::make_shared<Crew>(std::move(make_backend), std::move(on_change))) {}

Client::~Client() { stop(); }

void Client::stop() { crew_->stop(); }

bool Client::is_available() const { return crew_->is_available(); }

Status Client::run(Work work, std::chrono::milliseconds timeout) {
  return crew_->run(std::move(work), timeout, nullptr);
}

Status Client::run_to_end(Work work, std::chrono::milliseconds timeout,
                          const std::function<bool()>& is_stopping) {
  return crew_->run(std::move(work), timeout, &is_stopping);
}

bool Breaker::note_failure() {
  MutexLock lock(mutex_);
  if (!is_closed()) return false;
  pause_ = is_proven_.exchange(false) ? kFirstPause : std::min(pause_ * 2, kLongestPause);
  probe_at_ = Clock::now() + pause_;
  is_closed_.store(false, std::memory_order_release);
  return true;
}

void Breaker::note_failed_probe() {
  MutexLock lock(mutex_);
  pause_ = std::min(pause_ * 2, kLongestPause);
  probe_at_ = Clock::now() + pause_;
}

void Breaker::close() {
  MutexLock lock(mutex_);
  is_closed_.store(true, std::memory_order_release);
}

Breaker::Clock::time_point Breaker::probe_at() {
  MutexLock lock(mutex_);
  return probe_at_;
}

}  // namespace modcache::remote
