// Fuzzes files of a user's own questions. What is read has answers that can be asked for.
#include "engine/eval/data_file.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

#include <algorithm>

namespace keyhole::fuzz_data {

namespace {

void check(const DataFile& file) {
    if (file.examples.empty()) std::abort();
    for (const DataExample& example : file.examples) {
        if (example.line < 1 || (example.choices.empty() && example.references.empty())) std::abort();
        if (example.choices.empty() == file.has_choices()) std::abort();
        if (file.has_choices() && (example.choices.size() < 2 || example.answer < 0 ||
                                   example.answer >= static_cast<int>(example.choices.size())))
            std::abort();
        (void)example.shown_answer();
    }
}

}  // namespace

static int run(const std::uint8_t* data, std::size_t size) {
    expect_error_or_none([&] { check(parse_data_file(text_of(data, size), "data.jsonl")); });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
    return mutate_json(data, size, most, seed);
}

static const FuzzTarget target("data", run, mutate);

}  // namespace keyhole::fuzz_data
