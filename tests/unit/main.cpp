// SPDX-License-Identifier: Apache-2.0
//
// Tests see none of the caller's MODCACHE_* settings, and never the caller's own cache. The names
// of servers that were started for tests begin with MODCACHE_TEST_REMOTE.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace {

void forget_settings_of_the_caller() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const bool is_for_tests = text.rfind("MODCACHE_TEST_REMOTE", 0) == 0;
    if (text.rfind("MODCACHE_", 0) == 0 && !is_for_tests)
      names.push_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  setenv("XDG_CACHE_HOME", "/nonexistent/modcache-tests", 1);
}

}  // namespace

int main(int argc, char** argv) {
  forget_settings_of_the_caller();
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
