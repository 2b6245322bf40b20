// Fuzzes config.json: its own family reads it, and all other families too.
#include "engine/model/families/family.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

namespace keyhole::fuzz_config {

static int run(const std::uint8_t* data, std::size_t size) {
    const MemoryFile file(text_of(data, size));
    expect_error_or_none([&] {
        const ConfigFile config(file.path());
        expect_error_or_none([&] { family_of(config); });
        for (const Family* family : families()) expect_error_or_none([&] { family->read_config(config); });
    });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
    return mutate_json(data, size, most, seed);
}

static const FuzzTarget target("config", run, mutate);

}  // namespace keyhole::fuzz_config
