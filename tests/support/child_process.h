// SPDX-License-Identifier: Apache-2.0
//
// A forked child that runs a function and leaves by _exit, as a worker of a DataLoader does.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>

// Whether a process that has threads may fork a child that goes on as it did. ThreadSanitizer
// cannot follow such a child, and AddressSanitizer of GCC 12 forks with its allocator's locks as
// they are: where another thread holds one, the child waits for it for ever.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MODCACHE_CAN_FORK_WITH_THREADS 0
#else
#define MODCACHE_CAN_FORK_WITH_THREADS 1
#endif

namespace modcache::testing {

class ChildProcess {
 public:
  // `run` returns the exit status.
  explicit ChildProcess(const std::function<int()>& run) : id_(::fork()) {
    if (id_ == 0) ::_exit(run());
  }
  ~ChildProcess() {
    if (id_ > 0) {
      kill();
      (void)wait();
    }
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void kill() const { ::kill(id_, SIGKILL); }

  // For a child that stops itself with SIGSTOP.
  void wait_until_stopped() const {
    int status = 0;
    while (::waitpid(id_, &status, WUNTRACED) < 0 && errno == EINTR) {
    }
  }
  void go_on() const { ::kill(id_, SIGCONT); }

  // The exit status; -1 when a signal ended it.
  int wait() {
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t id_;
};

// One-way bytes between processes. Reading ends when all who could write are gone.
class Pipe {
 public:
  Pipe() {
    if (::pipe(ends_) != 0) ::abort();
  }
  ~Pipe() {
    close_reading();
    close_writing();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void close_reading() { close(ends_[0]); }
  void close_writing() { close(ends_[1]); }

  template <typename Value>
  void write(const Value& value) const {
    write(&value, sizeof value);
  }
  void write(const void* data, std::size_t size_bytes) const {
    const ssize_t written = ::write(ends_[1], data, size_bytes);
    if (written != static_cast<ssize_t>(size_bytes)) ::abort();
  }
  // False: the end.
  template <typename Value>
  bool read(Value& value) const {
    return read(&value, sizeof value);
  }
  bool read(void* target, std::size_t size_bytes) const {
    std::size_t done = 0;
    while (done < size_bytes) {
      const ssize_t count = ::read(ends_[0], static_cast<char*>(target) + done, size_bytes - done);
      if (count <= 0) return false;
      done += static_cast<std::size_t>(count);
    }
    return true;
  }

 private:
  static void close(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  int ends_[2] = {-1, -1};
};

// A child that is forked now and runs when it is told to: so it can be forked before the caller has
// threads, which ThreadSanitizer could not follow.
class WaitingChild {
 public:
  explicit WaitingChild(const std::function<int()>& run)
      : child_([this, &run] {
          bool go = false;
          return go_.read(go) ? run() : -1;
        }) {}

  // The exit status.
  int run() {
    go_.write(true);
    return child_.wait();
  }

 private:
  Pipe go_;
  ChildProcess child_;
};

}  // namespace modcache::testing
