// Fuzzes tokenizer.json: encodes a difficult text and decodes the tokenizer's own tokens.
#include "engine/model/tokenizer.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

#include <vector>

namespace keyhole::fuzz_tokenizer {

static int run(const std::uint8_t* data, std::size_t size) {
    const MemoryFile file(text_of(data, size));
    expect_error_or_none([&] {
        const Tokenizer tokenizer = Tokenizer::from_file(file.path());
        const int n_vocab = tokenizer.n_vocab();
        const auto check = [&](const std::vector<int>& ids) {
            for (const int id : ids)
                if (id < 0 || id >= n_vocab) std::abort();
            tokenizer.decode(ids);
            tokenizer.decode(ids, true);
        };
        std::string text =
            "It's  a\n\ttest 1234 caf\xc3\xa9 e\xcc\x81 \xf0\x9f\x98\x80\xe2\x80\x8d\xe4\xbd "
            "\xff\xe2\x96\x81x";
        text += '\0';
        expect_error_or_none([&] { check(tokenizer.encode(text)); });
        std::vector<int> some;
        for (int id = -2; id < std::min(n_vocab + 2, 50); ++id) {
            const std::string shown = tokenizer.display(id);
            if (id < 0 || id >= n_vocab) continue;
            some.push_back(id);
            expect_error_or_none(
                [&] { check(tokenizer.encode(tokenizer.token_bytes(id).substr(0, 100), false)); });
        }
        expect_error_or_none([&] { check(some); });
    });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
    return mutate_json(data, size, most, seed);
}

static const FuzzTarget target("tokenizer", run, mutate);

}  // namespace keyhole::fuzz_tokenizer
