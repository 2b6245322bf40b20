// Fuzzes the spool that a crash leaves. A hash protects each frame, so the input lists frame contents and the
// target builds the frames. The target also reads the raw input as a spool.
#include "engine/trace/spool.h"
#include "engine/trace/trace_file.h"

#include "tests/fuzz/structure.h"
#include "tests/fuzz/use_run.h"

#include <fstream>

namespace keyhole::fuzz_spool {

static int run(const std::uint8_t* data, std::size_t size) {
    namespace fs = std::filesystem;
    static const fs::path folder =
                              fs::temp_directory_path() / ("keyhole-fuzz-spool-" + std::to_string(getpid())),
                          spool = folder / "run.keyhole.spool";
    const std::string_view input = text_of(data, size);
    {
        const MemoryFile raw(input);
        expect_error_or_none([&] { const Frames frames(raw.path()); });
    }
    fs::create_directories(spool);
    {
        std::ofstream frames(spool / "frames.bin", std::ios::binary);
        for (const Member& member : members_of(input)) frames << frame_of(member.bytes);
    }
    expect_error_or_none([&] {
        // Recovery gives a trace that the reader must accept.
        const fs::path trace = recover_spool(spool);
        try {
            use_run(read_trace(trace));
        } catch (const Error& error) {
            std::fprintf(stderr, "a recovered trace is refused: %s\n", error.what());
            std::abort();
        }
    });
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    Mutator mutator(seed, run_texts());
    // A frame: the length of its JSON text, the text, then arrays, each preceded by an 8-byte count.
    return mutate_members(data, size, max_size, mutator, [&](const std::string&, const std::string& bytes) {
        std::uint64_t n_text = 0;
        if (bytes.size() < sizeof n_text) return bytes;
        std::memcpy(&n_text, bytes.data(), sizeof n_text);
        if (n_text > bytes.size() - sizeof n_text) return bytes;
        std::string text = bytes.substr(sizeof n_text, n_text), arrays = bytes.substr(sizeof n_text + n_text);
        if (mutator.one_of(2))
            text = mutator.json(text);
        else
            mutator.elements(arrays, 0);
        n_text = text.size();
        return std::string(reinterpret_cast<const char*>(&n_text), sizeof n_text) + text + arrays;
    });
}

static const FuzzTarget target("spool", run, mutate);

}  // namespace keyhole::fuzz_spool
