// Fuzzes the reader of saved policies: what is accepted has a name that a file can have, a short sentence,
// and a spec in its shortest form.
#include "app/base/saved_policies.h"
#include "engine/policy/lane_spec.h"

#include "tests/fuzz/structure.h"

namespace keyhole::fuzz_saved_policy {

static int run(const std::uint8_t* data, std::size_t size) {
    const MemoryFile file(text_of(data, size));
    expect_error_or_none([&] {
        const SavedPolicy read = read_saved_policy(file.path());
        if (read.name.empty() || read.name.size() > 40 || read.name.find('/') != std::string::npos ||
            read.name.front() == '.')
            std::abort();
        if (read.about.size() > 400 || read.about.find('\n') != std::string::npos) std::abort();
        if (format_lane_spec(parse_stored_lane_spec(read.spec)) != read.spec) std::abort();
    });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    return mutate_text(data, size, max_size, seed,
                       {"name", "spec", "about", "version", "mine", "h2o:budget=64", "../h2o", "score=(p)"});
}

static const FuzzTarget target("saved_policy", run, mutate);

}  // namespace keyhole::fuzz_saved_policy
