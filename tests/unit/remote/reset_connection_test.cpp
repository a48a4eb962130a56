// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <vector>

#include "remote/client.h"

namespace modcache::remote {
namespace {

// Two ends of a TCP connection on loopback.
struct ConnectionEnds {
  ConnectionEnds() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof place;
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&place), size), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&place), &size), 0);
    near = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::connect(near, reinterpret_cast<sockaddr*>(&place), size), 0);
    far = ::accept(listener, nullptr, nullptr);
    ::close(listener);
  }

  int near = -1;
  int far = -1;
};

TEST(ResetConnectionTest, what_was_not_sent_is_lost_though_a_forked_child_has_the_socket) {
  const ConnectionEnds ends;
  const std::vector<char> bytes(1 << 16);
  std::size_t written = 0;
  ssize_t now = 0;
  while ((now = ::send(ends.near, bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0) {
    written += static_cast<std::size_t>(now);
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  reset_connection(ends.near);
  ::close(ends.near);
  std::size_t read = 0;
  std::vector<char> buffer(1 << 16);
  while ((now = ::recv(ends.far, buffer.data(), buffer.size(), 0)) > 0) {
    read += static_cast<std::size_t>(now);
  }
  EXPECT_EQ(now, -1) << "it was reset, and did not end";
  EXPECT_LT(read, written);
  ::close(ends.far);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(ResetConnectionTest, no_socket_is_no_error) { reset_connection(-1); }

}  // namespace
}  // namespace modcache::remote
