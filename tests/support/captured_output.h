// SPDX-License-Identifier: Apache-2.0
//
// What a command of the program wrote, for tests in one process.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "command_line/output.h"

namespace modcache::testing {

class CapturedOutput {
 public:
  CapturedOutput()
      : data_file_(::open_memstream(&data_, &data_size_)),
        messages_file_(::open_memstream(&messages_, &messages_size_)),
        output_(data_file_, messages_file_) {}
  ~CapturedOutput() {
    std::fclose(data_file_);
    std::fclose(messages_file_);
    std::free(data_);
    std::free(messages_);
  }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  command_line::Output& output() { return output_; }
  std::string data() const {
    std::fflush(data_file_);
    return {data_, data_size_};
  }
  std::string messages() const {
    std::fflush(messages_file_);
    return {messages_, messages_size_};
  }

 private:
  char* data_ = nullptr;
  std::size_t data_size_ = 0;
  char* messages_ = nullptr;
  std::size_t messages_size_ = 0;
  std::FILE* data_file_;
  std::FILE* messages_file_;
  command_line::Output output_;
};

}  // namespace modcache::testing
