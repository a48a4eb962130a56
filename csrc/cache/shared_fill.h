// SPDX-License-Identifier: Apache-2.0
//
// Whether what the calling thread's look-ups find in memory or in the directory is given to the
// server as well, where that lacks it. A fill that machines share needs it: a machine that died may
// have left results in a directory that this one uses too, which the server never got.
#pragma once

namespace modcache::cache {

// Sets it for the calling thread, and returns what it was.
bool share_hits_here(bool shares_hits);
bool shares_hits_here();

}  // namespace modcache::cache
