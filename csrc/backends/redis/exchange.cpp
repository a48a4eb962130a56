// SPDX-License-Identifier: Apache-2.0
#include "backends/redis/exchange.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <valkey/valkey.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <utility>

#include "remote/backend.h"
#include "remote/client.h"

namespace modcache::backends {
namespace {

using Clock = std::chrono::steady_clock;

// Arrays have a place for each element that a server announces. The longest that is asked for is
// the answer to SCAN, and the deepest the one to CLUSTER SLOTS.
constexpr long long kMostElements = 1 << 20;
constexpr int kMostDepth = 8;
// A line that is longer is none, and its end would be looked for again with each part of it.
constexpr std::size_t kMostLineBytes = 64 << 10;
// Replies that arrived before the deadline are read after it, for so long.
constexpr auto kLastLook = std::chrono::milliseconds(20);
constexpr std::int64_t kLongestPollMs = 60'000;

// Rounded up, so that a wait of so long ends after the deadline.
std::int64_t ms_until(Deadline deadline) {
  return std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
}

timeval time_of(std::int64_t ms) {
  timeval time{};
  time.tv_sec = static_cast<time_t>(ms / 1000);
  time.tv_usec = static_cast<suseconds_t>(ms % 1000 * 1000);
  return time;
}

std::string place_of(const valkeyContext& connection) {
  if (connection.tcp.host != nullptr) {
    return std::string(connection.tcp.host) + ":" + std::to_string(connection.tcp.port);
  }
  return connection.unix_sock.path != nullptr ? connection.unix_sock.path : "";
}

std::string_view unread_of(const valkeyContext& connection) {
  const valkeyReader& reader = *connection.reader;
  if (reader.buf == nullptr) return {};
  return {reader.buf + reader.pos, reader.len - reader.pos};
}

// Whether the reply that is being read announces, or has, more bytes than one can have.
bool is_too_long(const valkeyContext& connection) {
  const valkeyReader& reader = *connection.reader;
  if (reader.ridx < 0) return false;
  const std::string_view unread = unread_of(connection);
  const int type = reader.task[reader.ridx]->type;
  const bool is_bulk = type == VALKEY_REPLY_STRING || type == VALKEY_REPLY_VERB;
  if (!is_bulk) return unread.size() > kMostLineBytes;
  std::uint64_t announced = 0;
  const auto [end, error] =
      std::from_chars(unread.data(), unread.data() + unread.size(), announced);
  return error == std::errc::result_out_of_range || announced > remote::kMostValueBytes;
}

// From now on a deadline bounds each wait, which a time-out of each read would not.
void stop_blocking(valkeyContext& connection) {
  int is_wanted = 1;
  (void)::ioctl(connection.fd, FIONBIO, &is_wanted);
  connection.flags &= ~VALKEY_BLOCK;
}

Status authenticate(valkeyContext& connection, const remote::Address& address, Deadline deadline) {
  if (address.password.empty()) return Status::ok();
  Command command{{"AUTH"}};
  if (!address.user.empty()) command.arguments.emplace_back(address.user);
  command.arguments.emplace_back(address.password);
  Status status;
  const ReplyPtr reply = ask(connection, command, deadline, status);
  if (!status.is_ok() || !is_error(reply)) return status;
  return Status::invalid_argument("it refuses the credentials: " +
                                  without_secrets(text_of(reply), address));
}

}  // namespace

Deadline deadline_in(std::int64_t ms) { return Clock::now() + std::chrono::milliseconds(ms); }

bool is_over(Deadline deadline) { return Clock::now() >= deadline; }

Deadline half_way_to(Deadline deadline) {
  const auto now = Clock::now();
  return now + (deadline - now) / 2;
}

bool has_no_error(const valkeyContext& connection) { return connection.err == 0; }

Status failure_of(const valkeyContext& connection) {
  const bool is_late = connection.err == VALKEY_ERR_TIMEOUT ||
                       (connection.err == VALKEY_ERR_IO && (errno == EAGAIN || errno == ETIMEDOUT));
  if (is_late) return Status::busy(place_of(connection) + " did not answer in time");
  return Status::io_error(place_of(connection) + ": " + connection.errstr);
}

void drop_unsent_on_close(const valkeyContext& connection) {
  const linger at_once{1, 0};
  (void)setsockopt(connection.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void close_at_once(valkeyContext* connection) {
  if (connection != nullptr) remote::reset_connection(connection->fd);
  valkeyFree(connection);
}

ContextPtr connect_to(const remote::Host* host, const remote::Address& address,
                      const TlsSettings& tls, Deadline deadline, Status& status) {
  // A time-out of zero would be none.
  const timeval timeout = time_of(std::max<std::int64_t>(ms_until(deadline), 1));
  valkeyOptions how{};
  how.connect_timeout = &timeout;
  how.command_timeout = &timeout;
  if (host != nullptr) {
    VALKEY_OPTIONS_SET_TCP(&how, host->name.c_str(), host->port);
    how.options |= VALKEY_OPT_PREFER_IP_UNSPEC;
  } else {
    VALKEY_OPTIONS_SET_UNIX(&how, address.path.c_str());
  }
  ContextPtr connection(valkeyConnectWithOptions(&how), &close_at_once);
  if (connection == nullptr) {
    status = Status::no_space("no memory for a connection");
    return connection;
  }
  // The failure is described by errno, too, which nothing may change before.
  status = connection->err != 0 ? failure_of(*connection) : Status::ok();
  if (status.is_ok()) {
    drop_unsent_on_close(*connection);
    if (tls.start(*connection) != VALKEY_OK) status = failure_of(*connection);
  }
  if (status.is_ok()) {
    connection->reader->maxelements = kMostElements;
    connection->reader->maxdepth = kMostDepth;
    stop_blocking(*connection);
    status = authenticate(*connection, address, deadline);
  }
  if (!status.is_ok()) connection.reset();
  return connection;
}

Pipeline::Pipeline(valkeyContext& connection, std::vector<std::size_t> which)
    : connection_(&connection), which_(std::move(which)) {}

Pipeline::Pipeline(Pipeline&& other) noexcept
    : connection_(std::exchange(other.connection_, nullptr)),
      which_(std::move(other.which_)),
      answered_(other.answered_),
      received_bytes_(other.received_bytes_),
      is_written_(other.is_written_),
      status_(std::move(other.status_)) {}

Pipeline::~Pipeline() {
  if (connection_ == nullptr || connection_->err != 0) return;
  const bool is_complete = answered_ == which_.size() && unread_of(*connection_).empty();
  if (!is_complete) connection_->err = VALKEY_ERR_OTHER;
}

void Pipeline::fail(int error, const char* reason) {
  connection_->err = error;
  std::snprintf(connection_->errstr, sizeof connection_->errstr, "%s", reason);
  status_ = failure_of(*connection_);
}

void Pipeline::start(const std::vector<Command>& commands) {
  std::vector<const char*> texts;
  std::vector<std::size_t> sizes;
  for (const std::size_t i : which_) {
    texts.clear();
    sizes.clear();
    for (const std::string_view argument : commands[i].arguments) {
      texts.push_back(argument.data());
      sizes.push_back(argument.size());
    }
    const int outcome = valkeyAppendCommandArgv(connection_, static_cast<int>(texts.size()),
                                                texts.data(), sizes.data());
    if (outcome != VALKEY_OK) {
      status_ = failure_of(*connection_);
      return;
    }
  }
  write();
}

void Pipeline::write() {
  int is_done = 0;
  if (valkeyBufferWrite(connection_, &is_done) != VALKEY_OK) status_ = failure_of(*connection_);
  is_written_ = is_done != 0;
}

void Pipeline::take_replies(std::vector<ReplyPtr>& replies) {
  while (is_waiting()) {
    void* reply = nullptr;
    if (valkeyGetReplyFromReader(connection_, &reply) != VALKEY_OK) {
      status_ = failure_of(*connection_);
      return;
    }
    if (reply == nullptr) return;
    replies[which_[answered_]] = take_reply(reply);
    ++answered_;
  }
}

// Reads until nothing comes, as TLS may hold bytes that the system does not know of.
void Pipeline::read(Deadline deadline, std::vector<ReplyPtr>& replies) {
  const Deadline until = std::max(deadline, Clock::now() + kLastLook);
  while (is_waiting()) {
    const std::size_t before = unread_of(*connection_).size();
    if (valkeyBufferRead(connection_) != VALKEY_OK) {
      status_ = failure_of(*connection_);
      return;
    }
    const std::size_t came = unread_of(*connection_).size() - before;
    if (came == 0) return;
    received_bytes_ += came;
    take_replies(replies);
    if (!is_waiting()) return;
    if (received_bytes_ > remote::kMostValueBytes || is_too_long(*connection_)) {
      fail(VALKEY_ERR_PROTOCOL, "it sends more than a reply can have");
    } else if (is_over(until)) {
      return;
    }
  }
}

void Pipeline::finish(std::vector<Pipeline>& pipelines, Deadline deadline,
                      std::vector<ReplyPtr>& replies) {
  std::vector<pollfd> polled;
  std::vector<Pipeline*> waiting;
  bool is_last = false;
  while (!is_last) {
    polled.clear();
    waiting.clear();
    for (Pipeline& pipeline : pipelines) {
      if (!pipeline.is_waiting()) continue;
      const int events = pipeline.is_written_ ? POLLIN : POLLIN | POLLOUT;
      polled.push_back({pipeline.connection_->fd, static_cast<short>(events), 0});
      waiting.push_back(&pipeline);
    }
    if (waiting.empty()) return;
    const std::int64_t left_ms = std::clamp<std::int64_t>(ms_until(deadline), 0, kLongestPollMs);
    is_last = left_ms == 0;
    if (::poll(polled.data(), polled.size(), static_cast<int>(left_ms)) <= 0) continue;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      const int events = polled[i].revents;
      if ((events & ~POLLOUT) != 0) waiting[i]->read(deadline, replies);
      if ((events & POLLOUT) != 0 && waiting[i]->is_waiting()) waiting[i]->write();
    }
  }
  for (Pipeline& pipeline : pipelines) {
    if (pipeline.is_waiting()) pipeline.fail(VALKEY_ERR_TIMEOUT, "late");
  }
}

Status ask_all(valkeyContext& connection, const std::vector<Command>& commands, Deadline deadline,
               std::vector<ReplyPtr>& replies) {
  replies.assign(commands.size(), nullptr);
  std::vector<std::size_t> which(commands.size());
  std::iota(which.begin(), which.end(), std::size_t{0});
  std::vector<Pipeline> pipelines;
  pipelines.emplace_back(connection, std::move(which));
  pipelines.front().start(commands);
  Pipeline::finish(pipelines, deadline, replies);
  return pipelines.front().status();
}

ReplyPtr ask(valkeyContext& connection, const Command& command, Deadline deadline, Status& status) {
  std::vector<ReplyPtr> replies;
  status = ask_all(connection, {command}, deadline, replies);
  return replies.front();
}

}  // namespace modcache::backends
