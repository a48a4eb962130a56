// SPDX-License-Identifier: Apache-2.0
//
// Tests of the module component: the default cache of the process, in a directory of the test's own
// and with the same settings at the beginning of each test.
#pragma once

#include <ATen/core/ivalue.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "cache/cache.h"
#include "module/call/rules.h"
#include "support/captured_log.h"
#include "support/temporary_directory.h"
#include "tensor/input.h"
#include "tensor/stored_format.h"

namespace modcache::testing {

class ModuleTest : public ::testing::Test {
 protected:
  ModuleTest() {
    static const tensor::StoredFormat format;
    cache::set_value_format(format);
    configure({{"dir", directory_ / "cache"},
               {"memory", "1GB"},
               {"dtype", "keep"},
               {"codec", "none"},
               {"match", "input"},
               {"admission", "all"},
               {"verify_share", "0"},
               {"min_run_us", "0"},
               {"strict", "false"}});
    set_mode(cache::Mode::kOn);
    test_cache().reset_stats();
  }
  ~ModuleTest() override {
    set_mode(cache::Mode::kOn);
    test_cache().close();
  }

  static cache::Cache& test_cache() { return *cache::default_cache(); }
  static void configure(const cache::Options& options) {
    const Status status = test_cache().configure(options);
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  static void set_mode(cache::Mode mode) { test_cache().set_mode(mode); }
  static std::int64_t stat(const std::string& name) { return test_cache().stats().at(name); }
  // What follows is found on disk.
  static void forget_memory() {
    test_cache().flush();
    (void)test_cache().clear({}, cache::Cache::Tier::kMemory);
  }

  // A call of "Encoder.forward" under a scope that has a name.
  static module::CallParts parts_of(const at::IValue& input, tensor::Per per = tensor::Per::kCall) {
    module::CallParts parts;
    parts.scope = "encoder@1";
    parts.method = "forward";
    parts.class_name = "Encoder";
    parts.input = tensor::summarize_input(input, per);
    return parts;
  }

  const TemporaryDirectory directory_;
  const CapturedLog log_;
};

}  // namespace modcache::testing
