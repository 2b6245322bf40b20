// Fuzzes the reader of the lab's hand-ins: what is accepted has a name that files can have, and answers
// within their bounds; positions survive being written and read again.
#include "app/lab/hand_in.h"
#include "app/lab/lab.h"

#include "tests/fuzz/structure.h"

#include <algorithm>
#include <functional>
#include <optional>

namespace keyhole::fuzz_hand_in {

static void check_positions(const std::string& ranges) {
    const auto positions = positions_of(ranges);
    if (!positions) return;
    if (positions->empty() ||
        std::adjacent_find(positions->begin(), positions->end(), std::greater_equal<>()) != positions->end())
        std::abort();
    if (positions_of(ranges_of(*positions)) != positions) std::abort();
}

static void check_number(const std::optional<double>& number, double most) {
    if (number && !(*number >= 0 && *number <= most)) std::abort();
}

static int run(const std::uint8_t* data, std::size_t size) {
    check_positions(std::string(text_of(data, size)));
    expect_error_or_none([&] {
        const HandIn read = parse_hand_in(text_of(data, size), "fuzz.json");
        if (student_name(read.name) != read.name) std::abort();
        const std::string file = file_name_of(read.name);
        if (file.empty() || file.find_first_of("/.\\") != std::string::npos) std::abort();
        for (const auto& answer : {read.known.window, read.known.h2o, read.known.tova})
            check_number(answer, 100);
        for (const auto& answer : {read.stored.full, read.stored.window, read.stored.bytes})
            if (answer && *answer < 0) std::abort();
        if (read.smallest && *read.smallest < 0) std::abort();
        check_positions(read.kept);
        (void)read.has_own_seed();
    });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    return mutate_text(
        data, size, max_size, seed,
        {"answer", "exercises", "kept", "lane", "0-3 90-110", "16777216", "h2o:budget=64", "null"});
}

static const FuzzTarget target("hand_in", run, mutate);

}  // namespace keyhole::fuzz_hand_in
