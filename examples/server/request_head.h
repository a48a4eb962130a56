// SPDX-License-Identifier: Apache-2.0
//
// The lines of a request before its body. cpp-httplib passes over lines that it does not
// understand; a gateway may understand them, and see a body where this server sees the next
// request. So such lines are refused before cpp-httplib reads them.
#pragma once

#include <string>
#include <string_view>

namespace server {

class RequestHead {
 public:
  // Takes the next line, with its end. Returns true once it was the last, which is empty. Throws
  // Refusal for a line that two servers may read differently.
  bool add_line(std::string_view line);
  // Returns what cpp-httplib is to read: the lines without those that ask for a part of an answer,
  // since answers are whole.
  const std::string& text() const { return text_; }
  void clear();

 private:
  std::string text_;
  bool has_request_line_ = false;
};

}  // namespace server
