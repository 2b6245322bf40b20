// Fuzzes a folder without tokenizer.json: vocab.json, merges.txt, added_tokens.json and the settings files
// beside them.
#include "engine/model/tokenizer.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

namespace keyhole::fuzz_vocabulary {

static int run(const std::uint8_t* data, std::size_t size) {
    static const FuzzFolder folder("vocabulary");
    folder.fill(members_of(text_of(data, size)));
    expect_error_or_none([&] {
        const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
        const std::vector<int> ids = tokenizer.encode("abc <x> <1><12> a\xff\xe4\xbd \xc4\xa0");
        for (const int id : ids)
            if (id < 0 || id >= tokenizer.n_vocab()) std::abort();
        tokenizer.decode(ids, true);
    });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
    return mutate_members(data, size, most, seed);
}

static const FuzzTarget target("vocabulary", run, mutate);

}  // namespace keyhole::fuzz_vocabulary
