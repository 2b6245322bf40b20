/// Which sanitizer watches this process. Asked at run time, since the objects of tests are compiled once and
/// are linked with a plain engine and with one under AddressSanitizer.
#pragma once

// Each sanitizer's runtime library has its own; without it the address is null.
extern "C" [[gnu::weak]] void __asan_init();
extern "C" [[gnu::weak]] void __tsan_init();

namespace reference {

inline bool under_address_sanitizer() {
    return __asan_init != nullptr;
}
inline bool under_thread_sanitizer() {
    return __tsan_init != nullptr;
}
inline bool under_a_sanitizer() {
    return under_address_sanitizer() || under_thread_sanitizer();
}

}  // namespace reference
