// SPDX-License-Identifier: Apache-2.0
//
// Messages for a reader in the process, such as Python's logging, in the place of standard error.
//
// A message may come from any thread, with locks of the library held, and a reader needs locks of
// its own (Python's, and those of its handlers). So a message is put into a queue, and a thread
// that lives only as long as there are some, and holds no lock, calls the reader.
#pragma once

extern "C" {

// From now on `reader` is called after each message, until it has taken all with cache::_take_log.
// It must not throw. Null: standard error again; then no thread calls the last reader any more
// when this returns, one that takes longer than a second excepted. Any thread; must not be called
// by a reader.
__attribute__((visibility("default"))) void modcache_read_log(void (*reader)());
}
