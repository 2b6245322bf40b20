/// Which paths of products in integers a build has, as macros: a build for one machine leaves some out
/// (CMakeLists.txt). No state.
#pragma once

#include <hwy/detect_compiler_arch.h>

// A bit for each.
#ifndef KH_INTEGERS_LEFT_OUT
#define KH_INTEGERS_LEFT_OUT 0
#endif
#define KH_INTEGERS_AVX2 (HWY_ARCH_X86 && !(KH_INTEGERS_LEFT_OUT & 1))
#define KH_INTEGERS_AVX_VNNI (HWY_ARCH_X86 && !(KH_INTEGERS_LEFT_OUT & 2))
#define KH_INTEGERS_AVX512_VNNI (HWY_ARCH_X86 && !(KH_INTEGERS_LEFT_OUT & 4))
#define KH_INTEGERS_AMX (KH_INTEGERS_AVX512_VNNI && !(KH_INTEGERS_LEFT_OUT & 8))
