// SPDX-License-Identifier: Apache-2.0
#include "fs/thread_state.h"

#include <sys/syscall.h>

#include <fstream>
#include <string>

namespace modcache::fs {

bool is_in_lock(pid_t thread) {
  // The line begins with the number of the system call in which the thread sleeps.
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
  long number = -1;
  return (file >> number) && number == SYS_futex;
}

}  // namespace modcache::fs
