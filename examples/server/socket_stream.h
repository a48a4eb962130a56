// SPDX-License-Identifier: Apache-2.0
//
// A connection as cpp-httplib reads and writes it, with bounds that it has not: on the time until a
// request has arrived whole, however slowly its bytes come, on the bytes of it, and on the time
// that an answer may take to leave.
#pragma once

#include <httplib.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "request_head.h"

namespace server {

struct RequestBounds {
  std::size_t header_bytes = std::size_t{64} << 10;
  std::size_t body_bytes = 0;
  std::chrono::milliseconds arrival{0};
  std::chrono::milliseconds departure{30'000};
};

class SocketStream : public httplib::Stream {
 public:
  // Does not own the socket.
  SocketStream(int socket, const RequestBounds& bounds);

  // Bounds hold anew from here on. What was read beyond the last request belongs to this one.
  void begin_request();
  // Reads the request's lines, which read() hands out before the body. Returns false where they did
  // not come in time, or are too long. Throws Refusal for lines that are not valid.
  bool read_head();
  bool has_unread() const { return begin_ < end_; }
  bool has_answer() const { return has_answer_; }  // or a part of one
  bool is_too_long() const { return head_bytes_ > bounds_.header_bytes; }
  std::size_t head_bytes() const { return head_bytes_; }  // of this request, that came
  std::size_t body_bytes() const { return body_bytes_; }  // of this request, that were read
  // Sends what was written. Returns false once something could not be sent in time.
  bool flush();

  bool is_readable() const override;
  bool is_writable() const override { return !is_broken_; }
  ssize_t read(char* to, std::size_t size) override;
  ssize_t write(const char* from, std::size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  int socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool fill();

  const int socket_;
  const RequestBounds bounds_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of what of the buffer is unread
  std::size_t end_ = 0;
  RequestHead head_;
  std::size_t head_given_ = 0;  // of the head's text
  std::size_t head_bytes_ = 0;
  std::size_t body_bytes_ = 0;
  Clock::time_point arrival_deadline_;
  std::string unsent_;
  bool has_answer_ = false;
  bool is_broken_ = false;
};

// Waits until the socket has something to read, or was closed by the other side. False after
// `time`.
bool wait_readable(int socket, std::chrono::milliseconds time);

}  // namespace server
