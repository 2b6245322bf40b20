// The spool of a trace that a crash left. Frames are whole by their hash, so the input is a list of what they hold, and the frames
// are made of it; the input itself is read as a spool too.
#include "engine/trace/run_history.h"
#include "engine/trace/spool.h"
#include "engine/trace/trace_file.h"

#include "tests/fuzz/fuzz.h"

#include <fstream>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace keyhole;
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
        // What is recovered is a trace: nothing in it may be refused then.
        const fs::path trace = recover_spool(spool);
        try {
            RunHistory history;
            history.update(read_trace(trace));
        } catch (const Error& error) {
            std::fprintf(stderr, "a recovered trace is refused: %s\n", error.what());
            std::abort();
        }
    });
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    return 0;
}
