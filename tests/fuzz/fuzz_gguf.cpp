// Fuzzes a GGUF file: opens it, reads each tensor from end to end, and loads the model and its tokenizer.
#include "engine/base/index.h"
#include "engine/model/gguf_file.h"
#include "engine/model/gguf_model.h"
#include "engine/model/model.h"
#include "engine/model/weight_check.h"

#include "tests/fuzz/fuzz.h"

namespace keyhole::fuzz_gguf {

static int run(const std::uint8_t* data, std::size_t size) {
    const MemoryFile file(text_of(data, size));
    expect_error_or_none([&] {
        const GgufFile opened(file.path());
        for (const std::string& name : opened.names()) {
            expect_error_or_none([&] {
                const StoredTensor tensor = opened.tensor(name);
                std::size_t n = 1;
                for (const std::int64_t extent : tensor.shape) n *= to_index(extent);
                find_non_finite(tensor.dtype, tensor.data, n, true);
            });
        }
        // Tokenizers are used even where the model around them is broken.
        expect_error_or_none([&] {
            const Tokenizer tokenizer = Tokenizer::from_gguf(opened);
            tokenizer.decode(tokenizer.encode("abc tag 12 <s>\n\xc3\xa9"));
        });
        expect_error_or_none([&] { describe_gguf(opened); });
    });
    expect_error_or_none([&] { load_model(file.path()); });
    return 0;
}

static const FuzzTarget target("gguf", run);

}  // namespace keyhole::fuzz_gguf
