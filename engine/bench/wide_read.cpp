#include "engine/bench/wide_read.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/bench/wide_read.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

std::uint64_t sum_of_words(const std::uint64_t* words, std::size_t n) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::ScalableTag<std::uint64_t> tag;
    const std::size_t lanes = hn::Lanes(tag);
    // Prefetches cross the page ends at which the processor's own stop. 4 KB are some 50 ns of reading.
    constexpr std::size_t kAhead = 512;
    auto a = hn::Zero(tag), b = hn::Zero(tag), c = hn::Zero(tag), d = hn::Zero(tag);
    std::size_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        for (std::size_t line = 0; line < 4 * lanes; line += 8)
            if (i + line + kAhead < n) hwy::Prefetch(words + i + line + kAhead);
        a = hn::Add(a, hn::LoadU(tag, words + i));
        b = hn::Add(b, hn::LoadU(tag, words + i + lanes));
        c = hn::Add(c, hn::LoadU(tag, words + i + 2 * lanes));
        d = hn::Add(d, hn::LoadU(tag, words + i + 3 * lanes));
    }
    // By hand, since the compiler's own sum of lanes is one of signed numbers.
    alignas(64) std::uint64_t each[HWY_MAX_BYTES / sizeof(std::uint64_t)];
    hn::StoreU(hn::Add(hn::Add(a, b), hn::Add(c, d)), tag, each);
    std::uint64_t sum = 0;
    for (std::size_t lane = 0; lane < lanes; ++lane) sum += each[lane];
    for (; i < n; ++i) sum += words[i];
    return sum;
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keyhole {

HWY_EXPORT(sum_of_words);

std::uint64_t wide_sum(std::span<const std::uint64_t> words) {
    return HWY_DYNAMIC_DISPATCH(sum_of_words)(words.data(), words.size());
}

}  // namespace keyhole
#endif
