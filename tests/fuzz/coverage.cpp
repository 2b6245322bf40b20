/// Counts how often each branch of the readers ran, in the array that libFuzzer reads after each input. The
/// compiler calls the function at each branch; the linker puts it in the place of libFuzzer's own, which
/// refuses compilers other than Clang.
#include <cstdint>

namespace {

constexpr int count_bits = 16;
[[gnu::section("__libfuzzer_extra_counters")]] std::uint8_t counts[1 << count_bits];

}  // namespace

extern "C" void __wrap___sanitizer_cov_trace_pc();
extern "C" void __wrap___sanitizer_cov_trace_pc() {
    const auto branch = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
    std::uint8_t& count = counts[(std::uint64_t{branch} * 0x9e3779b97f4a7c15u) >> (64 - count_bits)];
    if (count != UINT8_MAX) ++count;
}
