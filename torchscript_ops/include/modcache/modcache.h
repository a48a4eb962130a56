// SPDX-License-Identifier: Apache-2.0
//
// modcache for C++ hosts that call the cache themselves. A host that only runs models which call
// cache::lookup_or_run does not need this header.
//
//     torch::jit::Module encoder = torch::jit::load("encoder.pt");
//     at::Tensor features = modcache::lookup_or_run(encoder, image, "train/000017.jpg");
//
// The headers need no library to link: every function calls an operator in torch's dispatcher. So
// the host may link modcache::modcache, dlopen the library (RTLD_LOCAL too, any time before the
// first call) or get it by LD_PRELOAD, and the library may be newer than this header.
//
// Any thread may call. A caller's mistake, and a call while the library is not loaded, is a
// c10::Error that says what is valid. The module's own exceptions pass through. A failure of the
// cache is never an error.
#pragma once

#include <modcache/cache.h>

#if __has_include(<torch/csrc/jit/api/module.h>)
#include <modcache/scripted.h>
#endif
