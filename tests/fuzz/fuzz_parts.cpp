// Fuzzes a GGUF file in parts: the files of a folder, of which m-00001-of-00002.gguf is the first.
#include "engine/base/index.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "engine/model/weight_check.h"

#include "tests/fuzz/fuzz.h"

namespace keyhole::fuzz_parts {

static int run(const std::uint8_t* data, std::size_t size) {
    static const FuzzFolder folder("parts");
    folder.fill(members_of(text_of(data, size)));
    const std::filesystem::path first = folder.path() / "m-00001-of-00002.gguf";
    expect_error_or_none([&] {
        GgufFile opened(first);
        opened.open_parts();
        for (const std::string& name : opened.names()) {
            if (!opened.contains(name)) std::abort();
            expect_error_or_none([&] {
                const StoredTensor tensor = opened.tensor(name);
                std::size_t n = 1;
                for (const std::int64_t extent : tensor.shape) n *= to_index(extent);
                find_non_finite(tensor.dtype, tensor.data, n, true);
            });
        }
    });
    expect_error_or_none([&] { load_model(first); });
    return 0;
}

static const FuzzTarget target("parts", run);

}  // namespace keyhole::fuzz_parts
